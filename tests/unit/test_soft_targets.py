"""Soft targets: what the old model knew of each next word, where the tokenizers cut words otherwise."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, root, torch_generator
from lexfed.experiment import config
from lexfed.experiment.assembly import assemble
from lexfed.federation import ServerState
from lexfed.language import switching
from lexfed.language.language_task import TOKENIZER, LanguageTask, tokenizer_of
from lexfed.language.soft_targets import (
    Begun,
    Beside,
    Pair,
    Reader,
    SoftTexts,
    Teacher,
    paired,
    taught_softly,
)
from lexfed.language.switching import switched
from lexfed.language.teaching import Lesson, Written, taught
from lexfed.learning.task import Local
from lexfed.models.language_model import pad
from lexfed.models.lstm_lm import LstmLanguageModel
from lexfed.vocabulary import learned
from lexfed.vocabulary.tokenizer import Kind, TrainedTokenizer
from tests.unit.test_teaching import (
    OPTIONS,
    TEXTS,
    WORDS,
    nll,
    obvious_logits,
    obvious_states,
    of_the_boat,
    task_of,
)

LESSON = Lesson(epochs=2, lr=5e-3, batch=8)
SOFT = replace(OPTIONS, teach_targets="soft")


def of_word(tokenizer: TrainedTokenizer, word: str, rough: bool) -> list[int]:
    """As the tokenizer has it, or letter by letter: a model may write so too."""
    if not rough:
        return tokenizer.encode_words([word])[0]
    return [tokenizer.tokens.index(letter) for letter in f"Ġ{word}"]


def is_rough(text: int, word: int) -> bool:
    return (text + word) % 5 == 0


def written(count: int) -> list[Written]:
    """Some of them cut in the middle, some words letter by letter."""
    old, found = teacher_of().tokenizer, []
    for i, text in enumerate(TEXTS[:count]):
        drawn = [of_word(old, word, is_rough(i, j)) for j, word in enumerate(text)]
        found.append(Written(text, i % 3 > 0, [token for word in drawn for token in word]))
    return found


def teacher_of(name: str = "lstm", temperature: float = 1.0) -> Teacher:
    state = of_the_boat(name)
    return Teacher(task_of(name).model, state.params, tokenizer_of(state).tokenizer, temperature)


# --- what it computes -----------------------------------------------------------------------------


Step = tuple[int, Tensor]  # an input, and the target after it


def obvious_steps(
    texts: list[Written], teacher: Teacher, new: TrainedTokenizer
) -> list[list[Step]]:
    """Of each text: the tokens that go in, and what is to come out."""
    old, drawn = teacher.tokenizer, Counter[tuple[int, int]]()
    both = []
    for i, text in enumerate(texts):
        words = text.words if text.ended else text.words[:-1]
        units = [
            (of_word(old, w, is_rough(i, j)), new.encode_words([w])[0]) for j, w in enumerate(words)
        ]
        units += [([old.eos], [new.eos])] if text.ended else []
        drawn.update((u[0], t[0]) for u, t in units)
        both.append(units)
    of_first = Counter[int]()
    for (u, _), n in drawn.items():
        of_first[u] += n
    found = []
    for units in both:
        read = [old.bos, *(token for u, _ in units for token in u)]
        states, at, before = obvious_states(dict(teacher.params), read), 0, new.bos
        steps: list[Step] = []
        for u, t in units:
            z = obvious_logits(dict(teacher.params), states[at]) / teacher.temperature
            can = [i in of_first and (at > 0 or i != old.eos) for i in range(len(z))]
            z = torch.tensor([z[i] if can[i] else -torch.inf for i in range(len(z))])
            p = torch.softmax(z, 0)
            for place, token in enumerate(t):
                target = torch.zeros(len(new.tokens))
                target[token] += 1
                if place == 0:
                    for (one, first), n in drawn.items():
                        told = float(p[one]) - (one == u[0])
                        target[first] += told * n / of_first[one]
                steps.append((before, target))
                before = token
            at += len(u)
        found.append(steps)
    return found


def obvious_teaching(
    params: dict[str, Tensor], texts: list[list[Step]], context: int, lesson: Lesson, seed: Seed
) -> dict[str, Tensor]:
    windows = [steps[at : at + context] for steps in texts for at in range(0, len(steps), context)]
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=lesson.lr)
    per_epoch = -(-len(windows) // lesson.batch)
    steps, number = lesson.epochs * per_epoch, 0
    for epoch in range(lesson.epochs):
        generator = torch_generator(derive(derive(seed, "epoch", epoch), 0))
        order = torch.randperm(len(windows), generator=generator).tolist()
        for start in range(0, len(order), lesson.batch):
            some = [windows[i] for i in order[start : start + lesson.batch]]
            loss = torch.zeros(())
            for window in some:
                states = obvious_states(leaves, [token for token, _ in window])
                for state, (_, target) in zip(states, window, strict=True):
                    loss = loss - target @ torch.log_softmax(obvious_logits(leaves, state), 0)
            optimizer.zero_grad()
            (loss / sum(map(len, some))).backward()  # type: ignore[no-untyped-call]
            warm = min(50, steps // 10)
            rise = min(1.0, (number + 1) / warm) if warm else 1.0
            optimizer.param_groups[0]["lr"] = lesson.lr * rise * (1 - number / steps)
            optimizer.step()
            number += 1
    return {name: leaf.detach() for name, leaf in leaves.items()}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_soft_teaching_is_the_obvious_loop(temperature: float) -> None:
    task, teacher = task_of(), teacher_of(temperature=temperature)
    new = learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    start = dict(task.model.init(len(new.tokens), root(3)))
    texts = obvious_steps(written(40), teacher, new)
    expected = obvious_teaching(start, texts, 8, LESSON, root(4))
    found = taught_softly(task, start, written(40), new, teacher, LESSON, root(4))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=2e-5)
        assert not torch.allclose(found[name], start[name], atol=1e-4), f"{name} has learned"


def soft(count: int, batch: int = 8) -> SoftTexts:
    teacher = teacher_of()
    new = learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    reader = Reader(teacher.tokenizer, lowercase=True)
    pairs = [paired(text, reader, new) for text in written(count)]
    return SoftTexts(teacher, pairs, len(new.tokens), 8, batch)


def test_what_is_added_is_zero_in_the_sum() -> None:
    """A target stays a share of one."""
    for batch in soft(30).batches(root(1)):
        assert isinstance(batch.beside, Beside)
        places = torch.arange(len(batch) * (batch.ids.shape[1] - 1))
        added = batch.beside(places).t()
        torch.testing.assert_close(added.sum(1), torch.zeros(len(added)), rtol=0, atol=1e-5)
        assert added.abs().max() > 0.1


def test_lots_are_the_texts_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same windows and the same additions, and as many steps as were planned."""

    def told(texts: SoftTexts) -> list[tuple[list[int], float]]:
        found, steps = [], 0
        for batch in texts.batches(root(1)):
            steps += 1
            width = batch.ids.shape[1] - 1
            assert batch.beside is not None
            for row in range(len(batch)):
                n = int(batch.lengths[row])
                added = batch.beside(torch.arange(row * width, row * width + n - 1))
                found.append((batch.ids[row, :n].tolist(), round(float(added.square().sum()), 3)))
        assert steps == texts.steps
        return sorted(found)

    whole = told(soft(40))
    monkeypatch.setattr("lexfed.language.soft_targets.LOT", 7)
    assert told(soft(40)) == whole


