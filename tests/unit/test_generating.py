"""Texts that a language model writes, after the switch and before it."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from lexfed.api import Run, run
from lexfed.core.errors import LexfedError
from lexfed.core.seeds import root
from lexfed.models import language_model
from lexfed.models.language_model import LanguageModelOptions, continued
from tests.conftest import Lexfed, Trained, no_pictures
from tests.unit.test_tokenizer_for_free import folder  # noqa: F401

Written = Callable[..., Run]
NO_NOISE: dict[str, object] = {"privacy__placement": "none"}


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:  # noqa: F811
    place, runs = tmp_path_factory.mktemp("written"), dict[str, Run]()

    def get(**settings: object) -> Run:
        dotted = {"evaluation.every": 0, **{k.replace("__", "."): v for k, v in settings.items()}}
        if str(dotted) not in runs:
            out = place / str(len(runs))
            with no_pictures():
                runs[str(dotted)] = run(folder / "small.toml", out=out, settings=dotted, quiet=True)
        return runs[str(dotted)]

    return get


def test_texts_are_as_many_and_as_long_as_asked_for(written: Written) -> None:
    model = written()
    texts = model.generate(words=7, texts=4)
    assert len(texts) == 4
    assert all(len(text.split()) <= 7 for text in texts)
    assert max(len(text.split()) for text in texts) > 3
    assert texts == model.generate(words=7, texts=4), "a seed says which"
    assert texts != model.generate(words=7, texts=4, seed=1)
    assert texts != model.generate(words=7, texts=4, temperature=0.2)
    begun = model.generate(words=3, texts=2, prompt="The film's end")
    assert all(text.startswith("The film's end") for text in begun)
    assert len(model.generate(words=1, texts=300)) == 300


@pytest.mark.parametrize("kind", ["word", "wordpiece", "unigram"])
def test_any_tokenizer_writes(kind: str, written: Written) -> None:
    settings = {"tokenizer__kind": kind, "rounds": 1, "tokenizer_for_free__switch": []}
    texts = written(**settings).generate(words=9, texts=3, prompt="a film")
    assert all(text.startswith("a film") for text in texts)
    assert all(len(text.split()) <= 11 for text in texts)


def test_before_the_switch_it_is_the_model_that_never_switched(written: Written) -> None:
    switched, stayed = written(), written(rounds=2, tokenizer_for_free__switch=[])
    before = switched.generate(words=8, before_switch=True)
    assert before == stayed.generate(words=8)
    assert before != switched.generate(words=8)
    assert [path.name for path in (switched.path / "kept").iterdir()] == ["000002"]
    with pytest.raises(LexfedError, match="was never switched"):
        stayed.generate(before_switch=True)


def test_what_an_earlier_lexfed_did_not_keep_is_told(written: Written, tmp_path: Path) -> None:
    old = Run(tmp_path / "old")
    shutil.copytree(written().path, old.path)
    shutil.rmtree(old.path / "kept")
    with pytest.raises(LexfedError, match=r"run it again with keep = \[2\]"):
        old.generate(before_switch=True)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
@pytest.mark.parametrize("prompt", [[], [5, 9, 5, 7, 11, 3, 8, 8, 6, 4]])
def test_what_is_drawn_is_what_the_model_expects(name: str, prompt: Sequence[int]) -> None:
    """At a temperature near 0, always the most likely token, as reading the whole text says it."""
    options = LanguageModelOptions(name=name, layers=2, width=8, heads=2, context=16)
    model = language_model.build(options)
    params = {n: 20 * v for n, v in model.init(30, root(3)).items()}
    bos, eos = 1, 2
    texts = continued(
        model, params, prompt, 3, lambda ids, _: len(ids) >= 5, (bos, eos), 1e-4, root(0)
    )
    assert texts[0] == texts[1] == texts[2]
    read = [bos, *prompt]
    for token in [*texts[0], *([eos] if len(texts[0]) < 5 else [])]:
        hidden = model.hidden(params, torch.tensor([read]), None)[0, -1]
        logits = params["embedding.weight"] @ hidden + params["output.bias"]
        logits[bos] = -torch.inf
        assert int(logits.argmax()) == token
        read.append(token)


def test_the_command_says_whether_the_model_may_quote(written: Written, lexfed: Lexfed) -> None:
    open_, safe = written(rounds=2, tokenizer_for_free__switch=[], **NO_NOISE), written()
    assert open_.summary["promise"] is None
    assert safe.summary["promise"]["holds"] is True
    said = lexfed("generate", open_.path, "--words", 5, "--texts", 2, "--prompt", "It is")
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("It is") == 2
    assert "this model may quote its users" in said.stdout
    assert "quote" not in lexfed("generate", safe.path, "--words", 5).stdout
    shutil.copytree(safe.path, "unfinished")
    Path("unfinished/summary.json").unlink()
    unfinished = lexfed("generate", "unfinished", "--words", 5, "--texts", 1)
    assert "this model may quote its users" in unfinished.stdout, "nothing is known of a promise"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "0"], "the temperature must be above 0"),
        (["--temperature", "nan"], "the temperature must be above 0"),
        (["--words", "0"], "at least one word"),
        (["--texts", "0"], "at least one word and one text"),
        (["--words", "many"], "is not a valid int"),
    ],
)
def test_wrong_wishes_are_one_line(
    words: list[str], message: str, written: Written, lexfed: Lexfed
) -> None:
    result = lexfed("generate", written().path, *words)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr


def test_each_command_knows_what_it_is_for(
    written: Written, trained: Trained, lexfed: Lexfed, tmp_path: Path
) -> None:
    (tmp_path / "new.txt").write_text("a text\n")
    refused = lexfed("predict", written().path, "--in", "new.txt")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "is no classifier (language model): it has no labels to predict" in refused.stderr
    refused = lexfed("generate", trained("fedavg").path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "holds a classifier: it writes no texts" in refused.stderr
    assert "is not a run directory" in lexfed("generate", "nowhere").stderr
