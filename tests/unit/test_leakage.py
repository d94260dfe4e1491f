"""The attacks on real uploads: real reviews, real GloVe vectors, the real BiLSTM. Each succeeds
here and fails there.

Figures in the comments are what was measured when the test was written; bounds leave room for
another machine's rounding.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from time import process_time

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertConfig

from lexfed.core.errors import ConfigError, DataError
from lexfed.core.params import Params, Rows
from lexfed.core.seeds import Seed, derive, root, torch_generator
from lexfed.corpus.catalogue import load
from lexfed.learning.task import Local, Task, Train, train
from lexfed.metrics.leakage import (
    Leak,
    auc,
    distances,
    label_shares,
    leverage,
    moved_rows,
    ranking,
    residuals,
    rouge,
    score_words,
    sentence_scores,
    span,
    tpr_at,
    wilson,
)
from lexfed.models.bilstm import TABLE, BiLSTMClassifier
from lexfed.models.encoder import EncoderClassifier, from_config
from lexfed.models.model import Classifier, Example, ModelOptions, collate
from lexfed.vocabulary.reading import SharedReader
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.vocabulary.tables.vectors import load as load_vectors
from lexfed.vocabulary.word import WordTokenizer, of_list
from tests.conftest import VECTORS, needs_data
from tests.references import placed_ranking, transformer_inputs

MODEL = BiLSTMClassifier(ModelOptions(embedding=100, hidden=100, dropout=0.0), classes=2)
FIRST = ("lstm.weight_ih_l0", "lstm.weight_ih_l0_reverse")
SIZE = 20_000


def drawn(*shape: int, name: str = "x", number: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(derive(root(number), name)))


@cache
def public() -> PublicTable:
    return load_vectors(VECTORS).head(SIZE)


@cache
def candidates() -> Tensor:  # (20000, 100): in the order of frequency, so their order is the prior
    return public().rows(public().words)


@cache
def reviews() -> tuple[Example, ...]:
    """In random order. Id 0 is any word that GloVe's first 20,000 lack; id i + 1 is candidate i."""
    corpus, ids = load("rotten_tomatoes"), public().ids
    texts = [
        Example([ids.get(w, -1) + 1 for w in words(text)], int(y))
        for text, y in zip(corpus, corpus.labels, strict=True)
    ]
    order = torch.randperm(len(texts), generator=torch_generator(root(5))).tolist()
    return tuple(texts[i] for i in order if any(texts[i].ids))


def known(example: Example) -> list[int]:
    return [i - 1 for i in example.ids if i]


def long_reviews(count: int, client: int) -> list[Example]:
    kept = [example for example in reviews() if 20 <= len(example.ids) <= 40]
    return kept[client * count : (client + 1) * count]


def start(number: int, table: Tensor) -> Params:
    unknown = 0.6 * drawn(
        1, 100, name="unknown", number=number
    )  # private, so no candidate stands for it
    return {**MODEL.init(1, root(number)), TABLE: torch.cat([unknown, table])}


def gradient(model: Classifier, params: Params, examples: Sequence[Example]) -> Params:
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    batch = collate(examples)
    F.cross_entropy(model.logits(leaves, batch, None), batch.labels).backward()  # type: ignore[no-untyped-call]
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def delta(params: Params, examples: Sequence[Example], options: Train, seed: Seed) -> Params:
    """What a client would send: how its parameters moved in local training, its table moving
    along.
    """
    task = Task(
        MODEL, SharedReader(WordTokenizer(of_list((), 1)), 256), options, 2, 1, lambda seed: params
    )
    after = train(task, params, examples, Local(options.lr, options.epochs), seed).params
    return {name: after[name] - params[name] for name in params}


def scored(upload: Params, examples: Sequence[Example], table: Tensor) -> Leak:
    truth = {i for example in examples for i in known(example)}
    order = ranking(span(*(upload[name] for name in FIRST)), table)
    return score_words(order, truth, torch.arange(SIZE), public().words)


