"""Language models against their equations, token by token; sampling against the softmax, by chance
with stated bounds.
"""

import math
from collections import Counter
from collections.abc import Callable
from itertools import islice

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lexfed.core.errors import ConfigError, WireError
from lexfed.core.params import Params, count
from lexfed.core.seeds import derive, root, torch_generator
from lexfed.corpus.catalogue import load
from lexfed.models import language_model, next_token
from lexfed.models.language_model import (
    BIAS,
    EMBEDDING,
    OUTPUT,
    TOKEN_ROWS,
    LanguageModel,
    LanguageModelOptions,
    TokenBatch,
    _draw,
    batches,
    build,
    pad,
    sample,
    score,
    windows,
)
from lexfed.vocabulary.splitting import words

PAD, BOS, EOS = 0, 1, 2
VOCAB = 13
KINDS = ["lstm", "transformer"]
NOISE = {
    "lstm": 0.7,
    "transformer": 0.3,
}  # the norm before its output makes a transformer the surer of the two
PIECES = [[1, 5, 3, 9, 2], [1, 2], [1, 7, 7, 12, 4, 6, 2]]


def options(
    name: str, tied: bool = True, dropout: float = 0.0, width: int = 8, context: int = 8
) -> LanguageModelOptions:
    return LanguageModelOptions(name, 2, width, 2, dropout, tied, context)  # type: ignore[arg-type]


def tiny(name: str, tied: bool = True, dropout: float = 0.0) -> tuple[LanguageModel, Params]:
    """Its parameters are made larger and none is zero: no chance is near another, and no bias
    can be forgotten.
    """
    model = build(options(name, tied, dropout))
    fresh = model.init(VOCAB, root(0))
    noise = {
        n: torch.randn(v.shape, generator=torch_generator(derive(root(1), n)))
        for n, v in fresh.items()
    }
    return model, {n: value + NOISE[name] * noise[n] for n, value in fresh.items()}


def sequence(length: int, seed: int = 0) -> list[int]:
    middle = torch.randint(3, VOCAB, (length - 2,), generator=torch_generator(root(seed))).tolist()
    return [BOS, *middle, EOS]


# --- the slow way --------------------------------------------------------------------------------


def slow_lstm(params: Params, ids: list[int]) -> Tensor:
    """The gates, token by token and layer by layer. (T, d)"""
    layers = sum("weight_hh" in name for name in params)
    h = c = [torch.zeros(params[EMBEDDING].shape[1])] * layers
    states = []
    for token in ids:
        x, h, c = params[EMBEDDING][token], list(h), list(c)
        for n in range(layers):
            gates = params[f"lstm.weight_ih_l{n}"] @ x + params[f"lstm.bias_ih_l{n}"]
            gates = gates + params[f"lstm.weight_hh_l{n}"] @ h[n] + params[f"lstm.bias_hh_l{n}"]
            i, f, g, o = gates.chunk(4)
            c[n] = f.sigmoid() * c[n] + i.sigmoid() * g.tanh()
            x = h[n] = o.sigmoid() * c[n].tanh()
        states.append(x)
    return torch.stack(states)


def slow_transformer(params: Params, ids: list[int], heads: int = 2) -> Tensor:
    """Attention as a loop over positions and heads. (T, d)"""

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean()
        return (
            centred / (centred.square().mean() + 1e-5).sqrt() * params[f"{name}.weight"]
            + params[f"{name}.bias"]
        )

    def linear(name: str, x: Tensor) -> Tensor:
        return params[f"{name}.weight"] @ x + params[f"{name}.bias"]

    xs = [params[EMBEDDING][token] + params["positions.weight"][at] for at, token in enumerate(ids)]
    for n in range(sum("attend.weight" in name for name in params)):
        qkv = [
            linear(f"layers.{n}.attend", norm(f"layers.{n}.norm1", x)).reshape(3, heads, -1)
            for x in xs
        ]
        for at, x in enumerate(xs):
            answers = []
            for head in range(heads):
                keys, values = (
                    torch.stack([row[which, head] for row in qkv[: at + 1]]) for which in (1, 2)
                )
                chances = torch.softmax(keys @ qkv[at][0, head] / math.sqrt(keys.shape[1]), 0)
                answers.append(chances @ values)
            x = x + linear(f"layers.{n}.project", torch.cat(answers))
            inside = linear(f"layers.{n}.expand", norm(f"layers.{n}.norm2", x))
            gelu = inside * 0.5 * (1 + torch.erf(inside / math.sqrt(2)))
            xs[at] = x + linear(f"layers.{n}.contract", gelu)
    return torch.stack([norm("norm", x) for x in xs])


