"""Centralised training: what could be reached if all text lay in one place.

It is FedAvg with one client that holds everything (the population is built so), every round one pass of local epochs.
"""

from dataclasses import replace

from lexfed.federation import Method
from lexfed.methods.fedavg import fedavg
from lexfed.methods.parts import Parts
from lexfed.optim import ServerOptimizer
from lexfed.privacy.sampling import Everyone


def centralised(parts: Parts) -> Method:
    return fedavg(replace(parts, sampler=Everyone(), optimizer=ServerOptimizer()))
