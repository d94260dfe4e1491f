"""Robust rules: what they compute, whom they withstand, and what they cost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params, Rows
from lexfed.core.seeds import root, torch_generator
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import parse
from lexfed.federation import Ask, Requests, Sum, Total, plain, robust
from lexfed.federation.robust import Aggregation, Rule, median, norm_bound, rule_of, trimmed_mean
from lexfed.learning.training_verbs import TRAIN
from lexfed.privacy.mechanism import Asked, NoPrivacy
from lexfed.wire import ClientId, Message, Meta, Verb, echoing, pack, size, under
from lexfed.wire.verbs import LARGEST_MOVE
from lexfed.word2vec.vector_verbs import SKIPGRAM

SHAPES = {"table": (7, 3), "bias": ()}
Replies = Mapping[ClientId, Message]


def asking(replies: Replies) -> Ask:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, request in requests.items():
            if client in replies:
                yield client, echoing(request, replies[client])

    return ask


ASKED = Message(meta={"step": 0, "ask": 0, "round": 0})


def total(made: Total, model: Params, clients: int, told: Mapping[str, Meta] = {}) -> Sum:
    request = Message(under("model", model), {**ASKED.meta, **told})
    return made(TRAIN, dict.fromkeys(range(clients), request))


def step(made: Total, model: Params, clients: int, told: Mapping[str, Meta] = {}) -> Params:
    """What the server adds to its model."""
    asked = Asked(range(clients), clients, clients, model)
    update = NoPrivacy().release(total(made, model, clients, told).update, asked, {}, b"")[0]
    return {name: value for name, value in update.items() if isinstance(value, Tensor)}


def reply(delta: Params, examples: int = 1, loss: float = 0.5) -> Message:
    return Message(pack(NoPrivacy().bound(delta, examples, loss, Message(), b"")))


def draw(
    clients: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES, seed: int = 0
) -> list[Params]:
    generator = torch_generator(root(seed))
    return [
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for _ in range(clients)
    ]


def replies_of(deltas: Sequence[Params], sizes: Sequence[int] | None = None) -> Replies:
    return {k: reply(delta, (sizes or [1] * len(deltas))[k]) for k, delta in enumerate(deltas)}


def model_of(shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Params:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


# --- exactness -----------------------------------------------------------------------------------


def slowly(values: list[float], share: float) -> float:
    """By definition: sort, cut at either end as long as something is left, average what is."""
    ordered = sorted(values)
    for _ in range(int(np.ceil(round(share * len(values), 6)))):
        ordered = ordered[1:-1] if len(ordered) > 2 else ordered
    return sum(ordered) / len(ordered)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4, 0.5])
@pytest.mark.parametrize("clients", [1, 2, 3, 5, 10, 11])
def test_trimmed_mean_and_median_equal_sorting_each_coordinate(clients: int, share: float) -> None:
    deltas, sizes = draw(clients), [3 + 7 * k for k in range(clients)]
    rule = median if share == 0.5 else trimmed_mean(share)
    moved = step(robust(asking(replies_of(deltas, sizes)), rule), model_of(), clients)
    assert moved.keys() == SHAPES.keys()
    for name, value in moved.items():
        assert value.shape == SHAPES[name]
        columns = np.stack(
            [delta[name].numpy().reshape(-1) for delta in deltas], 1
        )  # (coordinates, clients)
        expected = [slowly(column.tolist(), share) for column in columns]
        np.testing.assert_allclose(value.numpy().reshape(-1), expected, atol=1e-6)
        if share == 0.5:
            np.testing.assert_allclose(value.numpy().reshape(-1), np.median(columns, 1), atol=1e-6)


def test_a_table_of_many_pieces_is_one_table() -> None:
    shapes = {"table": (5000, 7)}  # more than two pieces, the last one short
    deltas = draw(5, shapes)
    moved = step(robust(asking(replies_of(deltas)), median), model_of(shapes), 5)["table"]
    np.testing.assert_array_equal(
        moved.numpy(), np.median([delta["table"].numpy() for delta in deltas], 0)
    )


def test_nothing_trimmed_is_the_mean_where_weights_are_equal_and_one_vote_each_where_not() -> None:
    deltas = draw(10)
    for sizes, same in (([20] * 10, True), ([1] * 9 + [1000], False)):
        ask = asking(replies_of(deltas, sizes))
        mean, trimmed = (
            step(made, model_of(), 10)["table"]
            for made in (plain(ask), robust(ask, trimmed_mean(0.0)))
        )
        assert torch.allclose(mean, trimmed, atol=1e-6) == same
        assert torch.allclose(
            trimmed, torch.stack([delta["table"] for delta in deltas]).mean(0), atol=1e-6
        )


def test_thirty_clients_lose_three_at_either_end_whatever_floats_say() -> None:
    values = [float(k) for k in range(29)] + [1e6]
    deltas = [{"x": torch.tensor(value)} for value in values]
    moved = step(robust(asking(replies_of(deltas)), trimmed_mean(0.1)), {"x": torch.zeros(())}, 30)
    assert moved["x"].item() == pytest.approx(np.mean(values[3:27]))


@pytest.mark.parametrize("limit", [0.5, 3.0, 1e6])
def test_the_norm_bound_equals_clipping_one_by_one(limit: float) -> None:
    deltas = [
        {name: value * (k + 1) / 4 for name, value in delta.items()}
        for k, delta in enumerate(draw(6))
    ]
    moved = step(
        robust(asking(replies_of(deltas, [5, 1, 9, 2, 2, 40])), norm_bound(limit)), model_of(), 6
    )
    clipped = []
    for delta in deltas:
        flat = np.concatenate([delta[name].numpy().reshape(-1) for name in SHAPES])
        clipped.append(flat * min(1.0, limit / np.linalg.norm(flat)))
    mine = np.concatenate([moved[name].numpy().reshape(-1) for name in SHAPES])
    np.testing.assert_allclose(mine, np.mean(clipped, 0), atol=1e-5)
    assert np.linalg.norm(mine) <= limit * (1 + 1e-6)


RULES: Mapping[str, Rule] = {
    "trimmed mean": trimmed_mean(0.2),
    "median": median,
    "norm bound": norm_bound(2.0),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_sum_counts_what_came(rule: Rule) -> None:
    """Cohorts of one and of nobody, and drop-outs, go the way they go in a sum."""
    replies = replies_of(draw(8))
    kept = {client: replies[client] for client in (0, 3, 4)}
    for said in (kept, {5: replies[5]}, {}):
        mine, sums = (
            total(made, model_of(), 8) for made in (robust(asking(said), rule), plain(asking(said)))
        )
        assert (
            (mine.clients, mine.bytes_up)
            == (sums.clients, sums.bytes_up)
            == (len(said), sum(size(echoing(ASKED, said[k])) for k in said))
        )
        assert mine.update.keys() == sums.update.keys()
        if said:
            figures = {
                name: value.item()
                for name, value in mine.update.items()
                if name in ("loss", "weight")
            }  # type: ignore[union-attr]
            assert figures["loss"] / figures["weight"] == pytest.approx(0.5)
        else:
            assert step(robust(asking(said), rule), model_of(), 8) == {}
    alone = step(
        robust(asking({5: reply({"x": torch.tensor(1.5)}, 7)}), rule), {"x": torch.zeros(())}, 8
    )
    assert alone["x"].item() == pytest.approx(1.5)


# --- who lies ------------------------------------------------------------------------------------


def lied(liars: int, clients: int, sizes: Sequence[float], seed: int) -> list[Params]:
    """Honest clients, then liars who send these numbers in turn."""
    deltas = draw(clients, seed=seed)
    for k in range(liars):
        deltas[clients - 1 - k] = {
            name: torch.full_like(v, sizes[(seed + k) % len(sizes)])
            for name, v in deltas[0].items()
        }
    return deltas


def outside(rule: Rule, deltas: Sequence[Params], honest: int) -> bool:
    """Whether a coordinate leaves the honest clients' range."""
    good = torch.stack([delta["table"] for delta in deltas[:honest]])
    moved = step(robust(asking(replies_of(deltas)), rule), model_of(), len(deltas))["table"]
    return bool(((moved < good.amin(0)) | (moved > good.amax(0)) | ~moved.isfinite()).any())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("rule", "cut"), [(trimmed_mean(0.1), 2), (trimmed_mean(0.27), 3), (median, 5)]
)
def test_as_many_liars_as_are_cut_stay_among_the_honest_and_one_more_does_not(
    rule: Rule, cut: int, seed: int
) -> None:
    most = LARGEST_MOVE  # what is larger is not heard at all
    for sizes in ([1e3], [-most], [1e3, -1e3, most / 10, -most]):
        assert not outside(rule, lied(cut, 11, sizes, seed), 11 - cut)
    for sizes in ([1e3], [-most]):  # of one mind
        assert outside(rule, lied(cut + 1, 11, sizes, seed), 10 - cut)


