"""What hostile clients are tested with: tiny federations of all methods, replies of theirs with one
thing wrong, and a corpus of everything that was ever found (`tests/data/hostile.json`).
"""

import atexit
import json
import math
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexfed.core.seeds import derive, root
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.config import parse
from lexfed.federation import (
    Federation,
    Replies,
    Requests,
    ServerState,
    Sum,
    add_replies,
    gated,
    plain,
    robust,
)
from lexfed.federation.robust import rule_of
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.wire import ClientId, Message, Verb, flaw
from tests.conftest import BAD, GOOD, ROOT

CORPUS: list[dict[str, Any]] = json.loads((ROOT / "tests/data/hostile.json").read_text())
WORDS = "the cat sat on a mat while two dogs ran over hills and far away by river".split()  # noqa: SIM905

# --- tiny federations -----------------------------------------------------------------------------


@cache
def folder() -> Path:
    """Texts with labels, of organisations, of users; it stays as long as this process."""
    rng, path = np.random.default_rng(0), Path(tempfile.mkdtemp(prefix="lexfed-hostile-"))
    atexit.register(shutil.rmtree, path)
    tables = {
        "labelled": [
            {"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i}", "label": i % 2} for i in range(48)
        ],
        "sources": [
            {"text": " ".join(rng.choice(WORDS, 30)), "source": f"s{i % 6}"} for i in range(60)
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
            "name": f"{folder()}/sources.jsonl", "clients": 6, "partition": "source",
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
        agreement={"rule": "dp", "epsilon": 50.0, "words_per_document": 10}
    ),
    "word2vec trusting nobody": lambda: vectors(
        agreement={"minimum": 2, "trust": "nobody", "memory": 2}
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


def scene(name: str) -> Assembly:
    """Made anew each time: clients of one machine share what they hold."""
    return assemble(parse(SCENES[name]()))


def honest(assembly: Assembly) -> Federation:
    return simulate(site_of(assembly, Store(Path(tempfile.mkdtemp(dir=folder())))))


def last_state(assembly: Assembly, federation: Federation) -> ServerState:
    """To the end of the program, which must come; and scored as at the end of a run."""
    server = assembly.method.server(federation, derive(root(0), "server"), ServerState())
    state = deque(server, maxlen=1).pop()
    assert assembly.method.study is not None
    for last in (False, True):
        json.dumps(assembly.method.study.score(federation, state, last))
    return state


# --- what honest clients say ----------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    verb: Verb
    requests: Requests
    replies: Mapping[ClientId, Message]


@cache
def truth(name: str) -> tuple[list[Exchange], ServerState]:
    """Everything that is asked and answered, from the first ask to the last score; and where it
    ends.
    """
    heard: list[Exchange] = []
    assembly = scene(name)
    federation = honest(assembly)

    def ask(verb: Verb, requests: Requests) -> Replies:
        replies = dict(federation.ask(verb, requests))
        heard.append(Exchange(verb, requests, replies))
        return iter(replies.items())

    def total(verb: Verb, requests: Requests) -> Sum:
        return add_replies(verb, requests, ask(verb, requests))

    state = last_state(assembly, Federation(federation.clients, ask, total))
    assert not federation.refused, "honest clients are heard"
    return heard, state


def exchange(name: str, verb: str) -> Exchange:
    """The last one of this verb that anybody answered."""
    return [one for one in truth(name)[0] if one.verb.name == verb and one.replies][-1]


# --- lies -----------------------------------------------------------------------------------------

Lie = Callable[[Verb, Message, Message], Message]  # of a request and its honest reply


@dataclass
class Liars:
    """Some clients of a federation, who lie at every ask; and what came of it."""

    assembly: Assembly
    liars: frozenset[ClientId]
    lie: Lie
    lies: int = 0
    unsound: int = 0  # lies that the server must not take
    refused: Counter[str] = field(default_factory=Counter)

    def federation(self) -> Federation:
        federation, rule = honest(self.assembly), rule_of(self.assembly.config.aggregation)

        def ask(verb: Verb, requests: Requests) -> Replies:
            for client, reply in federation.ask(verb, requests):
                if client in self.liars:
                    yield from self._said(verb, client, requests[client], reply)
                else:
                    yield client, reply

        made = plain(ask) if rule is None else robust(ask, rule)

        def total(verb: Verb, requests: Requests) -> Sum:
            result = made(verb, requests)
            self.refused += result.refused
            return result

        return gated(Federation(federation.clients, ask, total))

    def _said(self, verb: Verb, client: ClientId, request: Message, reply: Message) -> Replies:
        """A lie; every fifth time twice, every seventh in the name of somebody else."""
        lie = self.lie(verb, request, reply)
        self.lies += 1
        self.unsound += flaw(verb, request, lie) is not None
        yield client, lie
        if self.lies % 5 == 0:
            self.unsound += 1
            yield client, reply
        if self.lies % 7 == 0:
            self.unsound += 1
            yield client + 10**6, reply


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


# --- one field of a reply, changed by chance ------------------------------------------------------

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 0.5, 1e38, -1e38, 1e300, 2.0**31, 2.0**62)
STRANGE = (-1, 0, 1, 2**31, 2**63, -(2**70), 0.5, math.nan, math.inf, "", "nan", "0", "x" * 1000)
NAMES = (
    "delta/", "delta/nowhere", "delta/nowhere#ids", "delta/nowhere#values", "weight#ids", "weight",
    "loss", "unclipped", "nodes", "model/x", "", "#", "delta/#ids", "words", "\n", "ids", "x" * 500,
)  # fmt: skip
BYTES = (b"", b"\xff", b"\x00", b"\n", b"\n\n", b"a b", "\u2028".encode(), b"x" * 5000)


def mutated(reply: Message, rng: np.random.Generator) -> Message:
    """One field of the reply another: its dtype, its shape, its numbers, its name, its place."""
    arrays, meta, blobs = dict(reply.arrays), dict(reply.meta), dict(reply.blobs)
    kinds = ["meta", "blobs", "extra"] + ["arrays"] * 7 * bool(arrays) + ["blobs"] * 3 * bool(blobs)
    kind = _one(rng, kinds)
    if kind == "arrays":
        name = _one(rng, list(arrays))
        changed = _one(rng, [_dtype, _shape, _shape, _numbers, _numbers, _numbers, _order])
        what = _one(rng, ["change"] * 7 + ["gone", "renamed", "swapped"])
        if what == "change":
            arrays[name] = changed(arrays[name], rng)
        elif what == "gone":
            del arrays[name]
        elif what == "renamed":
            arrays[_name(arrays, rng)] = arrays.pop(name)
        else:
            other = _one(rng, list(arrays))
            arrays[name], arrays[other] = arrays[other], arrays[name]
    elif kind == "extra":
        kinds_of = {True: list(arrays.values()), False: [torch.zeros(()), torch.ones(3)]}
        value = _one(rng, kinds_of[bool(arrays)])
        arrays[_name(arrays, rng)] = _one(rng, [_dtype, _shape, _numbers])(value, rng)
    elif kind == "meta":
        meta[_one(rng, [*meta, "version", "step", "x"])] = _one(rng, STRANGE)
    else:
        name = _one(rng, [*blobs, *blobs, *blobs, "words", "vote", "x"])
        data = blobs.pop(name, b"")
        cut = int(rng.integers(len(data) + 1))
        options = [*BYTES, data[:cut], data + data, data[:cut] + _one(rng, BYTES) + data[cut:]]
        blobs[name] = _one(rng, options)
    return Message(arrays, meta, blobs)


def _one(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def _name(arrays: Mapping[str, Tensor], rng: np.random.Generator) -> str:
    """A strange one, or one of another part of something that is there."""
    parts = ("ids", "values", "scale", "counts", "nodes", "fp16", "int8", "x")
    bases = [name.partition("#")[0] for name in arrays] or ["x"]
    return str(_one(rng, [*NAMES, *(f"{_one(rng, bases)}#{part}" for part in parts)]))


def _dtype(value: Tensor, rng: np.random.Generator) -> Tensor:
    return value.to(_one(rng, DTYPES))


def _shape(value: Tensor, rng: np.random.Generator) -> Tensor:
    n, last = (len(value), value.shape[-1]) if value.ndim else (1, 1)
    shapes = [
        (), (0,), (n,), (n, 0), (0, last), (n, 1), (1, n), (n + 1,), (n, last + 1), (n + 1, last),
        (n, last, 1), tuple(reversed(value.shape)), (*value.shape, 1), (1, *value.shape),
        value.shape[1:], (max(n - 1, 0), *value.shape[1:]),
    ]  # fmt: skip
    shape = _one(rng, shapes)
    size = math.prod(shape)
    numbers = value.reshape(-1)
    times = -(-size // max(len(numbers), 1))
    return (numbers.repeat(times)[:size] if len(numbers) else numbers.new_zeros(size)).reshape(
        shape
    )


def _numbers(value: Tensor, rng: np.random.Generator) -> Tensor:
    """Another number somewhere, or everywhere."""
    changed = value.clone().reshape(-1)
    places = (
        slice(None) if rng.random() < 0.5 or not len(changed) else int(rng.integers(len(changed)))
    )
    number = float(_one(rng, NUMBERS))
    if not value.is_floating_point():
        ends = (0, 1) if value.dtype == torch.bool else tuple(
            getattr(torch.iinfo(value.dtype), end) for end in ("min", "max")
        )  # fmt: skip
        number = int(min(max(number, ends[0]), ends[1])) if math.isfinite(number) else ends[1]
    changed[places] = torch.tensor(
        number, dtype=torch.float64 if value.is_floating_point() else torch.int64
    ).to(value.dtype)
    return changed.reshape(value.shape)


def _order(value: Tensor, rng: np.random.Generator) -> Tensor:
    if not value.ndim or not len(value):
        return value
    return _one(
        rng,
        [
            value.flip(0),
            value[torch.from_numpy(rng.permutation(len(value)))],
            value[:1].expand_as(value).clone(),
        ],
    )
