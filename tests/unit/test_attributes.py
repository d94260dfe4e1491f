"""Attribute inference on uploads of real blog users: it finds gender and age in plain ones, and
nothing in noisy ones.

Figures in the comments are what was measured when the test was written; bounds leave room for
another machine's rounding.
"""

import math
import os
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lexfed.audits.attributes import inference as attributes
from lexfed.audits.attributes.inference import (
    RIDGES,
    age_bands,
    auc_shares,
    features,
    figures,
    infer,
)
from lexfed.audits.score import Cell
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.params import Params
from lexfed.core.seeds import derive, root, torch_generator
from lexfed.corpus.catalogue import load
from lexfed.corpus.loading import Columns
from lexfed.language.language_task import LanguageTask
from lexfed.learning.task import Local, Train
from lexfed.metrics.leakage import auc
from lexfed.models import language_model as language
from lexfed.models.language_model import LanguageModelOptions
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.privacy.mechanism import deltas
from lexfed.vocabulary import tokenizer as trained
from lexfed.vocabulary.learned import TokenizerOptions, public_text, texts_of
from lexfed.wire import Message
from tests.conftest import needs_data

# --- the projection ------------------------------------------------------------------------------


def normal(number: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch_generator(root(number)), dtype=torch.float64)


def projection(name: str, size: int, dims: int) -> Tensor:  # (dims, size)
    """The matrix that is never built, column by column."""
    unit = torch.eye(size, dtype=torch.float64)
    return torch.stack([features({name: row}, dims, root(0)) for row in unit], dim=1)


def test_features_are_a_sparse_projection_of_norm_one() -> None:
    a, b = projection("a", 40, 16), projection("b", 30, 16)
    assert (a.abs().sum(0) == 1).all(), "one entry in each column"
    assert a.abs().max() == 1
    assert a.min() == -1, "of either sign"
    delta = {"b": normal(1, 5, 6), "a": normal(2, 40)}
    slow = a @ delta["a"] + b @ delta["b"].flatten()
    assert torch.allclose(features(delta, 16, root(0)), slow / slow.norm())
    assert not torch.allclose(features(delta, 16, root(1)), slow / slow.norm()), (
        "another seed, another projection"
    )


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    delta = {"a": normal(2, 1000)}
    whole = features(delta, 32, root(0))
    monkeypatch.setattr(attributes, "BLOCK", 64)
    assert features(delta, 32, root(0)).norm().item() == pytest.approx(1.0)
    assert torch.allclose(features(delta, 32, root(0)), whole)


def test_inner_products_are_kept() -> None:
    """Of 40 pairs of cosine 0.6 the mean is within four standard errors, each of about 1 /
    sqrt(dims).
    """
    one, rest = normal(3, 5000), normal(4, 5000)
    other = 0.6 * one / one.norm() + 0.8 * rest / rest.norm()
    near = [
        float(features({"w": one}, 256, root(s)) @ features({"w": other}, 256, root(s)))
        for s in range(40)
    ]
    far = [
        float(features({"w": one}, 256, root(s)) @ features({"w": rest}, 256, root(s)))
        for s in range(40)
    ]
    assert np.mean(near) == pytest.approx(0.6, abs=4 / math.sqrt(256 * 40) + 0.02)
    assert np.mean(far) == pytest.approx(0.0, abs=4 / math.sqrt(256 * 40) + 0.02)


def test_an_upload_of_zeros_says_nothing_and_one_of_no_numbers_is_refused() -> None:
    assert features({"w": torch.zeros(9)}, 4, root(0)).tolist() == [0.0] * 4
    with pytest.raises(DataError, match="not numbers"):
        features({"w": torch.tensor([1.0, math.nan])}, 4, root(0))
    with pytest.raises(ConfigError, match="at least one"):
        features({"w": torch.zeros(9)}, 0, root(0))


# --- the attacker --------------------------------------------------------------------------------


