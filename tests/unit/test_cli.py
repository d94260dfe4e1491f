"""The command as a user meets it: what it writes, what it prints, and how it refuses."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lexfed.core.figures import SUMMARY
from lexfed.wire import decode
from tests.conftest import ROOT, Lexfed, lexfed_process


def test_help_answers_at_once(tmp_path: Path) -> None:
    lexfed_process("--help", cwd=tmp_path).communicate()  # once for the file cache
    started = time.perf_counter()
    process = lexfed_process("--help", cwd=tmp_path)
    stdout, _ = process.communicate()
    assert time.perf_counter() - started < 1.0
    assert process.returncode == 0
    assert "run" in stdout


def test_help_says_what_an_argument_may_be(lexfed: Lexfed) -> None:
    assert "private, agreed, learned or audit." in lexfed("init", "--help").stdout
    assert "with --resume, a run directory" in lexfed("run", "--help").stdout


def test_help_does_not_import_torch() -> None:
    code = "import sys, lexfed.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("method", ["fedavg", "local_only", "centralised"])
def test_a_run_keeps_the_contract(method: str, tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    result = lexfed("run", tiny, "--out", "a", "--set", f"method={method}")
    assert result.returncode == 0, result.stderr
    assert "results: a" in result.stdout
    run = tmp_path / "a"
    summary = json.loads((run / "summary.json").read_text())
    assert list(summary) == list(SUMMARY)
    assert summary["method"] == method
    assert summary["stopped"] == "finished"
    assert 0 <= summary["global_accuracy"] <= 1
    assert summary["epsilon_this_run"] is None
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == list(range(1, summary["rounds"] + 1))
    assert sum(r["bytes_up"] for r in records) == summary["bytes_up"] > 0
    model = decode((run / "artifacts" / "model.safetensors").read_bytes()).arrays
    assert sum(v.numel() for v in model.values()) == summary["parameters_shared"]
    assert (summary["parameters_shared"] > 0) == (method != "local_only")
    assert (summary["parameters_private"] > 0) == (method == "local_only")
    report = (run / "report.html").read_text()
    assert report.count("<figure data-chart") >= 3 + (method != "local_only"), "curves, clients"


def test_the_resolved_configuration_gives_the_same_bits(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    assert lexfed("run", "a/config.toml", "--out", "b").returncode == 0
    assert lexfed("run", tiny, "--out", "c", "--set", "seed=1").returncode == 0
    weights = {
        name: (tmp_path / name / "artifacts" / "model.safetensors").read_bytes() for name in "abc"
    }
    assert weights["a"] == weights["b"]
    assert weights["a"] != weights["c"]


def test_tensorboard_events_are_those_of_the_records(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assert lexfed("run", tiny, "--out", "a", "--tensorboard").returncode == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    records = [json.loads(line) for line in (tmp_path / "a/rounds.jsonl").read_text().splitlines()]
    assert [event.value for event in events.Scalars("bytes_up")] == [
        record["bytes_up"] for record in records
    ]
    assert [event.step for event in events.Scalars("global_accuracy")] == [2, 3]


def test_runs_side_by_side(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    methods = ("fedavg", "fedevocab", "local_only")
    for method in methods:
        assert lexfed("run", tiny, "--out", method, "--set", f"method={method}").returncode == 0
    result = lexfed("compare", *methods, "--out", "page.html")
    heads, *rows = (
        re.split(" {2,}", line.strip()) for line in result.stdout.splitlines()[: len(methods) + 1]
    )
    assert heads[:2] == ["run", "method"]
    assert heads[-3:] == ["sent up", "sent down", "seconds"]
    assert [row[1] for row in rows] == list(methods)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "page.html").read_text()
    for method in methods:
        summary = json.loads((tmp_path / method / "summary.json").read_text())
        assert method in result.stdout
        assert f"{100 * summary['global_accuracy']:.1f} %" in page
    assert lexfed("compare", "nowhere").returncode == 2
    assert lexfed("report", "nowhere").stderr.count("\n") == 1


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


BAD = {
    "missing configuration": (["run", "nowhere.toml"], "there is no file nowhere.toml"),
    "missing data": (["--set", "data.name=nowhere.csv"], "there is no file nowhere.csv"),
    "unknown data set": (["--set", "data.name=imbd"], "did you mean 'imdb'?"),
    "empty file": (["--set", "data.name=empty.csv"], "empty.csv is empty"),
    "only blank texts": (["--set", "data.name=blank.csv"], "holds no text"),
    "no text column": (
        ["--set", "data.name=other.csv"],
        "has no text column 'text' (known: body, label); set data.text",
    ),
    "no label column": (
        ["--set", "data.name=unlabelled.csv"],
        "has no labels (no column 'label'), and a classifier learns them",
    ),
    "one text forty times": (
        ["--set", "data.name=same.csv"],
        "no training text is left beside the test set: every text is the same",
    ),
    "missing label": (["--set", "data.name=hole.csv"], "row 2 has no label"),
    "label outside the range": (["--set", "data.classes=1"], "has label 1, outside 0..0"),
    "unknown key": (["--set", "data.alhpa=1"], "unknown key 'data.alhpa'; did you mean 'alpha'?"),
    "wrong type": (["--set", "rounds=many"], "rounds must be a whole number, not 'many'"),
    "alpha 0": (["--set", "data.alpha=0"], "data.alpha must be above 0"),
    "more clients than examples": (["--set", "data.clients=1000"], "too few for 1,000 clients"),
    "cohort too large": (["--set", "cohort.size=50"], "cohort.size is 50, but there are 6 clients"),
    "not a parquet file": (["--set", "data.name=fake.parquet"], "can't be read as parquet"),
    "broken jsonl": (["--set", "data.name=broken.jsonl"], "can't be read as jsonl"),
    "not TOML": (["run", "broken.toml"], "is not TOML"),
    "existing directory": (["--out", "taken"], "taken exists already"),
    "nan": (["--set", "cohort.dropout=nan"], "cohort.dropout must be a finite number"),
    "no test set": (["--set", "data.test=0"], "data.test must be above 0"),
    "two columns of one name": (["--set", "data.name=twice.csv"], "has two columns of one name"),
    "somebody's home that is not there": (
        ["--set", "data.name=~nosuchuser/x.csv"],
        "there is no file",
    ),
    "a wire inside a file": (["--record-wire", "empty.csv/wire"], "empty.csv"),
    "a wire that is the run": (["--record-wire", "out"], "must be different directories"),
    "a name that is too long": (["--out", "x" * 300], "too long"),
    "no such vectors": (
        ["--set", "vocabulary.vectors=nowhere.npz"],
        "there are no word vectors at nowhere.npz",
    ),
    "no such encoder": (["--set", "model.name=no/such/model"], "no/such/model"),
    "unknown option": (["--wat"], "--wat"),
    "unknown command": (["rnu"], "rnu"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    case: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    write(tmp_path / "empty.csv", "")
    write(tmp_path / "blank.csv", 'text,label\n" ",0\n"",1\n')
    write(tmp_path / "other.csv", "body,label\nhello,0\n")
    write(tmp_path / "unlabelled.csv", "text\n" + "".join(f"hello {i}\n" for i in range(40)))
    write(tmp_path / "same.csv", "text,label\n" + "hello,0\nhello,1\n" * 20)
    write(tmp_path / "hole.csv", "text,label\nhello,0\nyou,\n")
    write(tmp_path / "twice.csv", "text,text\na,b\n")
    write(tmp_path / "fake.parquet", "no parquet")
    write(tmp_path / "broken.jsonl", '{"text": "a", "label"\n')
    write(tmp_path / "broken.toml", "rounds = = 3")
    (tmp_path / "taken").mkdir()
    write(tmp_path / "taken" / "mine.txt", "mine")
    arguments, message = BAD[case]
    if arguments[0].startswith("--"):
        arguments = [
            "run",
            str(tiny),
            *([] if "--out" in arguments else ["--out", "out"]),
            *arguments,
        ]
    before = sorted(path.name for path in tmp_path.iterdir())
    result = lexfed(*arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("lexfed: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert message in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before
