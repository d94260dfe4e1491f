"""Small stumbles of people who used lexfed for the first time, one test each: what a run says when it
starts and when it goes on, names, words, hints.
"""

import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lexfed.experiment import config as configuration
from lexfed.learning.defences import enough_words
from lexfed.records.rundir import RunDir
from lexfed.report import progress
from lexfed.runtime.recording import Recorder
from tests.conftest import ROOT, Lexfed, no_pictures

pytestmark = pytest.mark.usefixtures("without_pages")


@pytest.fixture
def without_pages() -> Iterator[None]:
    with no_pictures():
        yield


def test_what_was_sent_goes_on_where_a_run_stopped(tiny: Path, lexfed: Lexfed) -> None:
    """It began again at nothing after --resume."""
    assert lexfed("run", tiny, "--out", "a", "--set", "rounds=2").returncode == 0
    before = [r["bytes_up"] + r["bytes_down"] for r in RunDir(Path("a")).records()]
    out = lexfed("run", "a", "--resume", "--set", "rounds=3").stdout
    sent = [r["bytes_up"] + r["bytes_down"] for r in RunDir(Path("a")).records()]
    assert len(sent) == 3
    assert sent[:2] == before
    (told,) = re.findall(r"round 3/3 .*sent ([\d.]+ kB)", out)
    assert told == f"{sum(sent) / 1000:.1f} kB"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_counts_what_was_sent_before(terminal: bool) -> None:
    console = Console(file=StringIO(), force_terminal=terminal, width=200)
    record = {"round": 3, "bytes_up": 1000, "bytes_down": 2000, "seconds": 1.0, "loss": 0.5,
              "metrics": {}, "evaluation_seconds": 0.0}  # fmt: skip
    progress.show(iter([record]), 4, 2, console, sent=7000)
    assert "sent 10.0 kB" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_begins_with_how_many_texts_train_and_how_many_are_held_out(
    tiny: Path, lexfed: Lexfed
) -> None:
    out = lexfed("run", tiny, "--out", "a", "--set", "rounds=1").stdout
    told = re.search(r"6 clients, (\d+) texts to train on, (\d+) held out, 1 round$", out, re.M)
    assert told, out
    assert int(told[1]) + int(told[2]) == 80
    assert 0 < int(told[2]) < int(told[1])


def test_users_who_never_train_are_held_out(tiny: Path, lexfed: Lexfed) -> None:
    words = ("--set", "data.unseen=2", "--set", "rounds=2")
    out = lexfed("run", tiny, "--out", "a", *words).stdout
    told = re.search(r"(\d+) texts to train on, (\d+) held out, 2 rounds$", out, re.M)
    assert told, out
    assert int(told[1]) + int(told[2]) == 80


def test_texts_that_are_not_scored_are_held_out_all_the_same(tiny: Path, lexfed: Lexfed) -> None:
    """With evaluation.limit they were said to be left out, because they occurred twice."""
    words = ("--set", "evaluation.limit=4", "--set", "rounds=1")
    out = lexfed("run", tiny, "--out", "a", *words).stdout
    told = re.search(r"(\d+) texts to train on, (\d+) held out, 1 round$", out, re.M)
    assert told, out
    assert int(told[1]) + int(told[2]) == 80
    assert "are left out" not in out


def test_auto_says_which_device_it_chose(tiny: Path, lexfed: Lexfed) -> None:
    out = lexfed("run", tiny, "--out", "a", "--device", "auto", "--set", "rounds=1").stdout
    assert re.search(r"1 round, on (cpu|cuda|mps)\b", out)
    plain = lexfed("run", tiny, "--out", "b", "--set", "rounds=1").stdout
    assert "on cpu" not in plain, "nobody asked"


def test_who_waits_for_ray_is_told_so(tiny: Path, lexfed: Lexfed) -> None:
    pytest.importorskip("ray")
    told = lexfed("run", tiny, "--out", "a", "--ray", "ray://nowhere:1")
    assert told.returncode == 2
    assert "write HOST:PORT" in told.stderr
    assert told.stdout.rstrip().endswith("reaching Ray at ray://nowhere:1 ...")