# --- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sentences", "least"), [(1, 1.0), (2, 0.99), (4, 0.96)])
def test_one_batch_is_read_back(sentences: int, least: float) -> None:
    """Recall at n 1.00 for 17 to 25 / 34 to 44 / 66 to 75 words, all by their residuals; the
    prior 0.27 to 0.41.
    """
    for client in range(3):
        texts = long_reviews(sentences, client)
        leak = scored(gradient(MODEL, start(client, candidates()), texts), texts, candidates())
        assert leak.recall_at_n >= least
        assert leak.rare_recall is not None
        assert leak.rare_recall >= least, "rare words as well as common ones"
        assert 0.15 < leak.prior_recall_at_n < 0.46, "what everybody knows without an upload"
        assert leak.interval[0] > leak.prior_recall_at_n


def test_past_the_dimension_leverage_still_ranks_where_residuals_are_blind() -> None:
    """Eight sentences of 129 words, d = 100: leverage 0.84, residuals at rank 99 0.05, prior
    0.34.
    """
    texts = long_reviews(8, 0)
    upload = gradient(MODEL, start(0, candidates()), texts)
    spectrum, truth = (
        span(*(upload[name] for name in FIRST)),
        {i for text in texts for i in known(text)},
    )
    assert len(truth) > 100
    assert spectrum.rank == 100
    assert not spectrum.exact
    blind = residuals(spectrum, candidates(), 99).argsort()
    leak, other = (
        score_words(r, truth, torch.arange(SIZE), public().words)
        for r in (ranking(spectrum, candidates()), blind)
    )
    assert leak.recall_at_n > 0.7 > leak.prior_recall_at_n > other.recall_at_n


def test_fedavg_sends_its_words_as_rows() -> None:
    texts = reviews()[:64]
    sent = delta(start(0, candidates()), texts, Train(optimizer="adam", batch=16), root(0))[TABLE]
    rows = moved_rows(sent)
    assert set(rows.tolist()) == {i for text in texts for i in text.ids}, "exactly"
    norms = sent[rows].norm(dim=1)
    assert (norms[:-1] >= norms[1:] - 1e-6).all()
    ids = rows.sort().values
    scale = torch.full((len(ids), 1), 0.5)
    assert torch.equal(moved_rows(Rows(ids, 2 * sent[ids], scale)), rows), (
        "rows that are sent alone tell the same"
    )
    assert len(moved_rows(torch.zeros(9, 4))) == 0


def test_a_local_epoch_hides_words_only_if_there_are_many() -> None:
    """SGD on 4 sentences, five epochs, table moving: 1.00, prior 0.38. Adam on 256 (1,504
    words): 0.16, prior 0.36.
    """
    few, many = long_reviews(4, 0), reviews()[:256]
    sgd = Train(optimizer="sgd", lr=0.1, batch=2, epochs=5)
    leak = scored(delta(start(0, candidates()), few, sgd, root(0)), few, candidates())
    assert leak.recall_at_n >= 0.9 > leak.prior_recall_at_n + 0.4
    adam = Train(optimizer="adam", batch=32)
    safe = scored(delta(start(0, candidates()), many, adam, root(0)), many, candidates())
    assert safe.recall_at_n <= safe.prior_recall_at_n + 0.05


@needs_data  # real vectors lie close together, which is what Adam adds to; hashed ones do not
def test_what_adam_adds_to_the_span_is_not_taken_for_text() -> None:
    """Three clients of eight texts, one Adam step: leverage as SGD's is read finds less, and no
    less after SGD.
    """
    adam, sgd = Train(optimizer="adam", batch=32), Train(optimizer="sgd", lr=0.1, batch=32)
    found: dict[str, list[float]] = {"adam": [], "adam, plainly": [], "sgd": [], "sgd, plainly": []}
    for client in range(3):
        for options in (adam, sgd):
            texts = reviews()[client * 8 : client * 8 + 8]
            upload = delta(start(client, candidates()), texts, options, root(client))
            spectrum = span(*(upload[name] for name in FIRST))
            truth = {i for example in texts for i in known(example)}
            plainly = leverage(spectrum, candidates()).argsort(stable=True)
            for name, order in (
                (options.optimizer, ranking(spectrum, candidates())),
                (f"{options.optimizer}, plainly", plainly),
            ):
                found[name].append(
                    score_words(order, truth, torch.arange(SIZE), public().words).recall_at_n
                )
    means = {name: sum(values) / 3 for name, values in found.items()}
    assert means["adam"] > means["adam, plainly"] + 0.05, means
    assert means["sgd"] > means["sgd, plainly"] - 0.02


