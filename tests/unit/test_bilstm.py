import pytest
import torch
from torch import nn

from lexfed.core.params import Params, count
from lexfed.core.seeds import root
from lexfed.models.bilstm import TABLE, BiLSTMClassifier
from lexfed.models.model import Example, ModelOptions, by_length, collate, shuffled

TEXTS = [Example([3, 1, 4, 1, 5], 0), Example([2], 1), Example([6, 5, 3], 1)]
POOLINGS = ["mean", "max", "attention"]


def classifier(pooling: str = "mean", dropout: float = 0.0) -> tuple[BiLSTMClassifier, Params]:
    model = BiLSTMClassifier(
        ModelOptions(embedding=6, hidden=5, dropout=dropout, pooling=pooling), classes=3
    )  # type: ignore[arg-type]
    return model, model.init(8, root(0))


def reference(params: Params, ids: list[int], pooling: str) -> torch.Tensor:
    """One text alone through torch's own module: no padding, no packing."""
    lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
    lstm.load_state_dict(
        {name.removeprefix("lstm."): value for name, value in params.items() if "lstm" in name}
    )
    states = lstm(params[TABLE][ids][None])[0][0]  # (T, 2h)
    if pooling == "mean":
        pooled = states.mean(0)
    elif pooling == "max":
        pooled = states.max(0).values
    else:
        pooled = torch.softmax(torch.tanh(states) @ params["attention.query"], 0) @ states
    return params["output.weight"] @ pooled + params["output.bias"]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_batch_equals_its_texts_one_by_one(pooling: str) -> None:
    model, params = classifier(pooling)
    batch = collate(TEXTS)
    logits = model.logits(params, batch, None)
    for row, length in zip(range(3), batch.lengths.tolist(), strict=True):
        expected = reference(params, batch.ids[row, :length].tolist(), pooling)
        torch.testing.assert_close(logits[row], expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_is_never_read(pooling: str) -> None:
    model, params = classifier(pooling)
    batch = collate(TEXTS)
    noise = batch.ids.clone()
    for row, length in enumerate(batch.lengths.tolist()):
        noise[row, length:] = 7
    other = type(batch)(noise, batch.lengths, batch.labels)
    assert torch.equal(model.logits(params, batch, None), model.logits(params, other, None))


def test_parameters_above_the_embedding_are_the_papers() -> None:
    params = BiLSTMClassifier(ModelOptions(), classes=2).init(1, root(0))
    assert count(params) - params[TABLE].numel() == 1_446_002


def test_dropout_has_its_own_seed() -> None:
    model, params = classifier(dropout=0.5)
    batch = collate(TEXTS)
    torch.manual_seed(0)
    first = model.logits(params, batch, root(1))
    torch.manual_seed(1)
    assert torch.equal(first, model.logits(params, batch, root(1))), (
        "torch's global generator is not read"
    )
    assert not torch.equal(first, model.logits(params, batch, root(2)))
    assert torch.equal(model.logits(params, batch, None), model.logits(params, batch, None))


def test_an_epoch_meets_every_text_once_in_another_order() -> None:
    texts = [Example([i], i) for i in range(50)]
    orders = [[int(x) for b in shuffled(texts, 8, root(seed)) for x in b.labels] for seed in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert orders[0] != orders[1]
    assert sorted(int(x) for b in by_length(texts, 8) for x in b.labels) == list(range(50))


def test_labels_stay_with_their_texts() -> None:
    batch = collate(TEXTS)
    texts = [tuple(row[:n].tolist()) for row, n in zip(batch.ids, batch.lengths, strict=True)]
    expected = {tuple(example.ids): example.label for example in TEXTS}
    assert dict(zip(texts, batch.labels.tolist(), strict=True)) == expected