def test_an_export_names_the_client_as_it_was_named(tiny: Path, lexfed: Lexfed) -> None:
    rows = [json.loads(line) for line in Path("texts.jsonl").read_text().splitlines()]
    for place, row in enumerate(rows):
        row["source"] = ("East", "North", "South")[place % 3]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    named = ("--set", "data.partition=source", "--set", "data.clients=3", "--set", "rounds=1")
    run = lexfed("run", tiny, "--out", "a", *named, "--set", "method=fedevocab")
    assert run.returncode == 0, run.stderr
    out = lexfed("export", "a", "--client", "North", "--to", "model").stdout
    assert "client 1 (North)" in out
    assert "North" not in Path("model/README.md").read_text(), "a card may be passed on"


def test_one_class_is_no_matter_for_a_language_model(tiny: Path, lexfed: Lexfed) -> None:
    rows = [json.loads(line) for line in Path("texts.jsonl").read_text().splitlines()]
    for place, row in enumerate(rows):
        row["user"] = f"u{place % 2}-{place // 8}"  # whose texts are all of one class
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    by_user = ("--set", "data.partition=user", "--set", "rounds=1")
    note = "clients hold texts of one class only"
    assert note in lexfed("run", tiny, "--out", "a", *by_user).stdout
    texts = ("--set", "method=tokenizer_for_free", "--set", "data.unseen=2", "--set", "data.test=0",
             "--set", "data.validation=0", "--set", "tokenizer_for_free.switch=[]",
             "--set", "tokenizer.size=300", "--set", "tokenizer.public=imdb",
             "--set", "language_model.width=4",
             "--set", "evaluation.every=0")  # fmt: skip
    other = Path("language.toml")
    other.write_text(f'rounds = 1\n[data]\nname = "{tiny.parent}/texts.jsonl"\nclients = 6\n')
    run = lexfed("run", other, "--out", "b", *by_user, *texts)
    assert run.returncode == 0, run.stderr
    assert note not in run.stdout


# --- hints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "hint"), [(("ruun",), "'run'"), (("data", "lst"), "'list'")])
def test_a_hint_is_given_once(words: tuple[str, ...], hint: str, lexfed: Lexfed) -> None:
    result = lexfed(*words)
    assert result.returncode == 2
    assert result.stderr.count("Did you mean") == 1
    assert f"Did you mean {hint}?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_for_the_shell_that_was_named(shell: str, lexfed: Lexfed) -> None:
    """The word was ignored: a script for the shell that the terminal seemed to be."""
    result = lexfed("--show-completion", shell)
    assert result.returncode == 0, result.stderr
    assert f"_LEXFED_COMPLETE=complete_{shell}" in result.stdout
    assert "python" not in result.stdout


def test_a_shell_that_asks_gets_completions(
    lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"_LEXFED_COMPLETE": "complete_bash", "COMP_WORDS": "lexfed pr", "COMP_CWORD": "1"}
    for key, value in asked.items():
        monkeypatch.setenv(key, value)
    assert lexfed().stdout.split() == ["privacy", "predict"]


def test_a_shell_that_is_not_known_is_refused(lexfed: Lexfed) -> None:
    result = lexfed("--show-completion", "fisch")
    assert result.returncode == 2
    assert "'fisch' is not one of" in result.stderr


def test_init_looks_for_the_data_before_its_target(lexfed: Lexfed) -> None:
    Path("private.toml").write_text("kept")
    lost = lexfed("init", "private", "--data", "nowhere.csv")
    assert lost.returncode == 2
    assert "there is no file nowhere.csv" in lost.stderr


def test_a_run_that_promises_nothing_says_what_and_which_key_would(
    tiny: Path, lexfed: Lexfed
) -> None:
    account = lexfed("privacy", tiny)
    said = account.stdout
    assert "Nothing is promised to those whose texts the model is trained on" in said
    assert "privacy.epsilon" in said
    assert "lexfed privacy plan" in said


def test_a_plan_says_how_its_last_column_is_read_and_what_to_set(lexfed: Lexfed) -> None:
    question = ("--rounds", "3", "--population", "1000", "--cohort", "100", "--epsilon", "2")
    out = lexfed("privacy", "plan", *question).stdout
    assert "privacy.noise" in out
    assert "above 1" in out