def test_a_secret_rotation_hides_words_from_who_does_not_know_it() -> None:
    """Recall 0.00 for 34 words, and 1.00 again for whoever knows the rotation; the prior is
    0.29.
    """
    rotation = torch.linalg.qr(drawn(100, 100, name="rotation")).Q
    texts = long_reviews(2, 0)
    upload = gradient(MODEL, start(0, candidates() @ rotation), texts)
    outside, inside = (
        scored(upload, texts, candidates()),
        scored(upload, texts, candidates() @ rotation),
    )
    assert outside.recall_at_n <= outside.prior_recall_at_n
    assert inside.recall_at_n > 0.95


def test_a_drifted_table_is_still_ranked_though_no_residual_is_zero() -> None:
    """A tenth of each vector's length in noise: a threshold at 1 % finds nobody, the ranking
    all.
    """
    texts = long_reviews(2, 0)
    noise = 0.1 * drawn(SIZE, 100, name="drift") / 10 * candidates().norm(dim=1, keepdim=True)
    upload = gradient(MODEL, start(0, candidates() + noise), texts)
    near = distances(span(*(upload[name] for name in FIRST)), candidates())
    assert int((near < 0.01).sum()) == 0
    assert scored(upload, texts, candidates()).recall_at_n > 0.9


# --- the algebra ---------------------------------------------------------------------------------


def test_residual_and_leverage_are_what_they_say() -> None:
    g, x = (
        drawn(30, 12, name="g").double() @ torch.diag(torch.arange(12.0) > 4).double(),
        drawn(50, 12).double(),
    )
    spectrum = span(g[:10].float(), 1e-7 * g[10:].float())
    assert spectrum.rank == 7
    g = torch.cat(
        [g[:10] / g[:10].norm(), g[10:] / g[10:].norm()]
    )  # each matrix has norm 1, whatever it was sent with
    projection = torch.linalg.pinv(g) @ g  # on the row space
    expected = (x - x @ projection).norm(dim=1) / x.norm(dim=1)
    torch.testing.assert_close(residuals(spectrum, x, 7), expected, atol=1e-6, rtol=1e-5)
    inverse = torch.linalg.inv(g.T @ g + 0.3 * torch.eye(12))
    slow = torch.stack([row @ inverse @ row / (row @ row) for row in x])
    torch.testing.assert_close(leverage(spectrum, x, 0.3), slow, rtol=1e-4, atol=0.0)
    assert torch.equal(distances(spectrum, x), residuals(spectrum, x, 7)), (
        "7 of 12 axes: room is left"
    )


def test_the_rule_changes_at_nine_tenths_of_the_dimension() -> None:
    x = drawn(40, 20)
    for rank, exact in ((18, True), (19, False), (20, False)):
        spectrum = span(drawn(60, rank, name="g") @ drawn(rank, 20, name="axes"))
        assert (spectrum.rank, spectrum.exact) == (rank, exact)
        expected = residuals(spectrum, x, rank) if exact else leverage(spectrum, x)
        assert torch.equal(distances(spectrum, x), expected)


def test_an_upload_of_zeros_tells_the_prior_and_no_more() -> None:
    nothing = span(torch.zeros(8, 5))
    assert ranking(nothing, drawn(100, 5)).tolist() == list(range(100))
    assert leverage(nothing, drawn(100, 5)).isfinite().all()