def test_rounding_up_keeps_a_liar_out_when_a_client_drops_out() -> None:
    """Two liars of ten, a fifth is cut: when one honest client is missing, two are cut still."""
    deltas = [{"x": torch.tensor(value)} for value in [0.0] * 8 + [1e6] * 2]
    said = {client: message for client, message in replies_of(deltas).items() if client != 3}
    assert (
        step(robust(asking(said), trimmed_mean(0.2)), {"x": torch.zeros(())}, 10)["x"].item() == 0.0
    )
    assert (
        step(robust(asking(said), trimmed_mean(0.1)), {"x": torch.zeros(())}, 10)["x"].item() > 1e5
    )


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_weight_that_is_claimed_buys_the_mean_and_no_robust_rule(rule: Rule) -> None:
    """Nine clients move by 1; the tenth moves by -1 and says that it has the most texts that count,
    or more than that: then nobody hears it.
    """
    deltas, model = [{"x": torch.tensor(1.0)}] * 9 + [{"x": torch.tensor(-1.0)}], torch.zeros(())
    honest, told = replies_of(deltas, [10] * 10), NoPrivacy().tell({})
    for claimed, mean in ((10_000, -0.98), (1_000_000, 1.0)):
        lie = NoPrivacy(most=claimed).bound(deltas[9], claimed, 0.5, Message(), b"")
        ask = asking({**honest, 9: Message(pack(lie))})
        assert step(plain(ask), {"x": model}, 10, told)["x"].item() == pytest.approx(mean, abs=0.01)
        assert step(robust(ask, rule), {"x": model}, 10, told)["x"].item() >= 0.8