def test_a_word_that_the_new_tokenizer_leaves_out_begins_nowhere() -> None:
    old, new = teacher_of().tokenizer, learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    words, reader = ["the", "old", "boat"], Reader(old, lowercase=True)
    text = Written(words, True, old.encode_words(words)[0])
    whole = paired(text, reader, new)
    assert len(whole.at_old) == len(whole.at_new) == 4, "three words and the end"
    new._known["old"] = []
    try:
        left = paired(text, reader, new)
    finally:
        del new._known["old"]
    assert len(left.at_old) == len(left.at_new) == 3
    assert left.old[left.at_old + 1].tolist() == whole.old[whole.at_old[[0, 2, 3]] + 1].tolist()


def test_words_within_a_word_that_was_drawn_begin_nowhere() -> None:
    """What has no blank before it is a word of its own, and its token does not say so."""
    old, new = teacher_of().tokenizer, learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    comma = old.tokens.index(",")
    words = ["the", ",", "old"]
    drawn = [*old.encode_words(["the"])[0], comma, *old.encode_words(["old"])[0]]
    found = paired(Written(words, True, drawn), Reader(old, lowercase=True), new)
    first = [old.encode_words([word])[0][0] for word in ("the", "old")]
    assert found.old[found.at_old + 1].tolist() == [*first, old.eos]
    lengths = new.encode_words(words)[1]
    assert found.at_new.tolist() == [0, sum(lengths[:2]), sum(lengths)]