SLOW: dict[str, Callable[[Params, list[int]], Tensor]] = {
    "lstm": slow_lstm,
    "transformer": slow_transformer,
}


def log_chances(params: Params, hidden: Tensor) -> Tensor:  # (..., V)
    return torch.log_softmax(hidden @ params.get(OUTPUT, params[EMBEDDING]).T + params[BIAS], -1)


def plain_loss(model: LanguageModel, params: Params, batch: TokenBatch) -> Tensor:
    """All logits at once, and torch's own cross entropy and gradients."""
    hidden = model.hidden(params, batch.ids[:, :-1], None)
    real = torch.arange(hidden.shape[1]) < batch.lengths[:, None] - 1
    return F.nll_loss(log_chances(params, hidden)[real], batch.ids[:, 1:][real])


# --- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen",
    [LanguageModelOptions(), LanguageModelOptions("transformer", layers=6, width=376)],
    ids=lambda o: o.name,
)
def test_the_papers_models_have_14_million_parameters(chosen: LanguageModelOptions) -> None:
    params = build(chosen).init(10_000, root(0))
    assert count(params) == pytest.approx(14e6, rel=0.01)
    assert OUTPUT not in params


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_the_vocabulary_moves_only_its_own_rows(name: str, tied: bool) -> None:
    model = build(options(name, tied))
    small, large = model.init(11, root(0)), model.init(23, root(0))
    rows = [n for n in small if n in TOKEN_ROWS]
    assert set(rows) == set(TOKEN_ROWS) - ({OUTPUT} if tied else set())
    assert all(len(small[n]) == 11 and len(large[n]) == 23 for n in rows)
    assert all(torch.equal(small[n], large[n]) for n in small if n not in TOKEN_ROWS)
    other = model.init(11, root(1))
    assert not any(torch.equal(small[n], other[n]) for n in small if small[n].ndim == 2), (
        "the pair: a seed moves them all"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": 0},
        {"width": 0},
        {"heads": 0},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"context": 1},
        {"name": "transformer", "width": 10, "heads": 4},
    ],
)
def test_options_that_cannot_be_meant_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="language_model"):
        LanguageModelOptions(**wrong)  # type: ignore[arg-type]
    LanguageModelOptions("lstm", width=10, heads=4)  # an LSTM has no heads


