"""Federated Word2Vec (Garcia Bernal et al., 2021): organisations agree on a word list, then train word vectors together.

    agree:     a vocabulary from what the organisations propose                              [sec. 3.2, agreement.py]
    client k:  FedSGD  g_k <- gradient of one batch (2,048 pairs, 64 negatives shared)       [Alg. 1]
               FedAvg  a local pass over its next stretch of text, on copies of the rows it touches
               send the rows that moved, how often each was moved
    server:    W_row <- W_row + rule(sum_k delta_k,row, counts, nodes)                       [row_rules.py]
               send the rows that changed since each organisation's version

Differs from the paper: touched rows travel, not tables, up and down (at 200,000 words some 600 times less; the vocabulary is
sent once, and the first table is made of public numbers, so it is not sent at all). A word must be held by two
organisations by default. `rule = "mean"` with `mode = "fedsgd"` and `agreement.rule = "union"` is the paper's algorithm; its
learning rate, window and optimizer are not stated there. The loss of a batch is the sum over its pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Federation, Handler, Method, Requests, Rounds, ServerState, Steps, once, request
from lexfed.methods import row_rules
from lexfed.methods.agreement import Agreement, agree, handlers
from lexfed.methods.replica import Replica, first_tables
from lexfed.methods.row_rules import VERSION, RowRule, RowStep, changed_since
from lexfed.methods.skipgram_training import Corner, gradient, heldout_pairs, local_pass, stretch
from lexfed.methods.word2vec_options import Word2Vec
from lexfed.models.skipgram import INPUT
from lexfed.params import ALL_SHARED
from lexfed.privacy.sampling import Sampler
from lexfed.seeds import Seed, derive, torch_generator
from lexfed.vocabulary import agreed
from lexfed.vocabulary.export import read_tables
from lexfed.wire import ClientId, Message, pack


def federated_word2vec(sampler: Sampler, options: Word2Vec, agreement: Agreement, rounds: int, replica: Replica) -> Method:
    fedsgd = options.mode == "fedsgd"

    def version(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        return Message(meta={"version": replica.versions.get(client.id, replica.resumed)}), state

    def vocabulary(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        replica.install(message.blobs["vocabulary"])
        replica.versions[client.id] = 0
        return Message(), state

    def train(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        replica.forward(message, client)
        replica.versions[client.id] = replica.version
        corner = Corner(int(message.meta["round"]), rounds)
        seed = derive(client.secret, "train", int(message.meta["step"]), int(message.meta["ask"]))
        text = replica.text(client, "train", lambda: client.train)
        unigrams = replica.frequencies(client)
        if fedsgd:
            update = gradient(replica.base(), text, unigrams, options, corner, seed)
        else:
            chunk = stretch(text, options.epochs, corner, client.secret)
            update = local_pass(replica.base(), chunk, unigrams, options, corner, seed)
        return Message(pack(update, options.upload, torch_generator(derive(seed, "rounding")))), state

    def evaluate(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        replica.forward(message, client)  # the version that counts as the client's stays what it was
        pairs = heldout_pairs(replica, client, options)
        figures = {"heldout_loss": pairs.loss(replica.base()), "pairs": float(len(pairs.centres))}
        return Message({name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}), state

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        old, tables = read_tables(Path(options.start)) if options.start else (None, {})

        def start(s: ServerState) -> ServerState:
            params = dict(first_tables(len(agreed.from_bytes(s.vocabulary)), options.dimension))
            for name, table in tables.items():
                if table.shape[1] != options.dimension:
                    raise ConfigError(f"{options.start} has {table.shape[1]} dimensions: set word2vec.dimension")
                params[name][: len(table)] = table
            return replace(s, params=params, mechanism_state=row_rules.start(params, changed=bool(tables)))

        state = yield from once(state, "agree", lambda s: agree(federation, s, agreement, derive(seed, "agree"), old))
        state = yield from once(state, "start", start)
        loop = Rounds(
            sampler,
            RowRule(options.rule, options.row_cap if options.rule == "row_cap" else options.cap),
            RowStep(),
            partial(requests, federation),
            verb="skipgram",
            asks=options.steps if fedsgd else 1,
        )
        return (yield from loop(federation, state, until=rounds, seed=seed))

    clients: Mapping[str, Handler] = {"version": version, "vocabulary": vocabulary, "skipgram": train, "evaluate": evaluate}

    def hold(state: ServerState, resumed: bool) -> None:
        if VERSION in state.mechanism_state:
            replica.hold(state.vocabulary, state.params, int(state.mechanism_state[VERSION]) if resumed else None)

    return Method(
        client={**handlers(agreement), **clients},
        server=server,
        split=ALL_SHARED,
        rounds=rounds,
        hold=hold,
        threads=True,
    )


def requests(federation: Federation, state: ServerState, cohort: Sequence[ClientId], ask: int) -> Requests:
    """For each client the rows that changed since its version. Who has no vocabulary yet gets it first.

    Versions are asked for once a round; within it everyone who answers is brought along from step to step.
    """
    now = int(state.mechanism_state[VERSION])
    versions = dict.fromkeys(cohort, now - 1) if ask else versions_of(federation, state, cohort)
    messages = {since: rows_message(state, ask, since) for since in sorted(set(versions.values()))}
    return {client: messages[since] for client, since in versions.items()}


def versions_of(federation: Federation, state: ServerState, cohort: Sequence[ClientId]) -> dict[ClientId, int]:
    clock = request(replace(state, params={}), ask=0)
    versions = {c: int(reply.meta["version"]) for c, reply in federation.ask("version", dict.fromkeys(cohort, clock))}
    newcomers = [client for client, held in versions.items() if held < 0]
    welcome = replace(clock, blobs={"vocabulary": state.vocabulary})
    for client, _ in federation.ask("vocabulary", dict.fromkeys(newcomers, welcome)):
        versions[client] = 0
    return {client: held for client, held in versions.items() if held >= 0}


def rows_message(state: ServerState, ask: int, since: int) -> Message:
    rows = changed_since(state.params, state.mechanism_state, since)
    clock = request(replace(state, params={}), ask)
    height, width = state.params[INPUT].shape
    meta = {**clock.meta, "since": since, "version": int(state.mechanism_state[VERSION]), "rows": height, "width": width}
    return Message(pack({f"rows/{name}": some for name, some in rows.items()}), meta)
