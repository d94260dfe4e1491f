"""The server's side of replicas: who holds which version, and which rows it lacks."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from lexfed.federation import Federation, Requests, ServerState, clock
from lexfed.models.skipgram import INPUT
from lexfed.privacy.mechanism import dense
from lexfed.secure.dense_rows import ONLY
from lexfed.secure.secure_options import Secure
from lexfed.wire import ClientId, Message, pack, under
from lexfed.wire.verbs import TOGETHER
from lexfed.word2vec.replica import VOCABULARY as LIST
from lexfed.word2vec.row_rules import VERSION as NOW
from lexfed.word2vec.row_rules import changed_since
from lexfed.word2vec.vector_verbs import TOUCH, VERSION, VOCABULARY


def requests(
    federation: Federation,
    most_pairs: int,
    secure: Secure,
    state: ServerState,
    cohort: Sequence[ClientId],
    ask: int,
) -> Requests:
    """For each client the rows that changed since its version, and how many pairs of a row count at
    most. Who has no vocabulary yet gets it first.

    Versions are asked for once a round; within it everyone who answers is brought along from step
    to step.
    """
    now = int(state.mechanism_state[NOW])
    versions = dict.fromkeys(cohort, now - 1) if ask else versions_of(federation, state, cohort)
    messages = {
        since: rows_message(state, ask, since, most_pairs=most_pairs)
        for since in sorted(set(versions.values()))
    }
    asked = {client: messages[since] for client, since in versions.items()}
    return _restricted(federation, secure, state, asked) if federation.sums_only else asked


def _restricted(
    federation: Federation, secure: Secure, state: ServerState, asked: Requests
) -> Requests:
    """The same requests, for the rows that everybody sends: they do not hang on any one's text."""
    if secure.rows == "all" or not asked:
        return asked
    members = set(asked)
    if secure.rows == "block":
        # frequent words and rare ones in every block: the list is in order of frequency
        height = len(state.params[INPUT])
        blocks = -(-height // secure.block)
        ids = torch.arange(state.round % blocks, height, blocks)
        only = dict.fromkeys(state.params, ids)
    else:
        total = federation.total(TOUCH, asked)
        touched, members = total.update, set(total.members)
        only = {
            name: torch.nonzero(dense(touched[name]) >= secure.held_by).flatten()
            for name in state.params
            if name in touched
        }
        if not only:  # the sum was not opened
            return {}
    known = {id(message): message for message in asked.values()}
    # who is in the one sum and not in the other would be told by their difference
    again = {TOGETHER: 1} if secure.rows == "held" else {}
    limited = {
        key: replace(
            message,
            arrays={**message.arrays, **under(ONLY, only)},
            meta={**message.meta, **again},
        )
        for key, message in known.items()
    }
    return {client: limited[id(message)] for client, message in asked.items() if client in members}


def versions_of(
    federation: Federation, state: ServerState, cohort: Sequence[ClientId]
) -> dict[ClientId, int]:
    now = clock(state, ask=0)
    hello = replace(now, meta={**now.meta, "version": int(state.mechanism_state[NOW])})
    versions = {
        c: int(reply.meta["version"])
        for c, reply in federation.ask(VERSION, dict.fromkeys(cohort, hello))
    }
    newcomers = [client for client, held in versions.items() if held < 0]
    welcome = replace(now, blobs={LIST: state.blobs[LIST]})
    for client, _ in federation.ask(VOCABULARY, dict.fromkeys(newcomers, welcome)):
        versions[client] = 0
    return {client: held for client, held in versions.items() if held >= 0}


def rows_message(state: ServerState, ask: int, since: int, **told: int) -> Message:
    rows = changed_since(state.params, state.mechanism_state, since)
    height, width = state.params[INPUT].shape
    shape = {
        "since": since,
        "version": int(state.mechanism_state[NOW]),
        "rows": height,
        "width": width,
    }
    return Message(
        pack({f"rows/{name}": some for name, some in rows.items()}),
        {**clock(state, ask).meta, **shape, **told},
    )