def slow_ridge(x: Tensor, y: Tensor, target: Tensor, ridge: float) -> Tensor:
    mean = x.mean(0)
    gram = (x - mean).T @ (x - mean) + ridge * torch.eye(x.shape[1], dtype=torch.float64)
    return (target - mean) @ torch.linalg.solve(gram, (x - mean).T @ (y - y.mean(0))) + y.mean(0)


def left_out_error(x: Tensor, y: Tensor, ridge: float) -> float:
    """By fitting again without each user."""
    rest = [torch.arange(len(x)) != i for i in range(len(x))]
    return sum(
        float((y[i] - slow_ridge(x[k], y[k], x[i : i + 1], ridge)[0]).square().sum())
        for i, k in enumerate(rest)
    )


@pytest.mark.parametrize(("users", "dims"), [(60, 8), (25, 40)])
def test_infer_is_the_ridge_that_leaves_out_best(users: int, dims: int) -> None:
    x, target = normal(5, users, dims), normal(6, 7, dims)
    labels = ((x[:, 0] + normal(7, users)) > 0).long() + (x[:, 1] > 1).long()
    y = torch.nn.functional.one_hot(labels).double()
    unit = float(torch.linalg.svdvals(x - x.mean(0)).square().mean())
    best = min((unit * r for r in RIDGES), key=lambda ridge: left_out_error(x, y, ridge))
    scores = infer(x, labels, target)
    assert torch.allclose(scores, slow_ridge(x, y, target, best), atol=1e-8)
    assert torch.allclose(scores.sum(1), torch.ones(7, dtype=torch.float64)), (
        "scores of a user add up to 1"
    )
    assert unit * RIDGES[0] < best, "the least ridge is not what is best here"


def test_who_knows_one_class_only_can_t_infer() -> None:
    with pytest.raises(DataError, match="two classes"):
        infer(normal(5, 6, 3), torch.zeros(6, dtype=torch.int64), normal(6, 2, 3))
    with pytest.raises(DataError, match="two classes"):
        figures(normal(5, 6, 2), torch.zeros(6, dtype=torch.int64), torch.tensor([0, 1]))


def test_a_class_of_which_the_attacker_knows_nobody_is_never_guessed() -> None:
    scores = infer(normal(5, 6, 3), torch.tensor([0, 1, 0, 1, 0, 1]), normal(6, 2, 3), classes=3)
    assert scores.shape == (2, 3)
    assert (scores[:, 2] == 0).all()


def row(own: list[dict[str, float]]) -> dict[str, Any]:
    return Cell({}, figures=list(own)).row()


def test_figures_by_hand() -> None:
    scores = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]])
    found = row(figures(scores, torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0])))
    assert (found["uploads"], found["accuracy"], found["majority"]) == (4, 0.5, 0.5)
    assert found["auc"] == pytest.approx(0.75)
    assert age_bands(np.array([13, 19, 20, 29, 30, 48])).tolist() == [0, 0, 1, 1, 2, 2]


