"""Words in a span that dropout of the inputs has blurred: real reviews, real vectors, the real BiLSTM.

Figures in the comments are what was measured when the test was written.
"""

from functools import cache

import pytest
import torch
from torch import Tensor

from lexfed.core.seeds import derive, root, torch_generator
from lexfed.learning.task import Local, Task, Train, train
from lexfed.metrics.leakage import Spectrum, ranking, score_words, span
from lexfed.metrics.masked_span import ROOM, masked_ranking
from lexfed.models.bilstm import INPUTS, TABLE, BiLSTMClassifier
from lexfed.models.model import Example, ModelOptions, input_dropout
from lexfed.vocabulary.reading import SharedReader
from lexfed.vocabulary.word import WordTokenizer, of_list
from tests.unit.test_leakage import SIZE, candidates, known, public, reviews

MODEL = BiLSTMClassifier(ModelOptions(embedding=100, hidden=50, dropout=0.5), classes=2)


@cache
def of_length(least: int, most: int) -> tuple[Example, ...]:
    return tuple(one for one in reviews() if least <= len(one.ids) <= most)


def uploaded(texts: tuple[Example, ...], dropout: float = 0.5, **options: object) -> Spectrum:
    """Of what a client sends after one epoch over these texts."""
    model = BiLSTMClassifier(ModelOptions(embedding=100, hidden=50, dropout=dropout), classes=2)
    settings = Train(**{"optimizer": "sgd", "lr": 0.1, "batch": 32, **options})  # type: ignore[arg-type]
    unknown = 0.6 * torch.randn(1, 100, generator=torch_generator(root(3)))
    before = {**model.init(1, root(2)), TABLE: torch.cat([unknown, candidates()])}
    reader = SharedReader(WordTokenizer(of_list((), 1)), 256)
    task = Task(model, reader, settings, 2, 1, lambda seed: before)
    after = train(task, before, texts, Local(settings.lr, settings.epochs), root(4)).params
    return span(*(after[name] - before[name] for name in INPUTS))


def found(order: Tensor, texts: tuple[Example, ...]) -> float:
    truth = {i for example in texts for i in known(example)}
    return score_words(order, truth, torch.arange(SIZE), public().words).recall_at_n


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"batch": 1, "lr": 0.01}, marks=pytest.mark.slow)]
)
def test_masks_are_modelled_where_the_plain_residual_is_blurred(options: dict[str, object]) -> None:
    """Two texts, 36 words in all; one SGD step, and one epoch of two: 1.00 by masks, 0.2 to 0.4 plainly
    (vectors without axes, in a bare clone: 0.7 to 0.8)."""
    texts = of_length(18, 18)[:2]
    spectrum = uploaded(texts, **options)
    plain, masked = (
        found(ranking(spectrum, candidates()), texts),
        found(masked_ranking(spectrum, candidates(), 0.5), texts),
    )
    assert masked >= 0.9
    assert plain < masked - 0.1
    assert found(torch.arange(SIZE), texts) < 0.5, "the prior"


@pytest.mark.slow
def test_past_half_of_the_dimension_it_fades_and_past_two_thirds_it_is_the_plain_one() -> None:
    """54 words: 0.6 to 0.8; 90 words, or Adam: the plain ranking itself."""
    between = of_length(18, 18)[:3]
    assert found(masked_ranking(uploaded(between), candidates(), 0.5), between) > 0.5
    for spectrum in (
        uploaded(of_length(18, 18)[:5]),
        uploaded(of_length(18, 18)[:2], optimizer="adam", lr=5e-3),
    ):
        rank = spectrum.sharp_rank
        assert rank is None or rank > ROOM * 100
        assert torch.equal(
            masked_ranking(spectrum, candidates(), 0.5), ranking(spectrum, candidates())
        )


def test_without_dropout_nothing_changes() -> None:
    texts = of_length(18, 18)[:2]
    spectrum = uploaded(texts, dropout=0.0)
    order = masked_ranking(spectrum, candidates(), 0.0)
    assert torch.equal(order, ranking(spectrum, candidates()))
    assert found(order, texts) == 1.0


def test_an_exact_mask_comes_first_and_a_row_of_zeros_last() -> None:
    """Four masked vectors of 40 numbers, made by hand: they are the first four of two hundred."""
    generator = torch_generator(derive(root(1), "masks"))
    x = torch.randn(200, 40, generator=generator)
    x[199] = 0
    read = x[:4] * torch.empty(4, 40).bernoulli_(0.5, generator=generator)
    order = masked_ranking(span(torch.randn(60, 4, generator=generator) @ read), x, 0.5)
    assert set(order[:4].tolist()) == {0, 1, 2, 3}
    assert order[-1] == 199
    assert order.sort().values.tolist() == list(range(200))


def test_a_spectrum_says_where_text_ends_if_it_does() -> None:
    """Weights a thousand times longer than their step: subtraction leaves rounding far above what a product would."""
    generator = torch_generator(root(6))
    low = torch.randn(80, 7, generator=generator) @ torch.randn(7, 30, generator=generator)
    weights = 1000 * torch.randn(80, 30, generator=generator)
    rounded = span((weights + low) - weights)
    assert rounded.sharp_rank == 7 < rounded.rank
    assert span(torch.randn(80, 30, generator=generator)).sharp_rank is None


def test_a_model_says_how_much_it_drops() -> None:
    assert input_dropout(MODEL) == 0.5
    assert input_dropout(object()) == 0.0, "one that does not say"