def test_a_row_of_zeros_comes_last() -> None:
    x = drawn(10_000, 6)
    x[[0, 5000]] = 0
    for rank in (2, 6):  # both regimes
        assert set(ranking(span(drawn(20, rank) @ drawn(rank, 6)), x)[-2:].tolist()) == {0, 5000}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="same inputs"):
        span(drawn(4, 3), drawn(4, 2))
    with pytest.raises(DataError, match="not numbers"):
        span(torch.full((2, 2), torch.nan))
    with pytest.raises(DataError, match="rows of 3"):
        ranking(span(drawn(4, 3)), drawn(5, 2))
    with pytest.raises(ConfigError, match="above 0"):
        leverage(span(drawn(4, 3)), drawn(5, 3), 0.0)
    with pytest.raises(DataError, match="without a word"):
        sentence_scores(span(drawn(4, 3)), [drawn(2, 3), drawn(0, 3)])
    with pytest.raises(DataError, match="per class"):
        label_shares(drawn(2, 2))
    with pytest.raises(DataError, match="without words"):
        score_words(torch.arange(3), [], torch.arange(3), "abc")


def test_ranking_a_hundred_thousand_words_costs_little_more_than_one_product() -> None:
    """Of an LSTM of 300: 58 ms where the product alone takes 47."""
    table, first, square = (
        drawn(100_000, 100),
        drawn(2400, 100, name="first"),
        drawn(100, 100, name="square"),
    )

    def seconds(ranked: bool) -> float:
        begin = process_time()
        _ = ranking(span(first), table) if ranked else table @ square
        return process_time() - begin

    assert min(seconds(True) for _ in range(5)) < 3 * min(seconds(False) for _ in range(5))


# --- a transformer -------------------------------------------------------------------------------


@cache
def small_bert() -> tuple[EncoderClassifier, Params, list[str]]:
    """An untrained BERT of 64 dimensions, and the words of 600 reviews for its pieces, the most
    frequent first.
    """
    counts = Counter(
        word for review in list(load("rotten_tomatoes"))[:600] for word in words(review)
    )
    tokens = [word for word, _ in counts.most_common()]
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=64, intermediate_size=64, num_attention_heads=4
    )
    config.num_hidden_layers, config.max_position_embeddings = 2, 24
    model = from_config(config)
    return model, model.init(0, root(0)), tokens


def placed(texts: Sequence[str]) -> tuple[list[Example], Tensor, Tensor]:
    """What one batch of these texts gives away: words, most likely first, and their places."""
    model, params, tokens = small_bert()
    examples = [
        Example([tokens.index(word) for word in words(text)[:24]], i % 2)
        for i, text in enumerate(texts)
    ]
    sent, front = gradient(model, params, examples), "bert.embeddings"
    spectrum = span(
        *(
            sent[f"bert.encoder.layer.0.attention.self.{part}.weight"]
            for part in ("query", "key", "value")
        )
    )
    word, position, kind = (
        params[f"{front}.{part}_embeddings.weight"] for part in ("word", "position", "token_type")
    )
    gamma, beta = params[f"{front}.LayerNorm.weight"], params[f"{front}.LayerNorm.bias"]
    return examples, *placed_ranking(
        spectrum, transformer_inputs(word, position, kind[0], gamma, beta)
    )


def test_a_transformer_tells_words_and_their_places() -> None:
    """One review, 24 inputs of 64 dimensions: recall 1.00, each word where it stood. Eight, 149
    inputs: 0.25, prior 0.39.
    """
    tokens, texts = small_bert()[2], list(load("rotten_tomatoes"))[:8]
    (example,), order, places = placed(texts[:1])
    leak = score_words(order, example.ids, torch.arange(len(tokens)), tokens)
    assert leak.recall_at_n == 1.0 > leak.prior_recall_at_n + 0.5
    stood = [example.ids[place] for place in places[: leak.words].tolist()]
    assert stood == order[: leak.words].tolist(), "at a place where it stood"
    several, order, _ = placed(texts)
    more = score_words(
        order, {i for text in several for i in text.ids}, torch.arange(len(tokens)), tokens
    )
    assert more.recall_at_n < 0.6, "the pair: more inputs than dimensions"


def test_inputs_are_normed_word_by_word() -> None:
    table, places, kind, gamma, beta = (
        drawn(*s, name=str(s)) for s in ((5000, 8), (3, 8), (8,), (1, 8), (2, 4))
    )
    inputs = torch.cat(
        list(transformer_inputs(table, places, kind, gamma[0], beta.flatten(), 1e-5))
    )
    x = table[4321] + places[2] + kind
    expected = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * gamma[0] + beta.flatten()
    assert inputs.shape == (5000, 3, 8)
    torch.testing.assert_close(inputs[4321, 2], expected)


