"""Laws: split and join, encode and decode, sums in blocks, rows."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexfed.core.errors import WireError
from lexfed.core.params import ParameterSplit, Rows, add_all, squared_length, union
from lexfed.federation import Requests, Sum, blocks, plain
from lexfed.learning.training_verbs import TRAIN
from lexfed.wire import ClientId, Message, Precision, Verb, decode, encode, pack, size, unpack

NAMES = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=8).filter(
    lambda n: n != "__metadata__"
)
DTYPES = st.sampled_from(
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.int8,
        torch.bool,
    ]
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    return (torch.rand(shape) * 100).to(draw(DTYPES))


METAS = st.dictionaries(
    NAMES, st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False), NAMES), max_size=4
)
MESSAGES = st.builds(
    Message,
    st.dictionaries(NAMES.filter(lambda n: not n.startswith("blob:")), tensors(), max_size=4),
    METAS,
    st.dictionaries(NAMES, st.binary(max_size=20), max_size=3),
)


@given(MESSAGES)
def test_a_message_survives_its_bytes(message: Message) -> None:
    data = encode(message)
    back = decode(data)
    assert len(data) == size(message) == size(back)
    assert back.meta == message.meta
    assert back.blobs == message.blobs
    assert back.arrays.keys() == message.arrays.keys()
    for name, value in message.arrays.items():
        assert back.arrays[name].dtype == value.dtype
        assert torch.equal(back.arrays[name], value)


@given(MESSAGES, st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_message_is_refused_or_read_but_never_crashes(
    message: Message, place: int, byte: int
) -> None:
    data = bytearray(encode(message))
    data[place % len(data)] = byte
    with contextlib.suppress(WireError):
        decode(bytes(data))


@given(st.dictionaries(NAMES, tensors(), max_size=6), st.sets(NAMES))
def test_join_undoes_split(params: dict[str, Tensor], private: set[str]) -> None:
    split = ParameterSplit(lambda name: name in private or hash(name) % 2 == 0)
    shared, kept = split.shared(params), split.private(params)
    assert not shared.keys() & kept.keys()
    joined = split.join(shared, kept)
    assert joined.keys() == params.keys()
    assert all(joined[name] is params[name] for name in params)


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    ids = sorted(draw(st.sets(st.integers(0, 30), max_size=8)))
    return Rows(torch.tensor(ids, dtype=torch.int64), torch.randint(-9, 9, (len(ids), 3)).float())


def dense(r: Rows) -> Tensor:
    table = torch.zeros(31, 3)
    table[r.ids] = r.values
    return table


@given(rows(), rows())
def test_adding_rows_is_adding_tables(left: Rows, right: Rows) -> None:
    both = left + right
    assert torch.equal(dense(both), dense(left) + dense(right))
    assert both.ids.tolist() == sorted(set(left.ids.tolist()) | set(right.ids.tolist()))


@given(st.lists(rows(), min_size=1, max_size=5))
def test_a_union_counts_moves_and_nodes(parts: list[Rows]) -> None:
    counted = [replace(part, counts=part.ids + 1) for part in parts]
    whole = union(counted)
    nodes = {i: sum(i in part.ids.tolist() for part in parts) for i in whole.ids.tolist()}
    assert (whole.nodes.tolist() if whole.nodes is not None else [1] * len(whole.ids)) == list(
        nodes.values()
    )
    assert whole.counts is not None
    assert whole.counts.tolist() == [n * (i + 1) for i, n in nodes.items()]


@given(rows(), st.sampled_from(["fp16", "int8"]))
def test_rounded_rows_are_near_and_survive_the_wire(r: Rows, precision: Precision) -> None:
    counted = replace(r, counts=r.ids + 2)
    back = unpack(
        decode(encode(Message(pack({"delta/t": counted}, precision, torch.Generator())))).arrays
    )["delta/t"]
    assert isinstance(back, Rows)
    assert torch.equal(back.ids, r.ids)
    assert back.counts is not None
    assert back.counts.tolist() == (r.ids + 2).tolist()
    largest = r.values.abs().amax(1, keepdim=True) if len(r.ids) else torch.zeros(0, 1)
    assert bool(
        (dense(union([back, back])) / 2 - dense(r)).abs().max()
        <= (largest.max() / 127 + 1e-6 if len(r.ids) else 0)
    )


def test_rounding_rows_is_right_in_the_mean() -> None:
    values = torch.tensor([[0.3, -1.0, 0.012, 0.0]])
    total = torch.zeros(1, 4)
    for draw in range(4000):
        packed = pack(
            {"t": Rows(torch.tensor([0]), values)}, "int8", torch.Generator().manual_seed(draw)
        )
        total += packed["t#values"].float() * packed["t#scale"]
    assert torch.allclose(total / 4000, values, atol=4 * (1 / 127) / 2 / 4000**0.5)


@given(rows(), tensors())
def test_an_update_survives_packing(r: Rows, tensor: Tensor) -> None:
    back = unpack(pack({"delta/table": r, "weight": tensor}))
    assert isinstance(back["delta/table"], Rows)
    assert torch.equal(dense(back["delta/table"]), dense(r))
    assert back["weight"] is tensor


@given(st.integers(0, 2000))
def test_blocks_part_the_cohort(n: int) -> None:
    cohort = list(range(n))
    parts = blocks(cohort)
    assert [c for part in parts for c in part] == cohort
    assert len(parts) <= 16
    assert len({len(part) for part in parts[:-1]}) <= 1


@settings(max_examples=30)
@given(st.integers(0, 60), st.sets(st.integers(0, 60)))
def test_a_sum_in_blocks_is_the_sum_of_who_answered(n: int, dropped: set[int]) -> None:
    values = {client: torch.rand(3, dtype=torch.float64) for client in range(n)}

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client in requests:
            if client not in dropped:
                yield client, Message({"delta/x": values[client], "weight": torch.tensor(1.0)})

    message = Message({"model/x": torch.zeros(3, dtype=torch.float64)})
    total = plain(ask)(TRAIN, dict.fromkeys(range(n), message))
    here = [values[c] for c in range(n) if c not in dropped]
    assert total.clients == len(here)
    if here:
        assert np.allclose(total.update["delta/x"], torch.stack(here).sum(0))
        assert total.bytes_up == len(here) * size(
            Message({"delta/x": here[0], "weight": torch.tensor(1.0)})
        )
    else:
        assert total == Sum()


def test_the_order_of_a_sum_is_part_of_it() -> None:
    """Why blocks are fixed: floating-point addition does not associate."""
    big, small = {"x": torch.tensor(1e8)}, {"x": torch.tensor(1.0)}
    assert not math.isclose(add_all([big, small, {"x": -big["x"]}])["x"].item(), 1.0)
    assert math.isclose(add_all([big, {"x": -big["x"]}, small])["x"].item(), 1.0)


@settings(max_examples=30)
@given(st.sampled_from(["fp16", "int8"]), st.integers(0, 5))
def test_fewer_bits_are_right_in_the_mean(precision: Precision, seed: int) -> None:
    value = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed - 3)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.stack([decoded(value, precision, generator) for _ in range(2000)])
    step = (
        value.abs().amax(-1, keepdim=True) / 127
        if precision == "int8"
        else value.abs().clamp_min(6e-5) * 2**-10
    )
    assert ((draws - value).abs() <= 1.001 * step).all(), "never more than one step away"
    assert ((draws.mean(0) - value).abs() <= 5 * step / 2000**0.5).all(), "unbiased"
    plain, packed = (
        size(Message(pack({"delta/x": value.repeat(1, 50)}, p, generator)))
        for p in ("fp32", precision)
    )
    assert plain > {"fp16": 1.8, "int8": 3.0}[precision] * packed


def decoded(value: Tensor, precision: Precision, generator: torch.Generator) -> Tensor:
    back = unpack(pack({"delta/x": value}, precision, generator))["delta/x"]
    assert isinstance(back, Tensor)
    return back


@pytest.mark.parametrize("shape", [(), (5,), (300, 7), (3, 9000), (0, 4), (2, 3, 4)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64])
def test_a_squared_length_is_that_of_doubles(shape: tuple[int, ...], kind: torch.dtype) -> None:
    value = (100 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(kind)
    assert squared_length(value) == pytest.approx(float(value.double().square().sum()), rel=1e-6)


def test_a_sum_leaves_what_was_added_as_it_was() -> None:
    """From the second on it is made in place: in a place of its own."""
    parts = [{"a": torch.full((2,), float(i)), "b": torch.tensor(i)} for i in range(4)]
    kept = [{name: value.clone() for name, value in part.items()} for part in parts]
    for count in (1, 2, 4):
        total = add_all(parts[:count])
        assert torch.equal(cast(Tensor, total["a"]), torch.full((2,), float(sum(range(count)))))
        assert torch.equal(cast(Tensor, total["b"]), torch.tensor(sum(range(count))))
    for part, before in zip(parts, kept, strict=True):
        assert all(torch.equal(part[name], before[name]) for name in part)
