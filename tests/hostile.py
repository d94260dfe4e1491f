"""What hostile clients are tested with: tiny federations of all methods, replies of theirs with one
thing wrong, and a corpus of everything that was ever found (`tests/data/hostile.json`).
"""

import json
import math
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexfed.core.seeds import derive, root
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.config import parse
from lexfed.federation import Federation, Replies, Requests, ServerState, gated, plain
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.wire import ClientId, Message, Verb
from tests.conftest import BAD, GOOD, ROOT

CORPUS: list[dict[str, Any]] = json.loads((ROOT / "tests/data/hostile.json").read_text())
WORDS = "the cat sat on a mat while two dogs ran over hills and far away by river".split()  # noqa: SIM905

# --- tiny federations -----------------------------------------------------------------------------


@cache
def folder() -> Path:
    """Texts with labels, of organisations, of users; it stays as long as this process."""
    rng, path = np.random.default_rng(0), Path(tempfile.mkdtemp(prefix="lexfed-hostile-"))
    tables = {
        "labelled": [
            {"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i}", "label": i % 2} for i in range(48)
        ],
        "sources": [
            {"text": " ".join(rng.choice(WORDS, 30)), "source": f"s{i % 4}"} for i in range(40)
        ],
        "few users": [
            {"text": " ".join(rng.choice(WORDS, 12)), "user": f"u{i % 12}"} for i in range(24)
        ],
        "many users": [{"text": "the the the cat", "user": f"u{i}"} for i in range(402)],
    }
    for name, rows in tables.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def classifier(**more: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "data": {"name": f"{folder()}/labelled.jsonl", "clients": 6},
        "model": {"embedding": 4, "hidden": 3},
        "cohort": {"sampling": "everyone"},
        "train": {"batch": 8},
        "evaluation": {"every": 1, "clients": 3},
        **more,
    }


def vectors(**more: Any) -> dict[str, Any]:
    return {
        "method": "federated_word2vec",
        "rounds": 2,
        "data": {
            "name": f"{folder()}/sources.jsonl", "clients": 4, "partition": "source",
            "test": 0.2, "test_of": "each",
        },
        "agreement": {"minimum": 2},
        "cohort": {"sampling": "everyone"},
        "evaluation": {"every": 1},
        "word2vec": {"dimension": 8, "heldout_pairs": 50, "queries": ["cat"]},
        **more,
    }  # fmt: skip


def language(users: str = "few", clients: int = 10, **more: Any) -> dict[str, Any]:
    return {
        "method": "tokenizer_for_free",
        "rounds": 2,
        "data": {
            "name": f"{folder()}/{users} users.jsonl", "partition": "user", "clients": clients,
            "unseen": 2, "test": 0.0, "validation": 0.0,
        },
        "tokenizer": {"kind": "word", "size": 12, "public": f"{folder()}/sources.jsonl"},
        "language_model": {"layers": 1, "width": 6, "context": 8},
        "tokenizer_for_free": {"sample_words": 40, "sample_length": 8},
        "cohort": {"size": 4},
        "train": {"optimizer": "sgd", "lr": 0.5},
        "evaluation": {"every": 1, "clients": 2},
        **more,
    }  # fmt: skip


def found(by: str) -> dict[str, Any]:
    return {"kind": "word", "size": 12, "public": f"{folder()}/sources.jsonl", "start": by}


def w2v(**options: Any) -> dict[str, Any]:
    return {"dimension": 8, "heldout_pairs": 50, "queries": ["cat"], **options}


