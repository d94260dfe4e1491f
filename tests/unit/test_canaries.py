"""Auditing the mechanism in one run: users of our own making, each there by a coin, guessed from
what is released.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from lexfed.audits.one_run import OneRun, audit, canary, score
from lexfed.core.seeds import derive, numpy_generator, root
from lexfed.federation import Federation, Requests, ServerState, plain
from lexfed.federation.sampling import Everyone
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.parts import loop
from lexfed.privacy.accounting import epsilon
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.wire import ClientId, Message, Verb, pack

MODEL = {"w": torch.zeros(100, 200)}
CANARIES, DELTA = 1000, 1e-5


def audited(options: Privacy, seed: int) -> tuple[OneRun, float]:
    """What the released model gives away of who took part, and what the ledger says it may."""
    mechanism = GaussianMechanism(options, 1)
    inside = numpy_generator(derive(root(seed), "coins")).random(CANARIES) < 0.5

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, message in requests.items():
            own = {
                name: 100 * value for name, value in canary(MODEL, client, root(seed)).items()
            }  # far above the clip
            yield (
                client,
                Message(pack(mechanism.bound(own, 1, 0.0, message, derive(root(seed), client)))),
            )

    federation = Federation([int(c) for c in np.flatnonzero(inside)], ask, plain(ask))
    rounds = loop(Everyone(), mechanism, ServerOptimizer(), mechanism)
    (state,) = rounds(
        federation, ServerState(params=MODEL), until=1, seed=derive(root(seed), "server")
    )
    scores = np.array(
        [score(state.params, canary(MODEL, client, root(seed))) for client in range(CANARIES)]
    )
    return audit(scores, inside, DELTA), epsilon(
        state.ledger, "user", DELTA
    ) if state.ledger else 0.0


HONEST = Privacy(placement="central", clip=0.5, noise=1.2, delta=DELTA)


@pytest.mark.parametrize("seed", [0, 1])
def test_what_canaries_show_is_within_what_the_ledger_claims(seed: int) -> None:
    found, claimed = audited(HONEST, seed)
    assert 2 < claimed < 6
    assert 0.2 < found.epsilon < claimed, "something is seen, and no more than was paid for"


@pytest.mark.parametrize("seed", [0, 1])
def test_without_noise_they_show_more_than_was_claimed(seed: int) -> None:
    """The pair: a mechanism that clips and forgets to add its noise, judged by the claim of one
    that does not forget.
    """
    _, claimed = audited(replace(HONEST, noise=2.0), seed)
    found, _ = audited(replace(HONEST, noise=0.0), seed)
    assert found.epsilon > claimed