def test_bytes_that_are_no_letters_leave_hard_targets() -> None:
    """Half a letter here and half of it there: where words begin is not known any more."""
    old, new = teacher_of().tokenizer, learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    drawn = old.encode_words(["the", "old"])[0]
    found = paired(Written(["the"], True, drawn), Reader(old, lowercase=True), new)
    assert len(found.at_old) == len(found.at_new) == 1, "the end alone"


@pytest.mark.parametrize("kind", ["bpe", "word", "wordpiece", "unigram"])
def test_which_tokens_begin_a_word(kind: Kind) -> None:
    tokenizer = learned.learn(TEXTS, kind, 300, "x").tokenizer
    for word in WORDS:
        first, *rest = tokenizer.encode_words([word])[0]
        assert tokenizer.begins[first]
        assert not any(tokenizer.begins[token] for token in rest)
    assert not tokenizer.begins[tokenizer.bos]
    assert not tokenizer.begins[tokenizer.eos]


def test_what_is_added_is_zero_in_the_mean() -> None:
    """Over texts that a model writes, badly, at a temperature of its own: as often as it is told
    that a token begins a word, it was drawn.
    """
    task, state = task_of(), of_the_boat("lstm")
    options = replace(SOFT, temperature=0.8, sample_length=60)
    old = tokenizer_of(state)
    texts = [*switching.written(task, options, state.params, old, root(5), 12_000)]
    reader = Reader(old.tokenizer, lowercase=True)
    pairs = [paired(text, reader, old.tokenizer) for text in texts]
    early = []  # later on, what was drawn decides whether a text was cut and its last word left out
    for pair in pairs:
        kept = pair.at_old < 25
        early.append(replace(pair, at_old=pair.at_old[kept], at_new=pair.at_new[kept]))
    teacher = Teacher(task.model, state.params, old.tokenizer, options.temperature)
    soft = SoftTexts(teacher, early, len(old.tokenizer.tokens), 8, 8)
    told = torch.zeros(soft.tokens)
    variance = torch.zeros(soft.tokens)
    for lot in soft.lots:
        begun = Begun.of(soft, lot)
        beside = Beside(soft, begun, torch.arange(len(begun.drawn)))
        p = beside._chances(torch.arange(len(begun.drawn)))
        told += p.sum(1) - torch.bincount(begun.drawn, minlength=soft.tokens)
        variance += (p * (1 - p)).sum(1)
    frequent = variance > 5
    assert frequent.sum() >= 5
    z = told[frequent] / variance[frequent].sqrt()
    assert z.abs().max() < 4, z


def test_the_teacher_reads_as_it_writes() -> None:
    for name in ("lstm", "transformer"):
        teacher, pairs = teacher_of(name), soft(70).pairs
        states = teacher.states(pairs)
        at = 0
        for pair in pairs:
            step = teacher.model.stepper(teacher.params, 1)
            read = [step(torch.tensor([int(i)]), torch.tensor([n == 0]))[0]
                    for n, i in enumerate(pair.old[:-1])]  # fmt: skip
            for place in pair.at_old:
                torch.testing.assert_close(states[at], read[place], rtol=0, atol=1e-5)
                at += 1
        assert at == len(states)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_compiled_loops_and_torch_agree(name: str) -> None:
    """In double precision, as on a device, nothing is compiled."""
    task, teacher = task_of(name), teacher_of(name)
    new = learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    start = task.model.init(len(new.tokens), root(3))
    single = taught_softly(task, start, written(30), new, teacher, LESSON, root(4))
    double = taught_softly(
        task, doubled(start), written(30), new, replace(teacher, params=doubled(teacher.params)),
        LESSON, root(4),
    )  # fmt: skip
    hard = taught(task, start, written(30), new, LESSON, root(4))
    for key, value in double.items():
        torch.testing.assert_close(single[key].double(), value, rtol=0, atol=2e-5)
    assert not torch.allclose(single["output.bias"], hard["output.bias"], atol=1e-3)


def doubled(params: Params) -> Params:
    return {name: value.double() for name, value in params.items()}


def test_soft_targets_of_another_shape_are_refused() -> None:
    task = task_of()
    params = {n: v.requires_grad_() for n, v in task.model.init(20, root(0)).items()}
    batch = replace(pad([[1, 2, 3], [4, 5]]), beside=lambda at: torch.zeros(7, len(at)))
    with pytest.raises(ValueError, match="soft targets"):
        task.gradient(params, batch, root(1))