def slow_auc(scores: Tensor, labels: Tensor) -> float:
    """The mean over classes of leakage.auc, each against the rest."""
    classes = torch.unique(labels).tolist()
    return float(
        np.mean(
            [
                auc(scores[labels == label, label], scores[labels != label, label])
                for label in classes
            ]
        )
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_shares_in_an_auc_are_those_of_a_jackknife(classes: int) -> None:
    """By leaving every user out; scores with ties."""
    labels = torch.arange(25) % classes
    scores = (normal(8, 25, classes) + torch.nn.functional.one_hot(labels)).round(decimals=1)
    whole, keep = slow_auc(scores, labels), [torch.arange(25) != i for i in range(25)]
    slow = [25 * whole - 24 * slow_auc(scores[k], labels[k]) for k in keep]
    assert auc_shares(scores, labels).tolist() == pytest.approx(slow)
    assert float(auc_shares(scores, labels).mean()) == pytest.approx(whole)


def test_the_interval_of_an_auc_covers() -> None:
    """Two normals 1 apart have an AUC of Phi(1 / sqrt 2) = 0.760. At 95 %, fewer than 34 of 40
    has a chance below 2 %.
    """
    labels, right, wrong = torch.arange(120) % 2, 0, 0
    for number in range(40):
        score = normal(100 + number, 120) + labels
        low, high = row(figures(torch.stack([-score, score], 1), labels, labels))["auc_interval"]
        right += low < 0.7602 < high
        wrong += low < 0.9 < high
    assert right >= 34
    assert wrong < 10, "the pair: it is no interval that holds everything"


# --- real users ----------------------------------------------------------------------------------

USERS, KNOWN, CLIP = 500, 300, 0.5


@cache
def uploads() -> tuple[list[Params], Tensor, Tensor]:
    """One local step of a small LSTM language model by those blog users who wrote most; gender
    and age band of each.
    """
    path = str(Path(os.environ["LEXFED_DATA"]) / "blogs.parquet")
    blogs, ages = load(path, Columns(label="gender")), load(path, Columns(label="age"))
    names = blogs.users.take(blogs.rows).to_pylist() if blogs.users is not None else []
    _, owner, counts = np.unique(names, return_inverse=True, return_counts=True)
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(counts)
    texts = TokenizerOptions(
        kind="word", size=1000, public="imdb", lowercase=True, words_per_user=800
    )
    tokenizer = trained.load(trained.train(islice(public_text(texts), 4000), "word", texts.size))
    model = language.build(LanguageModelOptions(layers=1, width=8, context=16))
    task = LanguageTask(model, 16, Train(optimizer="sgd", lr=5.0, batch=64), texts, 1)
    start = model.init(len(tokenizer.tokens), root(0))
    sent, genders, bands = [], [], []
    for user in np.argsort(-counts, kind="stable")[:USERS]:
        rows = order[ends[user] - counts[user] : ends[user]]
        sequences = [tokenizer.sequence(words) for words in texts_of(blogs.take(rows), texts)]
        after = task.fit(start, sequences, Local(5.0, 1), derive(root(1), int(user))).params
        sent.append({name: after[name] - value for name, value in start.items()})
        genders.append(int(blogs.labels[rows[0]]))
        bands.append(int(age_bands(ages.labels[rows])[0]))
    return sent, torch.tensor(genders), torch.tensor(bands)


def attacked(sent: list[Params], labels: Tensor) -> dict[str, Any]:
    x = torch.stack([features(delta, 512, root(2)) for delta in sent])
    return row(figures(infer(x[:KNOWN], labels[:KNOWN], x[KNOWN:]), labels[KNOWN:], labels[:KNOWN]))


def noisy(sent: list[Params]) -> list[Params]:
    """Clipped, and each with all of the noise: z = 1."""
    mechanism = GaussianMechanism(Privacy(placement="local", clip=CLIP, noise=1.0), rounds=1)
    told = Message(meta={"clip": CLIP})
    return [
        dict(deltas(mechanism.bound(d, 1, 0.0, told, derive(root(4), i))))
        for i, d in enumerate(sent)
    ]  # type: ignore[misc]


@pytest.mark.slow
@needs_data
def test_uploads_tell_gender_and_age_and_noisy_ones_don_t() -> None:
    sent, genders, bands = uploads()
    gender, age = attacked(sent, genders), attacked(sent, bands)
    assert gender["auc_interval"][0] > 0.55
    assert gender["accuracy"] > gender["majority"] + 0.02
    assert age["auc_interval"][0] > 0.55
    assert age["accuracy"] > age["majority"] + 0.02
    hidden = noisy(sent)
    for labels in (genders, bands):
        blind = attacked(hidden, labels)
        assert blind["auc_interval"][0] < 0.5 < blind["auc_interval"][1]
        assert blind["accuracy"] <= blind["majority"] + 0.05


@pytest.mark.slow
@needs_data
def test_labels_that_are_nobody_s_can_t_be_inferred() -> None:
    """The same uploads and as many of each label, dealt out by chance: so the attack does not
    find what is not there.
    """
    sent, genders, _ = uploads()
    dealt = genders[torch.randperm(USERS, generator=torch_generator(root(5)))]
    low, high = attacked(sent, dealt)["auc_interval"]
    assert low < 0.5 < high
