"""Text back from gradients: it works with the right table, and says nothing with the wrong one or
under noise.

Figures in the comments are what was measured when the test was written. A search from a random
start may end in a valley
where words have changed places: of five starts on the sentence of eight words, two find every word
in order, and three
find seven words of which five are in place. So where order is asserted there are `restarts`, or a
case where one is enough.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import BertConfig

from experiments.audit.inversion_study import target_of
from lexfed.audits.inversion.dlg import (
    ENOUGH,
    Inversion,
    Threat,
    as_gradient,
    decode,
    gradients,
    invert,
    other_table,
    sentences,
    threat_of,
)
from lexfed.audits.inversion.lstm_gradient import lstm_gradients
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.params import Params
from lexfed.core.seeds import derive, root, torch_generator
from lexfed.models.bilstm import TABLE, BiLSTMClassifier
from lexfed.models.encoder import from_config
from lexfed.models.model import EMBEDDING, Batch, Classifier, Example, ModelOptions, collate
from lexfed.vocabulary.tables.vectors import load as load_vectors
from lexfed.vocabulary.word import UNKNOWN
from tests.conftest import needs_data

D, H, V, CLASSES = 32, 32, 2000, 4
MODEL = BiLSTMClassifier(ModelOptions(embedding=D, hidden=H, dropout=0.0), CLASSES)
OPTIONS = Inversion(root(0))


def drawn(*shape: int, name: str = "x", number: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(derive(root(number), name)))


def small() -> Params:
    return {**MODEL.init(V, root(1)), TABLE: 0.5 * drawn(V, D, name="table", number=1)}


def batch_of(*lengths: int, number: int = 1) -> Batch:
    """Distinct words, a label per text."""
    ids = (1 + torch.randperm(V - 1, generator=torch_generator(derive(root(number), "ids")))).split(
        [*lengths, V - 1 - sum(lengths)]
    )
    return collate([Example(text.tolist(), i % CLASSES) for i, text in enumerate(ids[:-1])])


def body(model: Classifier, params: Params) -> list[str]:
    return [name for name in params if model.depth(name) != EMBEDDING]


def recovered_ids(
    params: Params, batch: Batch, options: Inversion, model: Classifier = MODEL
) -> tuple[Tensor, Tensor]:
    """With the right table and with the wrong one."""
    table = params[model.word_table]
    observed = gradients(model, params, batch, body(model, params))
    found = invert(model, params, observed, threat_of(batch, table.shape[1], CLASSES), options)
    return decode(found.vectors, table), decode(found.vectors, other_table(table, root(5)))


def recall(batch: Batch, guess: Tensor) -> float:
    real = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    true = set(batch.ids[real].tolist())
    return len(true & set(guess[real].tolist())) / len(true)


# the derivatives


def by_hand(params: Mapping[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
    """The loss of one text (T, d), the LSTM's equations step by step."""
    states = []
    for way in ("", "_reverse"):
        w, u, b, c = (
            params[f"lstm.{kind}_l0{way}"]
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h, cell, read = x.new_zeros(H), x.new_zeros(H), []
        for word in x.flip(0) if way else x:
            i, f, g, o = (w @ word + b + u @ h + c).split(H)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            h = o.sigmoid() * cell.tanh()
            read.append(h)
        states.append(torch.stack(read).flip(0) if way else torch.stack(read))
    logits = params["output.weight"] @ torch.cat(states, 1).mean(0) + params["output.bias"]
    return -(target * logits.log_softmax(0)).sum()


def test_the_shared_gradient_is_that_of_the_lstm_equations() -> None:
    params, batch = small(), batch_of(7)
    names = body(MODEL, params)
    observed = gradients(MODEL, params, batch, names)
    leaves = {name: params[name].clone().requires_grad_() for name in names}
    loss = by_hand(leaves, params[TABLE][batch.ids[0]], F.one_hot(batch.labels[0], CLASSES).float())
    for name, value in zip(names, torch.autograd.grad(loss, list(leaves.values())), strict=True):
        torch.testing.assert_close(observed[name], value, rtol=1e-4, atol=1e-6)


def test_the_searchs_gradient_and_its_derivative_are_those_of_the_equations() -> None:
    """Texts of three lengths at once; a function of dL/dW, and its d/dx, which the search
    follows.
    """
    params = {name: value.double() for name, value in small().items()}
    names, lengths = body(MODEL, params), [5, 3, 1]
    leaves = {name: params[name].requires_grad_() for name in names}
    texts = [drawn(n, D, name=f"text {n}").double().requires_grad_() for n in lengths]
    target = drawn(3, CLASSES, name="target").double().softmax(1)
    loss = torch.stack([by_hand(leaves, x, y) for x, y in zip(texts, target, strict=True)]).mean()
    slow = dict(
        zip(names, torch.autograd.grad(loss, list(leaves.values()), create_graph=True), strict=True)
    )
    padded = torch.stack([F.pad(x, (0, 0, 0, 5 - len(x))) for x in texts])  # (B, T, d)
    batch = Batch(
        torch.zeros(3, 5, dtype=torch.int64),
        torch.tensor(lengths),
        torch.zeros(3, dtype=torch.int64),
    )
    fast = lstm_gradients(params, padded, batch, target)
    assert set(fast) == set(names)
    twice = []
    for found in (slow, fast):
        twice.append(
            torch.autograd.grad(
                torch.stack([(found[name] ** 3).sum() for name in names]).sum(), texts
            )
        )
    for name in names:
        torch.testing.assert_close(fast[name], slow[name], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(twice[1], twice[0], rtol=1e-9, atol=1e-14)
    assert all(float(value.abs().max()) > 1e-8 for value in twice[0])


def test_a_delta_of_one_step_is_a_gradient() -> None:
    params, batch = small(), batch_of(6, 4)
    names = body(MODEL, params)
    observed = gradients(MODEL, params, batch, names)
    after = {name: params[name] - 0.1 * observed[name] for name in names}
    again = as_gradient({name: after[name] - params[name] for name in names}, 0.1)
    for name in names:
        torch.testing.assert_close(
            again[name], observed[name], rtol=0, atol=2e-6
        )  # float32 at weights of 0.2, times 10


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_distance_is_the_one_of_the_docstring(alpha: float) -> None:
    """At a start so near 0 that it is 0: every vector and, for the single text, the true label."""
    params, batch = small(), batch_of(6)
    names = body(MODEL, params)
    observed = gradients(MODEL, params, batch, names)
    at_zero = gradients(MODEL, {**params, TABLE: torch.zeros(V, D)}, batch, names)
    expected = 0.0
    for name in names:
        gap, true = at_zero[name] - observed[name], observed[name]
        expected += float(
            gap.square().sum() / true.square().sum() + alpha * gap.abs().sum() / true.abs().sum()
        )
    options = Inversion(root(0), steps=1, alpha=alpha, spread=1e-9)
    assert invert(MODEL, params, observed, threat_of(batch, D, CLASSES), options).losses[
        0
    ] == pytest.approx(expected, rel=1e-4)


# decoding


def test_decoding_finds_the_nearest_row_whatever_its_length() -> None:
    table = drawn(3000, 16)
    ids = torch.randint(3000, (40, 15), generator=torch_generator(root(3)))  # more than a chunk
    scales = drawn(40, 15, 1, name="scales").abs() + 0.1
    assert torch.equal(decode(table[ids] * scales, table), ids)
    noisy = table[ids] + 0.9 * drawn(40, 15, 16, name="noise")
    slow = [
        [
            max(range(3000), key=(F.cosine_similarity(x, table, dim=1)).tolist().__getitem__)
            for x in row
        ]
        for row in noisy[:2]
    ]
    assert decode(noisy, table)[:2].tolist() == slow
    assert not torch.equal(decode(noisy, table), ids)


def test_sentences_end_where_they_end() -> None:
    assert sentences(torch.tensor([[1, 2, 0], [2, 0, 0]]), [3, 1], ["a", "b", "c"]) == [
        ["b", "c", "a"],
        ["c"],
    ]


def test_another_table_is_as_large_and_unlike() -> None:
    table = 0.5 * drawn(V, D)
    other = other_table(table, root(1))
    assert float(other.std()) == pytest.approx(float(table.std()), rel=0.05)
    assert (
        float(F.cosine_similarity(table, other, dim=1).abs().mean()) < 0.2
    )  # sqrt(2 / (pi d)) = 0.14


# the attack


@pytest.mark.parametrize(
    "options",
    [replace(OPTIONS, restarts=4), replace(OPTIONS, alpha=0.01, restarts=4)],
    ids=["dlg", "tag"],
)
def test_a_sentence_is_read_with_the_right_table_and_not_with_the_wrong_one(
    options: Inversion,
) -> None:
    params, batch = small(), batch_of(8)
    right, wrong = recovered_ids(params, batch, options)
    assert torch.equal(right, batch.ids), "every word, in order"
    assert recall(batch, wrong) <= 0.1


@pytest.mark.parametrize("pooling", ["max", "attention"])
def test_other_shapes_of_the_model_are_searched_too(pooling: str) -> None:
    shape = ModelOptions(embedding=D, hidden=H, dropout=0.0, pooling=pooling)  # type: ignore[arg-type]
    model, batch = BiLSTMClassifier(shape, CLASSES), batch_of(6)
    params = {**model.init(V, root(1)), TABLE: small()[TABLE]}
    right, wrong = recovered_ids(params, batch, replace(OPTIONS, restarts=2), model)
    assert recall(batch, right) >= 0.6
    assert recall(batch, wrong) <= 0.1


def test_a_search_ends_when_the_gradients_agree() -> None:
    params, batch = small(), batch_of(3)
    observed = gradients(MODEL, params, batch, body(MODEL, params))
    found = invert(MODEL, params, observed, threat_of(batch, D, CLASSES), OPTIONS)
    assert found.losses[-1] < ENOUGH
    assert len(found.losses) < OPTIONS.steps / 2


def test_the_papers_own_search_finds_the_words_too() -> None:
    params, batch = small(), batch_of(8)
    right, wrong = recovered_ids(params, batch, replace(OPTIONS, inside=False, steps=200))
    assert recall(batch, right) >= 0.75
    assert recall(batch, wrong) <= 0.1


def test_noise_on_the_gradient_ends_it() -> None:
    """Ten times as long as the gradient; noise of the gradient's own length leaves 0.75 of the
    words.
    """
    params, batch = small(), batch_of(8)
    observed = gradients(MODEL, params, batch, body(MODEL, params))
    noisy = {
        n: v + 10 * v.norm() / v.numel() ** 0.5 * drawn(*v.shape, name=n)
        for n, v in observed.items()
    }
    found = invert(MODEL, params, noisy, threat_of(batch, D, CLASSES), replace(OPTIONS, steps=100))
    assert recall(batch, decode(found.vectors, params[TABLE])) <= 0.25


def test_two_short_sentences_are_read_with_their_labels() -> None:
    params, batch = small(), batch_of(5, 4)
    observed = gradients(MODEL, params, batch, body(MODEL, params))
    found = invert(MODEL, params, observed, threat_of(batch, D, CLASSES), OPTIONS)
    assert recall(batch, decode(found.vectors, params[TABLE])) >= 0.85
    assert (
        recall(batch, decode(found.vectors, other_table(params[TABLE], root(5)))) <= 0.12
    )  # 1 word of 9
    assert sorted(found.labels.argmax(1).tolist()) == sorted(batch.labels.tolist())
    assert torch.equal(found.vectors[1, 4], torch.zeros(D)), "nothing behind a text's end"
    assert found.losses[-1] < 0.1 * found.losses[0]
    assert found.seconds > 0


@pytest.mark.parametrize("label", range(CLASSES))
def test_the_label_of_one_text_is_the_negative_entry(label: int) -> None:
    params = small()
    batch = replace(batch_of(4), labels=torch.tensor([label]))
    observed = gradients(MODEL, params, batch, body(MODEL, params))
    found = invert(MODEL, params, observed, threat_of(batch, D, CLASSES), replace(OPTIONS, steps=1))
    assert int(found.labels.argmax()) == label
    assert float(found.labels.max()) == 1


def test_the_best_of_several_starts_is_kept_and_repeats() -> None:
    params, batch = small(), batch_of(6)
    observed, threat = (
        gradients(MODEL, params, batch, body(MODEL, params)),
        threat_of(batch, D, CLASSES),
    )
    runs = [
        invert(MODEL, params, observed, threat, Inversion(root(2), steps=12, restarts=n))
        for n in (1, 3, 3)
    ]
    assert runs[1].losses[-1] <= runs[0].losses[-1]
    assert torch.equal(runs[1].vectors, runs[2].vectors)


@pytest.mark.slow
def test_a_transformer_is_read() -> None:
    config = BertConfig(
        vocab_size=V, hidden_size=D, num_hidden_layers=2, num_attention_heads=2, intermediate_size=4 * D,
        num_labels=CLASSES, max_position_embeddings=32,
    )  # fmt: skip
    model = from_config(config)
    fresh = model.init(V, root(1))
    params = {
        name: 5 * value if value.ndim > 1 else value for name, value in fresh.items()
    }  # 0.1, as trained ones have
    batch = batch_of(8)
    right, wrong = recovered_ids(params, batch, OPTIONS, model)
    assert recall(batch, right) >= 0.95
    assert torch.equal(right, batch.ids)
    assert recall(batch, wrong) <= 0.1


@needs_data
def test_a_real_sentence_is_read_among_twenty_thousand_words() -> None:
    public = load_vectors("glove_6b_100d_top100k.npz").head(20_000)
    model = BiLSTMClassifier(ModelOptions(embedding=100, hidden=100, dropout=0.0), CLASSES)
    target = target_of(model, (UNKNOWN, *public.words), public, CLASSES, root(0))
    text = ["oil", "prices", "rise", "after", "attack", "on", "pipeline", "in"]
    batch = collate([Example([target.tokens.index(word) for word in text], 2)])
    observed = gradients(model, target.params, batch, body(model, target.params))
    threat, options = threat_of(batch, 100, CLASSES), replace(OPTIONS, restarts=2)
    found = invert(model, target.params, observed, threat, options)
    guess = decode(found.vectors, target.public)
    assert sentences(guess, threat.lengths, target.tokens) == [text]
    wrong = other_table(target.public, root(5))
    found = invert(model, target.params, observed, threat, replace(options, restarts=1, steps=60))
    assert recall(batch, decode(found.vectors, wrong)) == 0


# what is refused, and what is said


def test_the_threat_is_printed() -> None:
    text = str(Threat((8, 5), 100, 4))
    assert "size of the batch (2)" in text
    assert "(8, 5)" in text
    assert "not the labels" in text
    assert "not the labels" not in str(Threat((8, 5), 100, 4, (0, 1)))


def test_what_cant_be_is_refused() -> None:
    for lengths in ((), (3, 5), (4, 0)):
        with pytest.raises(DataError, match="longest first"):
            Threat(lengths, 8, 2)
    with pytest.raises(DataError, match="one for each text"):
        Threat((3, 2), 8, 2, (1,))
    with pytest.raises(ConfigError, match="at least 1"):
        Inversion(root(0), steps=0)
    with pytest.raises(DataError, match="table"):
        decode(drawn(2, 3), drawn(5, 4))
    params, batch = small(), batch_of(3)
    with pytest.raises(DataError, match="above the word table"):
        invert(
            MODEL,
            params,
            gradients(MODEL, params, batch, params),
            threat_of(batch, D, CLASSES),
            OPTIONS,
        )