# --- how many words are enough -------------------------------------------------------------------


def test_one_rule_for_how_many_words_are_enough(
    lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five a dimension: in the configuration that init writes, and wherever a page names a number."""
    monkeypatch.delenv("LEXFED_DATA", raising=False)
    assert enough_words(100) == 500
    assert lexfed("init", "private").returncode == 0
    written = tomllib.loads(Path("private.toml").read_text())
    assert written["defences"]["minimum_words"] == enough_words(written["model"]["embedding"])
    numbers = {
        int(found)
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if page.name != "configuration.md"
        for found in re.findall(r"minimum_words ?= ?(\d+)", page.read_text())
    }
    assert numbers == {500}


def test_small_clients_get_advice_in_known_words(
    lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEXFED_DATA", raising=False)
    rows = [f"text number {i} is {('good', 'bad')[i % 2]},{i % 2}" for i in range(120)]
    Path("a.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    made = lexfed("init", "private", "--data", "a.csv")
    assert made.returncode == 0, made.stderr
    (note,) = [line for line in made.stdout.splitlines() if line.startswith("note: ")]
    assert "turn" not in note
    assert "can be read" in note
    assert "docs/defences.md" in note
    settings = tomllib.loads(Path("private.toml").read_text())
    assert settings["defences"]["minimum_words"] == 0


# --- a recorded wire -----------------------------------------------------------------------------


def test_what_a_killed_recording_left_is_taken_away(tmp_path: Path) -> None:
    """A message that was being written when the run was killed stayed as a hidden folder."""
    wire = tmp_path / "wire"
    Recorder(wire).begin({"method": "fedavg"})
    left = wire / ".000003-00-train-00000017-up.4242"
    (left / "blobs").mkdir(parents=True)
    (left / "arrays.safetensors").write_bytes(b"half of it")
    (wire / ".hidden-of-another").mkdir()
    whole = wire / "000002-00-train-00000017-up"
    whole.mkdir()
    Recorder(wire).begin({"method": "fedavg"})
    assert not left.exists()
    assert whole.exists()
    assert (wire / ".hidden-of-another").exists(), "not ours"


def test_a_resumed_run_cleans_its_wire(tiny: Path, lexfed: Lexfed) -> None:
    wire = ("--record-wire", "wire")
    assert lexfed("run", tiny, "--out", "a", *wire, "--set", "rounds=1").returncode == 0
    message = next(path for path in Path("wire").iterdir() if path.is_dir())
    shutil.copytree(message, f"wire/.{message.name}.{os.getpid() + 1}")
    assert lexfed("run", "a", "--resume", *wire, "--set", "rounds=2").returncode == 0
    assert not [path for path in Path("wire").iterdir() if path.name.startswith(".0")]


@pytest.mark.parametrize("method", ["fedavg", "local_only", "centralised"])
def test_what_init_wrote_can_be_taken_back_for_another_method(
    method: str, lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEXFED_DATA", raising=False)
    assert lexfed("init", "private").returncode == 0
    back = ("defences.rotation=none", "defences.whiten=false", "defences.normalise=false")
    table = tomllib.loads(Path("private.toml").read_text())["defences"]
    settings = [one for one in back if one.partition("=")[0].partition(".")[2] in table]
    config = configuration.load(Path("private.toml"), [f"method={method}", *settings])
    assert not config.defences.of_tables


def test_a_file_with_a_header_alone(lexfed: Lexfed) -> None:
    """It was a traceback of the library that reads it."""
    Path("empty.csv").write_text("text,label\n")
    result = lexfed("data", "check", "empty.csv")
    assert result.returncode == 2
    assert "empty.csv has no rows: there are no texts" in result.stderr


def test_a_delta_that_promises_nothing_is_refused(lexfed: Lexfed) -> None:
    """It counted for ever."""
    result = lexfed("privacy", "plan", "--population", "1000", "--delta", "0.5")
    assert result.returncode == 2
    assert "delta = 0.5 is no promise" in result.stderr
