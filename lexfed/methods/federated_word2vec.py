"""Federated Word2Vec (Garcia Bernal et al., 2021): organisations agree on a word list, then train
word vectors together.

    agree:     a vocabulary from what the organisations propose          [sec. 3.2, agreement/]
    client k:  FedSGD  g_k <- gradient of one batch (2,048 pairs,
                       64 negatives shared)                              [Alg. 1]
               FedAvg  a local pass over its next stretch of text, on copies of the rows it touches
               send the rows that moved, how often each was moved
    server:    W_row <- W_row + rule(sum_k delta_k,row, counts, nodes)   [word2vec/row_rules.py]
               send the rows that changed since each organisation's version

Differs from the paper: touched rows travel, not tables, up and down (at 200,000 words some 600
times less; the vocabulary is sent once, and the first table is made of public numbers, so it is not
sent at all). A word must be held by two organisations by default. `rule = "mean"` with `mode =
"fedsgd"` and `agreement.rule = "union"` is the paper's algorithm; its learning rate, window and
optimizer are not stated there. The loss of a batch is the sum over its pairs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lexfed.agreement import word_list
from lexfed.agreement.organisation import handlers
from lexfed.agreement.protocol import agreed, price
from lexfed.core.errors import ConfigError
from lexfed.core.params import ALL_SHARED, Rows, Update
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.corpus.population import Client
from lexfed.federation import (
    Answer,
    ClientState,
    Entry,
    Federation,
    Handler,
    Method,
    Rounds,
    ServerProgram,
    ServerState,
    Steps,
    once,
    paid_by,
)
from lexfed.models.skipgram import INPUT, OUTPUT
from lexfed.privacy.accounting import Ledger
from lexfed.privacy.mechanism import Unpaid
from lexfed.vocabulary.export import read_tables
from lexfed.wire import Message, Verb, pack
from lexfed.word2vec import row_rules
from lexfed.word2vec.options import Word2Vec
from lexfed.word2vec.passes import Moment, gradient, heldout_pairs, local_pass, stretch
from lexfed.word2vec.replica import (
    VOCABULARY,
    Readings,
    Replicas,
    first_tables,
    tables_of,
    version_of,
)
from lexfed.word2vec.row_rules import RowRule, RowStep
from lexfed.word2vec.study import VectorStudy, worse_than_none
from lexfed.word2vec.vector_parts import WORD_VECTORS, VectorParts
from lexfed.word2vec.vector_verbs import EVALUATE, SKIPGRAM, TOUCH, VERSION
from lexfed.word2vec.vector_verbs import VOCABULARY as WELCOME
from lexfed.word2vec.versions import requests

# the list may be told with noise; what is trained on it is not
ROWS = Unpaid("document", "how rows of word vectors moved, averaged")


def federated_word2vec(parts: VectorParts, options: object = None) -> Method:
    readings, replicas = Readings(parts.word2vec.subsample), Replicas(parts.word2vec.dimension)
    return Method(
        client={
            **handlers(parts.agreement),
            **organisation(parts.word2vec, parts.rounds, replicas, readings),
        },
        server=server(parts),
        split=ALL_SHARED,
        rounds=parts.rounds,
        study=VectorStudy(parts.word2vec, parts.people, parts.rounds, replicas, readings),
        planned=partial(planned, parts),
        diverged=worse_than_none(parts.word2vec),
    )


def planned(parts: VectorParts) -> Ledger:
    """The passes of an agreement under noise, and the rows, which have none."""
    clients, rounds = len(parts.people), parts.rounds * asks(parts.word2vec)
    return ROWS.plan(price(parts.agreement), clients, clients, rounds)


def asks(options: Word2Vec) -> int:
    """Exchanges of a round."""
    return options.steps if options.mode == "fedsgd" else 1


def server(parts: VectorParts) -> ServerProgram:
    options = parts.word2vec
    cap = options.row_cap if options.rule == "row_cap" else options.cap
    first = 1 + (options.start is not None)  # the version that the first round makes

    def rate(version: int) -> float:
        return sum(Moment(version - first, parts.rounds, options.pace).rate(options.lr)) / 2

    rule = RowRule(options.rule, cap, options.reach, rate, options.lr)

    def program(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        old, tables = read_tables(Path(options.start)) if options.start else (None, {})

        def start(s: ServerState) -> ServerState:
            params = dict(
                first_tables(len(word_list.from_bytes(s.blobs[VOCABULARY])), options.dimension)
            )
            for name, table in tables.items():
                if table.shape[1] != options.dimension:
                    raise ConfigError(
                        f"{options.start} has {table.shape[1]} dimensions: set word2vec.dimension"
                    )
                params[name][: len(table)] = table
            return replace(
                s, params=params, mechanism_state=row_rules.start(params, changed=bool(tables))
            )

        agreeing = derive(seed, "agree")
        state = yield from agreed(
            federation, state, parts.agreement, agreeing, old, again=parts.fresh
        )
        state = yield from once(state, "start", start)
        told = partial(requests, federation, options.most_pairs, parts.secure)
        loop = Rounds(parts.sampler, rule, RowStep(), SKIPGRAM, told, paid_by(ROWS), asks(options))
        return (yield from loop(federation, state, until=parts.rounds, seed=seed))

    return program


def organisation(
    options: Word2Vec, rounds: int, replicas: Replicas, readings: Readings
) -> Mapping[Verb, Handler]:
    update = updater(options, rounds, readings)

    def version(message: Message, client: Client, state: ClientState) -> Answer:
        return Message(meta={"version": version_of(state)}), state

    def welcome(message: Message, client: Client, state: ClientState) -> Answer:
        first = replicas.first(message.blobs[VOCABULARY])
        return Message(), replace(first, blobs={**state.blobs, **first.blobs})

    def train(message: Message, client: Client, before: ClientState) -> Answer:
        last = options.mode == "fedavg" or int(message.meta["ask"]) == options.steps - 1
        state = replicas.forward(before, message, client.id, keep=last)
        if state is None:  # it missed a step of this round, and can't follow the others
            return None, before
        moved, seed = update(message, client, state)
        rounding = torch_generator(derive(seed, "rounding"))
        return Message(pack(moved, options.upload, rounding)), state if last else before

    def evaluate(message: Message, client: Client, before: ClientState) -> Answer:
        began = VOCABULARY in message.blobs
        state = replicas.first(message.blobs[VOCABULARY]) if began else before
        now = replicas.forward(state, message, client.id, keep=False)
        if now is None:  # it lacks more than these rows
            return Message(meta={"version": version_of(state)}), before
        pairs = heldout_pairs(readings, now, client, options)
        figures = {"heldout_loss": pairs.loss(tables_of(now)), "pairs": float(len(pairs.centres))}
        arrays = {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
        return Message(arrays), before

    return {
        VERSION: version,
        WELCOME: welcome,
        TOUCH: touching(update, replicas),
        SKIPGRAM: train,
        EVALUATE: evaluate,
    }


Updater = Callable[[Message, Client, ClientState], tuple[Update, Seed]]


def updater(options: Word2Vec, rounds: int, readings: Readings) -> Updater:
    """How the tables that a client holds move, and the seed it hangs from."""

    def update(message: Message, client: Client, state: ClientState) -> tuple[Update, Seed]:
        seed = derive(client.secret, "train", int(message.meta["step"]), int(message.meta["ask"]))
        moment = Moment(int(message.meta["round"]), rounds, options.pace)
        return local_update(options, readings, state, client, moment, seed), seed

    return update


def touching(update: Updater, replicas: Replicas) -> Handler:
    """Which rows would be moved. It trains, and forgets it: the rows are the same when it is asked
    to send them.
    """

    def touch(message: Message, client: Client, before: ClientState) -> Answer:
        state = replicas.forward(before, message, client.id, keep=False)
        if state is None:
            return None, before
        moved, _ = update(message, client, state)
        marks = {
            name: torch.zeros(int(message.meta["rows"]), dtype=torch.int64)
            for name in (INPUT, OUTPUT)
        }
        for name, mark in marks.items():
            rows = moved.get(f"delta/{name}")
            if isinstance(rows, Rows):
                mark[rows.ids] = 1
        return Message(marks), before

    return touch


def local_update(
    options: Word2Vec,
    readings: Readings,
    state: ClientState,
    client: Client,
    moment: Moment,
    seed: Seed,
) -> Update:
    """One gradient, or a pass over this round's stretch of text; by touched rows."""
    text = readings.text(state, client, "train", client.train)
    unigrams, tables = readings.frequencies(state, client), tables_of(state)
    if options.mode == "fedsgd":
        return gradient(tables, text, unigrams, options, moment, seed)
    chunk = stretch(text, options.epochs, moment, client.secret)
    return local_pass(tables, chunk, unigrams, options, moment, seed)


METHOD = Entry(
    "federated_word2vec",
    WORD_VECTORS,
    federated_word2vec,
    traits=frozenset({"word list", "rows", "threads"}),
)