def test_texts_with_nothing_in_them_teach_nothing() -> None:
    task, teacher = task_of(), teacher_of()
    new = learned.learn(TEXTS, "bpe", 300, "x").tokenizer
    start = task.model.init(len(new.tokens), root(3))
    half = Written(["bo"], False, teacher.tokenizer.encode_words(["bo"])[0])
    for texts in ([], [half]):
        assert taught_softly(task, start, texts, new, teacher, LESSON, root(4)) is start


# --- what it does ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_a_softly_taught_model_is_close_to_the_old_one_again(name: str) -> None:
    task, state = task_of(name), of_the_boat(name)
    plain = switched(task, replace(SOFT, teach_words=0), state, root(2))
    after = switched(task, SOFT, state, root(2))
    assert after.blobs == plain.blobs != state.blobs
    old, bare, healed = (nll(task, one, TEXTS) for one in (state, plain, after))
    assert healed - old < 0.5 * (bare - old)
    again = switched(task, SOFT, state, root(2))
    assert all(torch.equal(value, again.params[name]) for name, value in after.params.items())


def chances(task: LanguageTask, state: ServerState, texts: list[list[int]]) -> Tensor:
    """Of each next token, at all places of these texts."""
    batch = pad(texts)
    hidden = task.model.hidden(state.params, batch.ids[:, :-1], None)
    real = torch.arange(hidden.shape[1]) < batch.lengths[:, None] - 1
    weight = state.params.get("output.weight", state.params["embedding.weight"])
    return torch.log_softmax(hidden[real] @ weight.t() + state.params["output.bias"], 1)


def test_one_who_has_the_same_tokenizer_has_nothing_to_learn() -> None:
    """There the target is the teacher's own chance: what was drawn does not count."""
    task, whole = task_of(), learned.learn(TEXTS, "bpe", 330, "x")  # a token for each word
    sequences = [whole.tokenizer.sequence(text) for text in TEXTS]
    start = task.model.init(len(whole.tokenizer.tokens), root(0))
    params = dict(task.fit(start, sequences, Local(0.5, epochs=3), root(1)).params)
    state = ServerState(params=params, blobs={TOKENIZER: whole.to_bytes()})
    texts = [sequence[:9] for sequence in sequences[:50]]
    before = chances(task, state, texts)

    def moved(targets: str) -> float:
        options = replace(OPTIONS, new="same", teach_targets=targets, teach_words=600)
        after = chances(task, switched(task, options, state, root(2)), texts)
        return float((before.exp() * (before - after)).sum(1).mean())

    assert moved("soft") < 0.7 * moved("hard")


def test_targets_are_hard_or_soft() -> None:
    table = {"teach_words": 10, "teach_targets": "mild"}
    with pytest.raises(ConfigError, match="teach_targets"):
        config.parse({"method": "tokenizer_for_free", "tokenizer_for_free": table})


def test_pairs_hold_numbers_of_four_bytes() -> None:
    pair = soft(3).pairs[0]
    assert isinstance(pair, Pair)
    assert {str(one.dtype) for one in (pair.old, pair.new, pair.at_old, pair.at_new)} == {"int32"}


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    """A configuration of a few users; the options of the method are still to be set."""
    lines = [json.dumps({"user": f"u{i % 7}", "text": " ".join(t)}) for i, t in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    data = {"name": str(tmp_path / "texts.jsonl"), "partition": "user", "clients": 3, "unseen": 2}
    return {
        "method": "tokenizer_for_free",
        "rounds": 2,
        "data": data,
        "tokenizer": {"size": 290, "start": "oracle"},
        "cohort": {"size": 2},
        "language_model": {"layers": 1, "width": 8},
    }


def assembled(small: Mapping[str, Any], **options: object) -> None:
    assemble(config.parse({**small, "tokenizer_for_free": {"switch": [1], **options}}))


def test_a_model_that_does_not_mind_them_is_refused(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assembled(small, teach_words=10, teach_targets="soft")
    monkeypatch.setattr(LstmLanguageModel, "soft_targets", False)
    assembled(small, teach_targets="soft")
    with pytest.raises(ConfigError, match="LstmLanguageModel does not"):
        assembled(small, teach_words=10, teach_targets="soft")


@pytest.mark.parametrize("rate", [0, -0.01, math.inf, math.nan, "fast", None])
def test_a_models_own_rate_of_teaching_is_looked_at_before_the_first_round(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rate: object
) -> None:
    assembled(small, teach_words=10)
    monkeypatch.setattr(LstmLanguageModel, "adam_rate", rate)
    with pytest.raises(ConfigError, match=r"adam_rate is .* no learning rate"):
        assembled(small, teach_words=10)
    assembled(small)
    assembled(small, teach_words=10, teach_lr=1e-3)