# --- labels and sentences ------------------------------------------------------------------------


def of_share(positive: int, count: int, client: int) -> list[Example]:
    """Texts of which so many are positive."""
    kinds = [[text for text in reviews() if text.label == label] for label in (0, 1)]
    return kinds[1][client * count :][:positive] + kinds[0][client * count :][: count - positive]


@pytest.mark.parametrize(
    "options", [Train(optimizer="sgd", lr=0.1, batch=16), Train(optimizer="adam", batch=16)]
)
def test_label_shares_are_in_the_output_bias(options: Train) -> None:
    """Correlation over 13 clients, the same model, 0 to 48 of 48 texts positive: SGD 1.00, Adam
    0.97.
    """
    params, counts = start(0, candidates()), range(0, 49, 4)
    scores = [
        label_shares(delta(params, of_share(n, 48, client), options, root(client))["output.bias"])[
            1
        ]
        for client, n in enumerate(counts)
    ]
    assert (
        torch.corrcoef(torch.stack([torch.tensor(list(counts)), torch.stack(scores)]))[0, 1] > 0.9
    )


def test_one_step_tells_the_shares_exactly_to_who_knows_the_predictions() -> None:
    params, texts = start(0, candidates()), of_share(12, 16, 0)
    sent = delta(params, texts, Train(optimizer="sgd", lr=0.1, batch=16), root(0))["output.bias"]
    predicted = MODEL.logits(params, collate(texts), None).softmax(1).mean(0)
    torch.testing.assert_close(
        label_shares(sent, 0.1, predicted), torch.tensor([0.25, 0.75]), atol=1e-5, rtol=0.0
    )
    assert label_shares(sent)[1] > label_shares(sent)[0], "the order is there without them"


def membership(texts: int, client: int) -> float:
    """The AUC of a client's sentences among 500 others, after one epoch with Adam."""
    order = torch.randperm(
        len(reviews()), generator=torch_generator(derive(root(client), "texts"))
    ).tolist()
    own, others = (
        [reviews()[i] for i in part] for part in (order[:texts], order[texts : texts + 500])
    )
    sent = delta(start(client, candidates()), own, Train(optimizer="adam", batch=32), root(client))
    spectrum = span(*(sent[name] for name in FIRST))
    return auc(
        *(
            sentence_scores(spectrum, [candidates()[known(text)] for text in side])
            for side in (own, others)
        )
    )


def test_sentences_of_a_small_client_are_told_from_others() -> None:
    """Mean AUC of 24 clients with 16 sentences 0.73, of 4 with 256 sentences 0.51.

    A client's AUC spreads by 0.08 (0.56 to 0.86): the mean of 24 is right to 0.017.
    """
    small = [membership(16, client) for client in range(24)]
    large = [membership(256, client) for client in range(4)]
    assert sum(small) / len(small) > 0.7
    assert abs(sum(large) / len(large) - 0.5) < 0.08


def test_a_sentence_is_scored_by_its_words() -> None:
    spectrum, sentences = (
        span(drawn(9, 4) @ drawn(4, 6)),
        [drawn(n, 6, number=n) for n in (3, 1, 5)],
    )
    expected = [
        -sum(distances(spectrum, s[[i]]).item() for i in range(len(s))) / len(s) for s in sentences
    ]
    torch.testing.assert_close(
        sentence_scores(spectrum, sentences), torch.tensor(expected, dtype=torch.float64)
    )
    lowest = [-distances(spectrum, s).max().item() for s in sentences]
    torch.testing.assert_close(
        sentence_scores(spectrum, sentences, 0.0), torch.tensor(lowest, dtype=torch.float64)
    )


# --- scores --------------------------------------------------------------------------------------