SCENES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "fedavg": classifier,
    "fedavg fp16": lambda: classifier(train={"batch": 8, "upload": "fp16"}),
    "fedavg int8": lambda: classifier(train={"batch": 8, "upload": "int8"}),
    "median": lambda: classifier(aggregation={"rule": "median"}),
    "norm bound": lambda: classifier(aggregation={"rule": "norm_bound"}),
    "adam": lambda: classifier(server={"optimizer": "adam", "lr": 0.01}),
    "private": lambda: classifier(
        privacy={"placement": "central", "noise": 0.5, "quantile": 0.5, "accountant": "rdp"}
    ),
    "local noise": lambda: classifier(
        privacy={"placement": "local", "noise": 0.5, "accountant": "rdp"}
    ),
    "finetune": lambda: classifier(method="fedavg_finetune"),
    "fedprox": lambda: classifier(method="fedprox"),
    "lg_fedavg": lambda: classifier(method="lg_fedavg", lg_fedavg={"warm": 1}),
    "fedrecon": lambda: classifier(method="fedrecon"),
    "fedevocab": lambda: classifier(method="fedevocab"),
    "local_only": lambda: classifier(method="local_only", local_only={"epochs": 2}),
    "centralised": lambda: classifier(method="centralised", centralised={"epochs": 2}),
    "word2vec": vectors,
    "word2vec fp32": lambda: vectors(word2vec=w2v(upload="fp32")),
    "word2vec fp16": lambda: vectors(word2vec=w2v(upload="fp16")),
    "word2vec fedsgd": lambda: vectors(
        word2vec=w2v(mode="fedsgd", rule="row_cap", steps=2, batch=64, shared=8)
    ),
    "word2vec openly": lambda: vectors(agreement={"minimum": 2, "hashed": False}),
    "word2vec union": lambda: vectors(agreement={"minimum": 2, "rule": "union"}),
    "word2vec private list": lambda: vectors(
        agreement={"rule": "dp", "epsilon": 20.0, "words_per_document": 10}
    ),
    "language": lambda: language(
        tokenizer_for_free={"switch": [1], "sample_words": 40, "sample_length": 8}
    ),
    "sketch": lambda: language(tokenizer=found("heavy_hitters")),
    "votes": lambda: language(
        "many", 400, tokenizer=found("heavy_hitters"),
        heavy_hitters={"by": "triehh", "epsilon": 40.0, "length": 4},
    ),
}  # fmt: skip


@cache
def scene(name: str) -> Assembly:
    return assemble(parse(SCENES[name]()))


def honest(name: str) -> Federation:
    return simulate(site_of(scene(name), Store(Path(tempfile.mkdtemp(dir=folder())))))


# --- lies -----------------------------------------------------------------------------------------

Lie = Callable[[Verb, Message, Message], Message]  # of a request and its honest reply


def lying(federation: Federation, liars: Sequence[ClientId], lie: Lie) -> Federation:
    def ask(verb: Verb, requests: Requests) -> Replies:
        for client, reply in federation.ask(verb, requests):
            yield client, lie(verb, requests[client], reply) if client in liars else reply

    return gated(Federation(federation.clients, ask, plain(ask)))


def last_state(name: str, federation: Federation) -> ServerState:
    server = scene(name).method.server(federation, derive(root(0), "server"), ServerState())
    return deque(server, maxlen=1).pop()


def wrong(case: Mapping[str, Any], reply: Message) -> Message:
    """The reply with what the case says is wrong with it."""
    gone = set(case.get("without", ()))
    arrays = {name: value for name, value in reply.arrays.items() if name not in gone}
    for name, about in case.get("arrays", {}).items():
        arrays[name] = _array(about, reply.arrays.get(about.get("like", name)))
    meta = {name: value for name, value in reply.meta.items() if name not in gone}
    blobs = {name: bytes.fromhex(data) for name, data in case.get("blobs", {}).items()}
    return Message(arrays, {**meta, **case.get("meta", {})}, {**reply.blobs, **blobs})


def _array(about: Mapping[str, Any], was: Tensor | None) -> Tensor:
    """As the case has it; what it does not say is as it was."""
    like = was if was is not None else torch.zeros(())
    n = len(like) if like.ndim else 1
    kind = getattr(torch, about["dtype"]) if "dtype" in about else like.dtype
    shape = [n if length == "n" else length for length in about.get("shape", like.shape)]
    if "fill" in about:
        fill = about["fill"]
        return torch.full(shape, float(fill) if isinstance(fill, str) else fill, dtype=kind)
    if math.prod(shape) == like.numel():
        return like.reshape(shape).to(kind)
    return torch.zeros(shape, dtype=kind)