def test_the_norm_bound_lets_a_liar_move_the_model_by_its_share_of_the_bound_alone() -> None:
    model, honest = model_of(), draw(9)
    for size_ in (1.0, 1e3, LARGEST_MOVE):
        lie = {name: torch.full_like(value, size_) for name, value in model.items()}
        moved = step(robust(asking(replies_of([*honest, lie])), norm_bound(2.0)), model, 10)
        without = step(robust(asking(replies_of([*honest, model])), norm_bound(2.0)), model, 10)
        apart = math.sqrt(
            sum(float((moved[name] - without[name]).square().sum()) for name in model)
        )
        assert apart == pytest.approx(2.0 / 10, rel=1e-3)


GOOD = NoPrivacy().bound({"x": torch.zeros(2)}, 3, 0.5, Message(), b"")
BAD: Mapping[str, Params] = {
    "no number": {"delta/x": torch.tensor([0.0, math.nan])},
    "infinite": {"delta/x": torch.tensor([math.inf, 0.0])},
    "a loss that is none": {"loss": torch.tensor(math.nan)},
    "a weight that is none": {"weight": torch.tensor(math.nan)},
    "no text": {"weight": torch.tensor(0.0)},
    "less than no text": {"weight": torch.tensor(-5.0)},
    "a weight to divide by": {"weight": torch.tensor(1e-40)},
    "twice as wide": {"delta/x": torch.zeros(2, dtype=torch.float64)},
    "complex": {"delta/x": torch.zeros(2, dtype=torch.complex64)},
    "whole": {"delta/x": torch.zeros(2, dtype=torch.int64)},
    "steps whose scale is no number": {
        "delta/x#int8": torch.ones(2, dtype=torch.int8),
        "delta/x#scale": torch.tensor([math.nan]),
    },
    "steps whose scale makes them another shape": {
        "delta/x#int8": torch.ones(2, dtype=torch.int8),
        "delta/x#scale": torch.ones(4, 1),
    },
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("case", BAD)
def test_who_sends_what_can_not_be_compared_has_dropped_out(case: str, rule: Rule) -> None:
    arrays = {name: value for name, value in GOOD.items() if isinstance(value, Tensor)}
    entry = {name.partition("#")[0] for name in BAD[case]}
    bad = Message(
        {**{name: value for name, value in arrays.items() if name not in entry}, **BAD[case]}
    )
    honest = {k: reply({"x": torch.tensor([1.0, -1.0])}) for k in range(3)}
    made = robust(asking({**honest, 3: bad}), rule)
    assert total(made, {"x": torch.zeros(2)}, 4).clients == 3
    assert torch.equal(step(made, {"x": torch.zeros(2)}, 4)["x"], torch.tensor([1.0, -1.0]))
    no_weight = Message({name: value for name, value in arrays.items() if name != "weight"})
    assert (
        total(robust(asking({**honest, 3: no_weight}), rule), {"x": torch.zeros(2)}, 4).clients == 3
    )
    assert (
        total(
            robust(asking({**honest, 3: Message(arrays)}), rule), {"x": torch.zeros(2)}, 4
        ).clients
        == 4
    )


def test_what_a_client_leaves_out_it_says_is_zero() -> None:
    model = {"x": torch.zeros(2), "y": torch.zeros(())}
    said = {
        0: reply({"x": torch.ones(2), "y": torch.tensor(2.0)}),
        1: reply({"x": torch.ones(2)}),
        2: reply({}),
    }
    moved = step(robust(asking(said), median), model, 3)
    assert torch.equal(moved["x"], torch.ones(2))
    assert moved["y"].item() == 0.0


# --- what it costs -------------------------------------------------------------------------------


def test_a_row_that_few_hold_rests_under_rules_that_cut_and_moves_under_those_that_do_not() -> None:
    """Ten clients; row k is a word that k + 1 of them have, each of whom moves it by 1."""
    table = {"table": torch.zeros(10, 4)}
    deltas = [
        {"table": torch.ones(10, 4) * (torch.arange(10) >= client)[:, None]} for client in range(10)
    ]
    ask = asking(replies_of(deltas))

    def rows(made: Total) -> list[int]:
        """How many clients hold the words whose rows move."""
        return [
            k + 1 for k, row in enumerate(step(made, table, 10)["table"]) if bool((row != 0).any())
        ]

    assert rows(plain(ask)) == rows(robust(ask, norm_bound(1.0))) == list(range(1, 11))
    assert rows(robust(ask, trimmed_mean(0.2))) == list(range(3, 11))
    assert rows(robust(ask, median)) == list(range(5, 11))


def test_rows_are_refused_where_they_are_asked_for_and_unheard_where_not() -> None:
    """An honest client sends rows because the method is about rows; nobody can stop a run by
    sending them unasked.
    """
    rows = Message(
        pack({"delta/x": Rows(torch.tensor([0]), torch.ones(1, 2)), "weight": torch.tensor(1.0)})
    )
    request = Message(meta={"step": 0, "ask": 0, "round": 0, "rows": 3, "width": 2})
    with pytest.raises(ConfigError, match="no median"):
        robust(asking({0: rows}), median)(SKIPGRAM, {0: request})
    said = {0: rows, **{k: reply({"x": torch.ones(3, 2)}) for k in (1, 2)}}
    assert total(robust(asking(said), median), {"x": torch.zeros(3, 2)}, 3).clients == 2


# --- the table -----------------------------------------------------------------------------------


def test_the_mean_is_no_rule_and_the_others_are() -> None:
    assert rule_of(Aggregation()) is None
    for name in ("trimmed_mean", "median", "norm_bound"):
        rule = rule_of(replace(Aggregation(), rule=name))
        assert rule is not None
        assert rule(iter(())) == {}


NOISY = {"privacy": {"placement": "central", "noise": 1.0}, "cohort": {"sampling": "poisson"}}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"aggregation": {"trim": 0.5}}, "below 0.5"),
        ({"aggregation": {"trim": -0.1}}, "at least 0"),
        ({"aggregation": {"norm": 0.0}}, "aggregation.norm must be above 0"),
        ({"aggregation": {"most_texts": 0}}, "aggregation.most_texts must be at least 1"),
        ({"aggregation": {"rule": "medain"}}, "did you mean 'median'?"),
        ({"aggregation": {"rule": "median"}, **NOISY}, "noise is made for a sum"),
        ({"aggregation": {"rule": "norm_bound"}, "method": "federated_word2vec"}, "travel as rows"),
    ],
)
def test_what_does_not_fit_is_refused(table: dict[str, object], message: str) -> None:
    small = {"data": {"limit": 200}, **table}
    with pytest.raises(ConfigError, match=message):
        assemble(parse(small))
    assemble(parse({**small, "aggregation": {}}))