def test_words_are_scored_as_defined() -> None:
    tokens = ["the", "of", "film", "b2b", "1984", "dull"]
    leak = score_words(
        torch.tensor([4, 0, 3, 1, 5, 2]), [0, 3, 3, 4, 5], torch.arange(6), tokens, common=2
    )
    assert (leak.words, leak.recall_at_n, leak.prior_recall_at_n) == (4, 0.75, 0.5)
    assert (leak.precision, leak.recall, leak.f1) == (0.75, 0.75, 0.75), "the attacker was told n"
    assert (leak.rare_recall, leak.ptlr) == (2 / 3, 1.0)
    own = score_words(
        torch.tensor([4, 0, 3, 1, 5, 2]), [0, 3, 4, 5], torch.arange(6), tokens, guesses=2
    )
    assert (own.precision, own.recall, own.f1, own.recall_at_n) == (1.0, 0.5, 2 / 3, 0.75)
    assert (own.rare_recall, score_words(torch.arange(6), [0], torch.arange(6), tokens).ptlr) == (
        None,
        None,
    )
    short = score_words(torch.tensor([4]), [0, 3, 4, 5], torch.arange(6), tokens)
    assert (short.precision, short.recall, short.f1, short.ptlr) == (1.0, 0.25, 0.4, 0.5), (
        "fewer rows than n may have moved"
    )


def test_wilson_holds_the_share_as_often_as_it_says() -> None:
    """3,000 samples of 40 at 0.9, where the plain interval covers about 0.91: the error of the
    estimate is 0.004.
    """
    hits = (torch.rand(3000, 40, generator=torch_generator(root(0))) < 0.9).sum(1).tolist()
    covered = sum(low <= 0.9 <= high for low, high in (wilson(h, 40) for h in hits)) / 3000
    assert 0.93 < covered < 0.98
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    low, high = wilson(20, 20)
    assert 0.8 < low < 0.9 < high <= 1.0


SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@given(SCORES, SCORES)
def test_auc_counts_pairs(members: list[int], others: list[int]) -> None:
    pairs = [(a > b) + (a == b) / 2 for a in members for b in others]
    assert auc(torch.tensor(members), torch.tensor(others)) == pytest.approx(
        sum(pairs) / len(pairs)
    )


def test_tpr_at_a_false_positive_rate() -> None:
    members, others = 1 + drawn(300, name="in").double(), drawn(1000, name="out").double()
    others[:40] = 3.0  # ties at the border: a threshold can't part them
    for fpr in (0.01, 0.03, 0.05, 0.29):
        levels = [t for t in others.tolist() if float((others > t).double().mean()) <= fpr]
        assert tpr_at(fpr, members, others) == max(
            float((members > t).double().mean()) for t in levels
        )
    assert tpr_at(0.01, members, others[1:]) is None, "999 are too few for 1 %"
    assert tpr_at(0.001, members, drawn(9_999)) is None
    assert tpr_at(0.001, members, drawn(10_000).double()) is not None


def subsequences(text: list[str]) -> set[tuple[str, ...]]:
    return {part for size in range(len(text) + 1) for part in combinations(text, size)}


TEXT = st.lists(st.sampled_from("abc"), max_size=8)


@given(TEXT, TEXT)
def test_rouge_is_what_it_says(reference: list[str], guess: list[str]) -> None:
    def overlap(one: list[object], other: list[object]) -> float:
        left, hits = list(other), 0
        for item in one:
            if item in left:
                left.remove(item)
                hits += 1
        return 2 * hits / max(len(one) + len(other), 1)

    pairs = [[(text[i], text[i + 1]) for i in range(len(text) - 1)] for text in (reference, guess)]
    longest = max(map(len, subsequences(reference) & subsequences(guess)))
    ours = rouge(reference, guess)
    assert ours.words == pytest.approx(overlap(list(reference), list(guess)))
    assert ours.pairs == pytest.approx(overlap(list(pairs[0]), list(pairs[1])))
    assert ours.longest == pytest.approx(2 * longest / max(len(reference) + len(guess), 1))


def test_rouge_by_hand() -> None:
    ours = rouge(["the", "film", "is", "dull"], ["the", "dull", "film", "is"])
    assert (ours.words, ours.pairs, ours.longest) == (1.0, 1 / 3, 0.75), (
        "one of three pairs: film is"
    )
