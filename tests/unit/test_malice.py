"""Malicious clients, in pairs: what they do to a plain mean and to an open word list, and who withstands them.

The model of the middle part is a bag of words and a logistic regression on real reviews: as much of a federation as a
second can hold. Its figures (accuracy on 1,706 texts, whose standard error is 0.011) stand in `MEASURED`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lexfed import agreeing
from lexfed.config import parse
from lexfed.corpus.population import Client, Data, Population, build
from lexfed.errors import ConfigError
from lexfed.federation import Ask, ClientState, Federation, Requests, Rounds, ServerState, Total, plain
from lexfed.optim import ServerOptimizer
from lexfed.params import Params, Rows
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.privacy.robust import Malice, median, norm_bound, trimmed_mean
from lexfed.privacy.sampling import Everyone
from lexfed.runtime.malice import corrupted, invented, malicious
from lexfed.seeds import derive, root, torch_generator
from lexfed.session import robust
from lexfed.vocabulary.word import build as build_words  # noqa: F401
from lexfed.vocabulary.word import words
from lexfed.wire import ClientId, Message, Verb, pack, unpack
from tests.conftest import Lexfed, hand_made

# --- a small federation on real text ----------------------------------------------------------------------------------

CLIENTS, ROUNDS, STEPS, RATE = 10, 5, 10, 8.0


@cache
def reviews() -> Population:
    return build(Data(name="rotten_tomatoes", clients=CLIENTS, partition="iid"), root(3))


@cache
def bags() -> Tensor:
    """Which of the 2,000 most frequent words each text has, at length one."""
    people = reviews()
    used = np.concatenate([people.train.rows, people.common_test.rows])
    split = {int(row): set(words(text)) for row, text in zip(used, [*people.train, *people.common_test], strict=True)}
    counts: dict[str, int] = {}
    for row in people.train.rows:
        for word in split[int(row)]:
            counts[word] = counts.get(word, 0) + 1
    ids = {word: i for i, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word))[:2000])}
    matrix = torch.zeros(int(used.max()) + 1, len(ids))
    for row, own in split.items():
        matrix[row, [ids[word] for word in own if word in ids]] = 1
    return torch.nn.functional.normalize(matrix, dim=1)


def train(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
    """Some steps down the gradient of all its texts."""
    start, x, y = message.arrays["model/w"], bags()[client.train.rows], torch.from_numpy(client.train.labels).float()
    w = start.clone()
    for _ in range(STEPS):
        w -= RATE / len(y) * ((x @ w).sigmoid() - y) @ x
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w, y).item()
    return Message(pack(NoPrivacy().bound({"w": w - start}, len(y), loss, message, b""))), state


def asking(malice: Malice) -> Ask:
    people, bad = reviews(), malicious(malice, reviews())

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, message in requests.items():
            handler = corrupted(train, verb, malice, people.classes) if client in bad else train
            yield client, handler(message, people.client(client), ClientState())[0]

    return ask


RULES: Mapping[str, Callable[[Ask], Total]] = {
    "mean": plain,
    "trim 0.2": partial(robust, rule=trimmed_mean(0.2)),
    "trim 0.1": partial(robust, rule=trimmed_mean(0.1)),
    "median": partial(robust, rule=median),
    "norm 1": partial(robust, rule=norm_bound(1.0)),
}


@cache
def accuracy(rule: str, malice: Malice) -> float:
    ask = asking(malice)
    rounds = Rounds(Everyone(), NoPrivacy(), ServerOptimizer())
    start = ServerState(params={"w": torch.zeros(bags().shape[1])})
    *_, state = rounds(Federation(range(CLIENTS), ask, RULES[rule](ask)), start, until=ROUNDS, seed=root(0))
    test = reviews().common_test
    return float((((bags()[test.rows] @ state.params["w"]) > 0).numpy() == (test.labels == 1)).mean())