# --- training ------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=5), st.integers(2, 9))
def test_every_token_but_the_first_is_a_target_once(
    sequences: list[list[int]], context: int
) -> None:
    pieces = windows(sequences, context)
    assert all(2 <= len(piece) <= context + 1 for piece in pieces)
    assert [token for piece in pieces for token in piece[1:]] == [
        token for one in sequences for token in one[1:]
    ]
    befores = [before for one in sequences for before in one[:-1]]
    assert [token for piece in pieces for token in piece[:-1]] == befores, (
        "and each is read right before its successor"
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_loss_is_the_mean_over_tokens_one_by_one(name: str, tied: bool) -> None:
    model, params = tiny(name, tied)
    expected = []
    for piece in PIECES:
        chances = log_chances(params, SLOW[name](params, piece[:-1]))
        expected += [-float(chances[at, token]) for at, token in enumerate(piece[1:])]
    assert float(model.loss(params, pad(PIECES), None)) == pytest.approx(
        sum(expected) / len(expected), rel=1e-5
    )
    assert max(expected) - min(expected) > 1, "or any mean would do"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_of_plain_autograd(name: str, tied: bool, frozen: bool) -> None:
    model, params = tiny(name, tied)
    batch = pad(
        [sequence(9, seed) for seed in range(80)] + PIECES
    )  # 651 targets: three chunks of logits
    kept = {n: n not in (EMBEDDING, OUTPUT) or not frozen for n in params}
    ours, plain = (
        {n: v.clone().requires_grad_(kept[n]) for n, v in params.items()} for _ in range(2)
    )
    loss, expected = model.loss(ours, batch, None), plain_loss(model, plain, batch)
    torch.testing.assert_close(loss, expected)
    (3 * loss).backward()  # type: ignore[no-untyped-call]
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    for n in params:
        if kept[n]:
            torch.testing.assert_close(ours[n].grad, plain[n].grad, rtol=1e-4, atol=1e-5, msg=n)
        else:
            assert ours[n].grad is None


@pytest.mark.parametrize("dropped", [0.0, 0.5])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_the_gradient_that_training_asks_for_is_that_of_the_loss(
    name: str, tied: bool, frozen: bool, dropped: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_token, "_SMALL", 0)
    model, params = tiny(name, tied, dropout=dropped)
    begun_alike = [[token, *sequence(6, token)] for token in (5, 7, 5, 5, 7, 9)]
    batch = pad([sequence(9, seed) for seed in range(40)] + PIECES + begun_alike + [[3], [5, 4]])
    leaves = {
        n: v.clone().requires_grad_(not frozen or n not in (EMBEDDING, OUTPUT))
        for n, v in params.items()
    }
    loss = model.loss(leaves, batch, root(3))
    loss.backward()  # type: ignore[no-untyped-call]
    ours, gradient = model.gradient(leaves, batch, root(3))  # type: ignore[attr-defined]
    assert ours == pytest.approx(loss.item(), rel=1e-5)
    assert gradient.keys() == {n for n, leaf in leaves.items() if leaf.requires_grad}
    for n, found in gradient.items():
        assert not found.requires_grad
        torch.testing.assert_close(found, leaves[n].grad, rtol=1e-4, atol=1e-6, msg=n)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("small", [0, 10**9])
def test_many_windows_that_begin_alike_and_windows_of_one_target(
    name: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More first states than a chunk of logits holds; and batches that hold nothing else."""
    monkeypatch.setattr(next_token, "_SMALL", small)
    model, params = tiny(name)
    leaves = {n: v.clone().requires_grad_() for n, v in params.items()}
    starts = [[token % VOCAB, (3 * token) % VOCAB] for token in range(700)]
    for batch in (pad(starts), pad([one + one for one in starts])):
        expected = torch.autograd.grad(plain_loss(model, leaves, batch), list(leaves.values()))
        _, gradient = model.gradient(leaves, batch, root(3))  # type: ignore[attr-defined]
        for n, right in zip(leaves, expected, strict=True):
            torch.testing.assert_close(gradient[n], right, rtol=1e-4, atol=1e-6, msg=n)


WRONG = {
    "a short bias": {BIAS: torch.zeros(5)},
    "a bias of two dimensions": {BIAS: torch.zeros(VOCAB, 1)},
    "an output of few rows": {OUTPUT: torch.zeros(2, 8)},
    "a narrow output": {OUTPUT: torch.zeros(VOCAB, 1)},
    "a wide output": {OUTPUT: torch.zeros(VOCAB, 4000)},
    "no rows at all": {OUTPUT: torch.zeros(0, 8), BIAS: torch.zeros(0)},
    "another precision": {BIAS: torch.zeros(VOCAB, dtype=torch.float64)},
    "a narrow embedding": {EMBEDDING: torch.zeros(VOCAB, 2)},
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", KINDS)
def test_parameters_that_do_not_fit_are_refused(name: str, case: str) -> None:
    """They come from a server that nobody trusts; a compiled loop would write where they end."""
    model, params = tiny(name, tied=False)
    leaves = {n: v.clone().requires_grad_() for n, v in (params | WRONG[case]).items()}
    for asked in (model.gradient, lambda *given: model.loss(*given).backward()):  # type: ignore[attr-defined]
        with pytest.raises((WireError, RuntimeError)):
            asked(leaves, pad(PIECES), root(0))


def test_layers_above_the_first_read_states() -> None:
    """Of a narrow embedding the first layer alone could be narrow too."""
    model = language_model.build(LanguageModelOptions(name="lstm", layers=2, width=8))
    params = dict(model.init(VOCAB, root(0)))
    params[EMBEDDING] = torch.zeros(VOCAB, 2)
    for layer in (0, 1):
        params[f"lstm.weight_ih_l{layer}"] = torch.zeros(32, 2)
    with pytest.raises(WireError, match="weight_ih_l1"):
        model.hidden(params, pad(PIECES).ids, None)


@pytest.mark.parametrize("token", [-5, VOCAB, 10**7])
def test_tokens_beyond_the_vocabulary_are_refused(token: int) -> None:
    model, params = tiny("lstm")
    leaves = {n: v.clone().requires_grad_() for n, v in params.items()}
    with pytest.raises((WireError, IndexError)):
        model.gradient(leaves, pad([[1, 2, 3], [1, 2, token]]), root(0))  # type: ignore[attr-defined]


def test_a_table_that_lies_otherwise_has_the_same_gradient() -> None:
    model, params = tiny("lstm", tied=False)
    turned = params | {OUTPUT: params[OUTPUT].t().contiguous().t()}
    one, other = (
        model.gradient({n: v.clone().requires_grad_() for n, v in p.items()}, pad(PIECES), root(0))  # type: ignore[attr-defined]
        for p in (params, turned)
    )
    torch.testing.assert_close(one[1][OUTPUT], other[1][OUTPUT])


@pytest.mark.parametrize("name", KINDS)
def test_padding_does_not_change_the_loss(name: str) -> None:
    model, params = tiny(name)
    batch = pad(PIECES)
    noise = batch.ids.clone()
    for row, length in enumerate(batch.lengths.tolist()):
        noise[row, length:] = 9
    wider = torch.cat([noise, torch.full((3, 1), 4)], 1)
    loss = model.loss(params, batch, None)
    assert torch.equal(model.loss(params, TokenBatch(noise, batch.lengths), None), loss)
    torch.testing.assert_close(model.loss(params, TokenBatch(wider, batch.lengths), None), loss)
    longer = TokenBatch(noise, batch.lengths.clamp(max=6) + 1)
    assert not torch.isclose(model.loss(params, longer, None), loss), (
        "the pair: as targets they would"
    )


def test_an_epoch_meets_every_window_once_in_an_order_of_its_seed() -> None:
    pieces = windows([sequence(40, seed) for seed in range(10)], 8)

    def epoch(seed: int) -> list[list[int]]:
        met = list(batches(pad(pieces), 7, root(seed)))
        assert all(len(batch.ids) <= 7 for batch in met)
        return [
            row[:n]
            for batch in met
            for row, n in zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)
        ]

    assert sorted(epoch(0)) == sorted(pieces)
    assert epoch(0) == epoch(0) != epoch(1)


@pytest.mark.parametrize("name", KINDS)
def test_dropout_has_its_own_seed(name: str) -> None:
    model, params = tiny(name, dropout=0.5)
    before = torch.random.get_rng_state()
    batch = pad(PIECES)
    one, same, other, none = (
        model.loss(params, batch, seed) for seed in (root(0), root(0), root(1), None)
    )
    assert torch.equal(one, same)
    assert len({float(one), float(other), float(none)}) == 3
    list(sample(model, params, 20, 5, BOS, EOS, 1.0, root(0), rows=2))
    assert torch.equal(torch.random.get_rng_state(), before), "and nothing reads torch's"


# --- scoring -------------------------------------------------------------------------------------


def test_an_lstm_carries_its_state_over_a_whole_sequence() -> None:
    model, params = tiny("lstm")
    long, short = sequence(150), sequence(5)  # the stretches are of 64
    scored = score(model, params, [short, [], long, [BOS]])
    for one, ids in ((scored[0], short), (scored[2], long)):
        chances = log_chances(params, slow_lstm(params, ids[:-1]))
        torch.testing.assert_close(
            one.nll, -chances[range(len(ids) - 1), ids[1:]], rtol=1e-4, atol=1e-5
        )
        assert one.best.tolist() == (chances.argmax(1) == torch.tensor(ids[1:])).tolist()
    assert [len(one.nll) for one in scored] == [4, 0, 149, 0]
    assert [len(one.best) for one in scored] == [4, 0, 149, 0]
    cut = torch.cat([one.nll for one in score(model, params, windows([long], 64))])
    torch.testing.assert_close(cut[:64], scored[2].nll[:64], rtol=1e-4, atol=1e-5)
    assert not torch.isclose(cut[64], scored[2].nll[64]), (
        "the pair: windows that start empty score differently"
    )


@pytest.mark.parametrize("length", [2, 9, 10, 13, 14, 60])  # 8 inputs fill a window
def test_a_transformer_reads_windows_that_overlap_by_half(length: int) -> None:
    model, params = tiny("transformer")
    context, stride, ids = 8, 4, sequence(length)
    expected, best = [], []
    for at in range(length - 1):
        start = 0
        while start + context <= at:  # the first window that reaches this input
            start += stride
        chances = log_chances(params, slow_transformer(params, ids[start : at + 1])[-1])
        expected.append(-float(chances[ids[at + 1]]))
        best.append(int(chances.argmax()) == ids[at + 1])
        assert at - start >= min(at, context // 2), "so much is before it"
    one, _ = score(model, params, [ids, PIECES[2]])
    torch.testing.assert_close(one.nll, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert one.best.tolist() == best


@pytest.mark.parametrize("name", KINDS)
def test_many_sequences_are_scored_as_each_alone(name: str) -> None:
    model, params = tiny(name)
    lengths = torch.randint(
        2, 90, (150,), generator=torch_generator(root(5))
    ).tolist()  # three blocks of 64 rows
    sequences = [sequence(n, seed) for seed, n in enumerate(lengths)]
    for one, ids in islice(
        zip(score(model, params, sequences), sequences, strict=True), 0, None, 7
    ):
        (alone,) = score(model, {n: v.requires_grad_() for n, v in params.items()}, [ids])
        torch.testing.assert_close(one.nll, alone.nll, rtol=1e-4, atol=1e-5)
        assert torch.equal(one.best, alone.best)
        assert not alone.nll.requires_grad


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("at", [1, 7, 8, 20, 39])
def test_a_later_token_never_changes_an_earlier_score(name: str, at: int) -> None:
    model, params = tiny(name)
    ids = sequence(40)
    changed = [*ids[:at], 3 + (ids[at] - 2) % 10, *ids[at + 1 :]]
    before, after = score(model, params, [ids, changed])
    torch.testing.assert_close(before.nll[: at - 1], after.nll[: at - 1], rtol=0, atol=1e-6)
    moved = (before.nll - after.nll).abs() > 1e-4  # entry t is the score of token t + 1
    assert moved[at - 1], "its own score is another"
    assert at == 39 or moved[at], "and it is read for the next"


# --- sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_stepping_is_reading(name: str) -> None:
    """Rows that begin at other times, over more tokens than a window holds: the states that
    scoring sees.
    """
    model, params = tiny(name)
    sequences, starts = [sequence(30, seed) for seed in range(3)], [0, 3, 11]
    step = model.stepper(params, 3)
    states: list[list[Tensor]] = [[], [], []]
    for now in range(41):
        at = [max(now - start, 0) % 30 for start in starts]  # the first row begins anew after 30
        ids = torch.tensor([one[t] for one, t in zip(sequences, at, strict=True)])
        hidden = step(ids, torch.tensor([t == 0 for t in at]))
        for row, start in enumerate(starts):
            if now >= start:
                states[row].append(hidden[row])
    assert len(states[0]) == 41
    for row, one in enumerate(sequences):
        expected = torch.cat(list(model.read(params, torch.tensor([one]), torch.tensor([30]))), 1)[
            0
        ]  # (30, d)
        torch.testing.assert_close(torch.stack(states[row][:30]), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.stack(states[0][30:]), torch.stack(states[0][:11]), rtol=1e-4, atol=1e-5
    )


def variation(counts: Counter[int], chances: Tensor) -> float:
    total = sum(counts.values())
    return (
        sum(abs(counts[token] / total - float(chance)) for token, chance in enumerate(chances)) / 2
    )


def bound(draws: int) -> float:
    """Total variation of a sample from its own law: its mean is at most the first term, and
    above by the second with
    chance exp(-2 n 0.02^2) at most (McDiarmid); that is 1e-7 for 20,000 draws, 0.02 for 5,000."""
    return 0.5 * math.sqrt((VOCAB - 1) / draws) + 0.02


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("name", KINDS)
def test_tokens_come_as_often_as_the_softmax_says(name: str, temperature: float) -> None:
    model, params = tiny(name)

    def law(ids: list[int], at: float) -> Tensor:
        z = log_chances(params, SLOW[name](params, ids)[-1]) / at
        z[BOS] = -torch.inf
        return torch.softmax(z, 0)

    drawn = list(sample(model, params, 40_000, 2, BOS, EOS, temperature, root(2)))
    firsts = Counter(text[0] if text else EOS for text in drawn)
    assert sum(firsts.values()) >= 20_000
    assert variation(firsts, law([BOS], temperature)) < bound(len(drawn))
    assert variation(firsts, law([BOS], 0.75)) > bound(len(drawn)), (
        "the pair: of another temperature it is not"
    )
    (usual, times), *_ = (entry for entry in firsts.most_common() if entry[0] != EOS)
    seconds = Counter(
        text[1] if len(text) > 1 else EOS for text in drawn if text and text[0] == usual
    )
    assert times >= 3_000
    assert variation(seconds, law([BOS, usual], temperature)) < bound(times)
    assert variation(seconds, law([BOS], temperature)) > bound(times), (
        "the pair: the first token is read"
    )


@pytest.mark.parametrize("name", KINDS)
def test_sequences_end_by_eos_or_at_their_length(name: str) -> None:
    model, params = tiny(name)
    params = {**params, BIAS: params[BIAS] + 3 * torch.eye(VOCAB)[BOS]}  # it would like to say BOS
    drawn = list(sample(model, params, 3_000, 20, BOS, EOS, 1.0, root(0), rows=32))
    assert not any({BOS, EOS} & set(text) for text in drawn)
    assert max(map(len, drawn)) == 20
    assert min(map(len, drawn)) < 20
    assert sum(min(len(text) + 1, 20) for text in drawn) >= 3_000
    assert drawn == list(sample(model, params, 3_000, 20, BOS, EOS, 1.0, root(0), rows=32))
    assert drawn != list(sample(model, params, 3_000, 20, BOS, EOS, 1.0, root(1), rows=32))
    assert list(sample(model, params, 0, 20, BOS, EOS, 1.0, root(0))) == []


def test_long_sequences_are_not_left_out() -> None:
    """Every token is EOS with chance 0.1: 9 tokens in the mean, deviation 9.5. Enough are drawn
    after 5 steps.
    """
    model, params = tiny("lstm")
    flat = {n: torch.zeros_like(v) for n, v in params.items()}
    flat[BIAS][EOS] = math.log(11 * 0.1 / 0.9)  # against the 11 others that may come
    lengths = [
        len(text) for text in sample(model, flat, 10_000, 500, BOS, EOS, 1.0, root(0), rows=2_000)
    ]
    assert sum(lengths) / len(lengths) == pytest.approx(9, abs=4 * 9.5 / math.sqrt(len(lengths)))
    assert len(lengths) == pytest.approx(2_000 + 2_000 * 4 * 0.1, abs=4 * math.sqrt(800)), (
        "those that ended, anew"
    )


@pytest.mark.parametrize("bos", [0, VOCAB - 1])
def test_the_ends_of_the_uniform_draw_no_token_of_chance_zero(bos: int) -> None:
    _, params = tiny("lstm")
    hidden, ends = (
        torch.ones(2, 8),
        torch.tensor([[0.0], [1 - 2**-24]]),
    )  # the least and the largest torch.rand gives
    drawn = _draw(params, hidden, bos, 1.0, ends).tolist()
    others = [token for token in range(VOCAB) if token != bos]
    assert drawn == [others[0], others[-1]]


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"length": 0}, {"rows": 0}, {"eos": BOS}])
def test_sampling_that_cannot_be_meant_is_refused(wrong: dict[str, float]) -> None:
    model, params = tiny("lstm")
    asked = {"count_tokens": 9, "length": 5, "bos": BOS, "eos": EOS, "temperature": 1.0, "rows": 2}
    assert list(sample(model, params, seed=root(0), **asked))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sampling"):
        list(sample(model, params, seed=root(0), **asked | wrong))  # type: ignore[arg-type]


def test_a_window_longer_than_the_context_is_refused() -> None:
    model, params = tiny("transformer")
    assert model.hidden(params, torch.zeros(1, 8, dtype=torch.int64), None).shape == (1, 8, 8)
    with pytest.raises(ConfigError, match="is longer than"):
        model.hidden(params, torch.zeros(1, 9, dtype=torch.int64), None)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_learns_texts_by_heart_and_says_them(name: str) -> None:
    texts = [words(text) for text in islice(load("rotten_tomatoes"), 0, 4, 2)]
    assert texts[0][0] != texts[1][0], (
        "so that all but the first word follows from what is before it"
    )
    ids = {
        word: 3 + at for at, word in enumerate(sorted({word for text in texts for word in text}))
    }
    sequences = [[BOS, *(ids[word] for word in text), EOS] for text in texts]
    model = build(options(name, width=32, context=64))
    start = model.init(3 + len(ids), root(0))
    params = {n: value.clone().requires_grad_() for n, value in start.items()}
    optimizer = torch.optim.Adam(params.values(), 1e-2)
    for epoch in range(200):
        for batch in batches(pad(windows(sequences, 64)), 4, derive(root(0), epoch)):
            optimizer.zero_grad()
            loss = model.loss(params, batch, None)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert loss.item() < 0.1
    assert all(bool(one.best[1:].all()) for one in score(model, params, sequences))
    said = {tuple(text) for text in sample(model, params, 500, 64, BOS, EOS, 0.2, root(0), rows=8)}
    learned = {tuple(one[1:-1]) for one in sequences}
    assert said == learned
    assert (
        not {tuple(t) for t in sample(model, start, 500, 64, BOS, EOS, 0.2, root(0), rows=8)}
        & learned
    ), "untrained: none"
