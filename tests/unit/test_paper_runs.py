"""The papers' catalogue: what is run, in which order, at what price, and what a claim comes to."""

import argparse
import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import table
from experiments.papers import __main__ as papers
from experiments.papers import catalogue, check, driver, price, same, verdicts
from experiments.papers.catalogue import Catalogue, CatalogueError, Runs, Scale
from experiments.papers.verdicts import HOLDS, NOT, PART, Claim, Comparison
from lexfed.core.figures import SUMMARY
from lexfed.experiment.config import load
from lexfed.records import rundir
from tests.conftest import ROOT
from tools import paper_tables

AHEAD = Comparison("ours", ">", "theirs", "global_accuracy")


def runs_of(*values: float, figure: str = "global_accuracy", **more: Any) -> list[dict[str, Any]]:
    return [{"seed": seed, figure: value, **more} for seed, value in enumerate(values)]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ((0.80, 0.82, 0.81), (0.70, 0.73, 0.70), HOLDS),  # in every seed, far beyond the spread
        ((0.80, 0.69, 0.81), (0.70, 0.70, 0.70), PART),  # not in every seed
        ((0.701, 0.730), (0.700, 0.700), PART),  # in every seed, within the spread
        ((0.60, 0.72), (0.70, 0.70), NOT),  # the mean says otherwise
        ((0.70, 0.70), (0.70, 0.70), NOT),  # level is not ahead
    ],
)
def test_a_comparison_is_judged_seed_by_seed(
    ours: tuple[float, ...], theirs: tuple[float, ...], word: str
) -> None:
    found = verdicts.outcome(runs_of(*ours), runs_of(*theirs), AHEAD)
    assert found is not None
    assert found.word == word


def test_one_seed_is_judged_by_the_figures_own_interval() -> None:
    for interval, word in ((0.02, HOLDS), (0.05, PART), (None, PART)):
        ours, theirs = (runs_of(value, global_accuracy_interval=interval) for value in (0.73, 0.70))
        found = verdicts.outcome(ours, theirs, AHEAD)
        assert found is not None
        assert found.word == word


def test_only_seeds_that_both_rows_have_are_compared() -> None:
    ours = [{"seed": 0, "global_accuracy": 0.9}, {"seed": 5, "global_accuracy": 0.1}]
    found = verdicts.outcome(ours, runs_of(0.8, 0.8), AHEAD)
    assert found is not None
    assert found.differences == pytest.approx((0.1,))
    assert verdicts.outcome([{"seed": 7, "global_accuracy": 1.0}], runs_of(0.8), AHEAD) is None


def test_lower_may_be_better_and_a_margin_may_be_asked_for() -> None:
    within = Comparison("sampled", "<", "oracle", "word_perplexity", times=1.01)
    ours, theirs = (runs_of(*v, figure="word_perplexity") for v in ((100.5, 99), (100, 99.5)))
    found = verdicts.outcome(ours, theirs, within)
    assert found is not None
    assert found.differences == pytest.approx((0.5, 1.495))
    assert found.word == HOLDS
    plain = verdicts.outcome(ours, theirs, replace(within, times=1.0))
    assert plain is not None
    assert plain.word == NOT


def test_a_claim_of_several_comparisons() -> None:
    rows = {"ours": runs_of(0.8, 0.8), "theirs": runs_of(0.7, 0.7), "best": runs_of(0.9, 0.9)}
    better, worse = AHEAD, replace(AHEAD, right="best")

    def judged(*comparisons: Comparison) -> verdicts.Verdict:
        claim = Claim("a", "a claim", comparisons)
        return verdicts.verdict(claim, lambda _, row: rows.get(row, []), "runs")

    assert judged(better).word == HOLDS
    assert judged(worse).word == NOT
    assert judged(better, worse).word == PART
    nothing = judged(replace(AHEAD, right="never run"))
    assert (nothing.word, nothing.missing) == ("", 1)
    half = judged(better, replace(AHEAD, right="never run"))
    assert (half.word, half.missing) == ("", 1)  # not judged before all of it was run
    assert "1 of 2 not run yet" in verdicts.evidence(half)
    assert "80.0 against 70.0: +10.0 ± 0.0 points (2 seeds)" in verdicts.evidence(half)


# --- price ----------------------------------------------------------------------------------------


def test_work_grows_with_rounds_and_with_the_parameters_of_the_model() -> None:
    bilstm = {"name": "bilstm", "hidden": 100, "embedding": 100}
    small = {"rounds": 40, "model": bilstm, "train": {"max_length": 32}}
    large = {**small, "rounds": 100, "model": {**bilstm, "hidden": 300, "embedding": 300}}
    factor, why = price.ratio(small, large)
    assert factor == pytest.approx(2.5 * 9)
    assert why == "rounds 40 to 100; 0.16 to 1.44 M parameters"
    assert price.ratio(small, small) == (1.0, "the same work")
    other = price.ratio(small, {**small, "model": {"name": "some/encoder"}})
    assert other == (1.0, "bilstm to some/encoder, whose sizes are not counted")


def test_the_papers_language_model_has_14_million_parameters() -> None:
    lstm = {"layers": 3, "width": 584}
    table = {"method": "tokenizer_for_free", "language_model": lstm, "tokenizer": {"size": 10000}}
    assert price.parameters(table) == pytest.approx(14.0e6, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "said"), [(90, "90 s"), (600, "10 min"), (36000, "10 h"), (864000, "10 days")]
)
def test_a_price_is_told_in_words(seconds: float, said: str) -> None:
    assert price.told(seconds) == said


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    """Runs of three rows, one of them a fork; results and runs go to a folder of the test's own."""
    monkeypatch.setattr(catalogue, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(catalogue, "HERE", tmp_path / "papers")
    monkeypatch.setattr(price, "TRIED", tmp_path / "seconds.json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text('name = "small"\nrounds = 4\nkeep = [2]\n')
    rows = {"dear": [], "base": ["rounds=2"], "fork": ["from=base/kept/000002"]}
    (tmp_path / "small.rows.json").write_text(json.dumps(rows))
    scales = {
        "quick": Scale(set=("rounds=1",), rows=("base",)),
        "machine": Scale(headline=("base",), headline_seeds=(0, 1)),
        "paper": Scale(set=("rounds=40",), of={"base": ("rounds=20",)}),
    }
    return Catalogue({"small": Runs("small", scales, config="small.toml")}, {})


def results(**seconds: list[float]) -> table.Results:
    return {
        row: [{"seed": seed, "seconds": value} for seed, value in enumerate(values)]
        for row, values in seconds.items()
    }


def test_a_scale_is_settings_over_the_rows_own(small: Catalogue) -> None:
    runs = small.runs["small"]
    assert runs.rows("quick") == {"base": ["rounds=2", "rounds=1"]}
    assert runs.rows("machine")["dear"] == []
    assert runs.rows("paper")["base"] == ["rounds=2", "rounds=40", "rounds=20"]
    wrong = replace(runs, scales={"quick": Scale(rows=("bsae",))})
    with pytest.raises(CatalogueError, match="no row 'bsae'"):
        wrong.rows("quick")


def test_what_was_measured_is_the_price_and_what_was_not_is_scaled(small: Catalogue) -> None:
    runs = small.runs["small"]
    assert price.price(runs, "dear", "paper").seconds is None
    table.write_results(runs.results_file("machine"), results(dear=[10.0, 14.0, 90.0]))
    assert price.price(runs, "dear", "machine") == price.Price(14.0, "measured, 3 seeds")
    assert price.price(runs, "base", "machine").seconds == pytest.approx(7.0)  # half the rounds
    assert price.price(runs, "dear", "paper").seconds == pytest.approx(140.0)
    assert "rounds 4 to 40" in price.price(runs, "dear", "paper").how


def test_a_trial_is_the_price_of_what_was_never_run(small: Catalogue) -> None:
    tried = {"machine": {"small": {"dear": {"round": 2.0, "around": 5.0, "rounds": 3}}}}
    assert price.price(small.runs["small"], "dear", "machine", tried).seconds == 13.0
    like = price.price(small.runs["small"], "base", "machine", tried)  # half as many rounds
    assert like.seconds == pytest.approx(6.5)
    assert "'dear'" in like.how


def test_cpu_seconds_are_the_price_where_they_were_recorded(small: Catalogue) -> None:
    runs = small.runs["small"]
    busy = [{"seed": 0, "seconds": 90.0, "made": {"cpu_seconds": 12.0}}]
    table.write_results(runs.results_file("machine"), {"dear": busy})
    assert price.price(runs, "dear", "machine").seconds == 12.0


# --- order, skipping, resuming --------------------------------------------------------------------


def test_cheap_runs_come_first_and_a_fork_after_what_it_is_forked_from(small: Catalogue) -> None:
    runs = small.runs["small"]
    table.write_results(runs.results_file("machine"), results(dear=[9.0], base=[5.0], fork=[1.0]))
    found = [(job.row, job.seed) for job in driver.jobs(small, "machine")]
    assert found == [("base", 0), ("base", 1), ("fork", 0), ("dear", 0)]


def test_what_is_in_a_result_file_is_done(small: Catalogue) -> None:
    runs = small.runs["small"]
    table.write_results(runs.results_file("machine"), results(base=[5.0]))
    done = {(job.row, job.seed): job.done for job in driver.jobs(small, "machine")}
    assert done == {("base", 0): True, ("base", 1): False, ("fork", 0): False, ("dear", 0): False}


def test_a_run_is_begun_then_resumed_and_left_alone_when_it_is_finished(tmp_path: Path) -> None:
    config, out = tmp_path / "no-such.toml", tmp_path / "runs" / "fork-1"
    begun = table.started_with(["rounds=3", "from=the base/kept/000002"], 1, out)
    fork = str(tmp_path / "runs" / "the_base-1" / "kept" / "000002")
    assert begun == ["--set", "seed=1", "--set", "rounds=3", "--from", fork]
    assert table.arguments(config, begun, out) == [str(config), "--out", str(out), *begun]
    out.mkdir(parents=True)
    (out / "config.toml").write_text("rounds = 3\n")
    assert table.arguments(config, begun, out) == [str(out), "--resume"]


def finished(config: Path, out: Path, *settings: str, **summary: Any) -> Path:
    """A run directory as `lexfed run` would have left it."""
    run = rundir.create(out, load(config, settings))
    run.write_summary(dict.fromkeys(SUMMARY) | {"seed": 0, "seconds": 1.0} | summary)
    (out / "rounds.jsonl").touch()
    return out


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text('name = "small"\nrounds = 4\n')
    return path


def test_a_finished_run_is_left_alone(config: Path, tmp_path: Path) -> None:
    out = finished(config, tmp_path / "dear-1", "seed=1", "train.lr=0.5", seed=1)
    before = (out / "summary.json").read_bytes()
    table.run(config, ["train.lr=0.5"], 1, out)  # another run would take seconds, and write it anew
    assert (out / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    ("made_with", "differs"),
    [
        (["seed=1", "train.lr=0.1"], "train.lr"),
        (["seed=1", "train.lr=0.5", "rounds=5"], "rounds"),  # no part of a fingerprint
        (["seed=2", "train.lr=0.5"], "seed"),
        (
            ["seed=1", "train.lr=0.5", "data.clients=7", "cohort.size=3"],
            "data.clients, cohort.size",
        ),
    ],
)
def test_a_run_of_other_settings_is_not_taken_for_the_rows(
    config: Path, tmp_path: Path, made_with: list[str], differs: str
) -> None:
    """A finished one was its result, a killed one was gone on with: whatever had made it."""
    out = finished(config, tmp_path / "dear-1", *made_with, seed=1)
    for _ in ("finished", "killed"):
        with pytest.raises(SystemExit, match=rf"dear-1 was run with other settings \({differs}\)"):
            table.run(config, ["train.lr=0.5"], 1, out)
        (out / "summary.json").unlink(missing_ok=True)


def test_a_run_whose_configuration_is_no_longer_read_is_stale(config: Path, tmp_path: Path) -> None:
    out = finished(config, tmp_path / "dear-0")
    (out / "config.toml").write_text("rounds = 4\nno_such_key = 1\n")
    assert "no_such_key" in table.stale(config, [], 0, out)


def test_files_lie_elsewhere_on_another_machine(config: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text,label\na b,0\nc d,1\n")
    out = finished(config, tmp_path / "dear-0", f"data.name={tmp_path / 'mine.csv'}")
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace(str(tmp_path), "/elsewhere"))
    assert table.stale(config, ["data.name=mine.csv"], 0, out) == ""
    assert table.stale(config, ["data.name=other.csv"], 0, out) == "data.name"


def test_a_fork_is_stale_if_it_was_forked_elsewhere(config: Path, tmp_path: Path) -> None:
    out = finished(config, tmp_path / "runs" / "fork-0")
    begun = table.started_with(["from=base/kept/000002"], 0, out)
    table.note_maker(out, f"lexfed run small.toml {shlex.join(begun)}")
    assert table.stale(config, ["from=base/kept/000002"], 0, out) == ""
    assert table.stale(config, ["from=base/kept/000003"], 0, out) == "--from"


def test_a_stale_run_does_not_write_over_a_committed_one(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = results(dear=[9.0], base=[5.0])
    for row, settings in (("dear", ["train.lr=0.1"]), ("base", [])):
        finished(config, tmp_path / "runs" / f"{row}-0", *settings, seconds=77.0)
    rows: dict[str, list[str]] = {"dear": ["train.lr=0.5"], "base": []}
    found = table.collected(tmp_path / "runs", config, rows, old)
    assert found["dear"] == old["dear"]
    assert [run["seconds"] for run in found["base"]] == [77.0]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "dear-0 was run with other settings (train.lr)" in said[0]
    only = table.collected(tmp_path / "runs", config, rows, old, only=["dear"])
    assert only["base"] == old["base"]


def test_rows_that_are_no_rows_any_more_are_named_when_they_go(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = results(dear=[9.0], gone=[5.0], lost=[5.0])
    assert table.collected(tmp_path, config, {"dear": []}, old) == {"dear": old["dear"]}
    said = capsys.readouterr().err.splitlines()
    assert said == ["no row of small.rows.json any more, left out: 'gone', 'lost'"]


def test_what_is_done_again_begins_anew(small: Catalogue) -> None:
    job = driver.jobs(small, "quick")[0]
    out = table.run_folder(job.folder, job.row, job.seed)
    out.mkdir(parents=True)
    (out / "summary.json").write_text("{}")
    table.note_of(out).write_text("{}")
    driver.forget(job)
    assert not out.exists()
    assert not table.note_of(out).exists()


def test_what_no_commit_of_this_history_is_recorded_of_can_be_run_again(
    small: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "in_history", {"a": True, "b": False}.__getitem__)
    job = driver.jobs(small, "quick")[0]
    assert (job.done, job.recorded) == (False, False)
    for commit, known in ((None, False), ("a", True), ("b", False)):
        made = {"commit": commit}
        run = {"seed": job.seed, "seconds": 1.0, "made": made}
        table.write_results(job.runs.results_file("quick"), {job.row: [run]})
        assert (job.done, job.recorded) == (True, known)
        for asked in (True, False):
            wanted = argparse.Namespace(again=False, unrecorded=asked)
            assert papers.chosen_again(wanted)(job) == (asked and not known)


def test_a_run_in_the_place_of_an_older_one_says_how_it_compares(
    small: Catalogue, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = next(job for job in driver.jobs(small, "machine") if job.row == "dear")
    out = table.run_folder(dear.folder, dear.row, 0)
    finished(dear.runs.path, out, loss=0.5)
    driver.run(dear, [])
    assert "before" not in dear.found["made"]
    for loss, likeness in ((0.5, "to 5 digits"), (0.7, "differs in loss")):
        older = {**dear.found, "loss": loss, "made": {"commit": "gone"}}
        table.write_results(dear.runs.results_file("machine"), {"dear": [older]})
        driver.run(dear, [])
        assert dear.found["made"]["before"]["commit"] == "gone"
        assert dear.found["made"]["before"]["now"].startswith(likeness)
        assert f"beside the run before, {likeness}" in capsys.readouterr().out


def test_only_commits_that_lead_here_are_of_this_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(table, "ROOT", tmp_path)
    git("init")
    heads = []
    for message in ("first", "a branch that is left"):
        git("commit", "--allow-empty", "-m", message)
        heads.append(git("rev-parse", "HEAD"))
    git("reset", "--hard", heads[0])
    table.in_history.cache_clear()
    found = [table.in_history(commit) for commit in (*heads, "0" * 40)]
    table.in_history.cache_clear()
    assert found == [True, False, False]


def test_a_processor_is_known_by_its_generation() -> None:
    told = "processor\t: {}\nmodel name\t: AMD EPYC\ncpu family\t: {}\nmodel\t\t: 2\n"
    milan, turin = (f"{told.format(0, n)}\n{told.format(1, n)}\n" for n in (25, 26))
    assert table.processor(turin) == "AMD EPYC, cpu family 26, model 2"
    assert table.processor(milan) != table.processor(turin)
    assert table.processor("processor\t: 0\nBogoMIPS\t: 50.00\n") == ""
    assert table.machine()["cpu"]


def test_whether_two_runs_are_the_same_is_told() -> None:
    made = {"torch": "2", "cpu": "c", "model": "x"}
    kept = {"seed": 0, "global_accuracy": 0.5, "made": made}
    moved = {**kept, "global_accuracy": 0.5 + 1e-9}
    assert same.likeness(kept, kept) == "bit for bit"
    assert same.likeness(kept, moved) == "differs in global_accuracy"
    older = {key: value for key, value in kept.items() if key != "made"}
    assert same.likeness(older, moved).startswith("to 5 digits")
    elsewhere = {**kept, "made": {**made, "cpu": "d"}}
    assert same.likeness(elsewhere, kept) == "bit for bit", "whatever made it"
    assert same.likeness(elsewhere, moved).startswith("to 5 digits")
    more = {**kept, "a figure that is new": 1.0}
    assert same.likeness(kept, more) == "bit for bit"
    assert same.likeness(more, kept) == "differs in a figure that is new"


STUDY = """\
import json, pathlib, sys
done = pathlib.Path("runs/study/rows")
done.parent.mkdir(parents=True, exist_ok=True)
rows = done.read_text().split() if done.is_file() else []
if sys.argv[1] not in rows:
    done.write_text(" ".join([*rows, sys.argv[1]]))
pathlib.Path("study.results.json").write_text(json.dumps(done.read_text()))
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> driver.Job:
    """Two calls of a program that goes on where it was."""
    monkeypatch.setattr(catalogue, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(driver, "EXPERIMENTS", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY)
    runs = Runs("study", {}, command=("study.py one", "study.py two"), results="study.results.json")
    return driver.Job(runs, "", 0, "machine", price.Price(None, ""))


def commits(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    here = iter([{"commit": name, "clean": True} for name in names])
    monkeypatch.setattr(table, "commit_here", lambda: next(here))
    monkeypatch.setattr(table, "in_history", lambda commit: commit in names)


def test_a_study_names_the_commit_that_began_it(
    study: driver.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits(monkeypatch, "first", "second", "third")
    driver.run(study, ())
    assert study.recorded
    made = study.runs.made
    assert made["commit"] == "first"
    assert made["command"] == "python experiments/study.py one; python experiments/study.py two"
    assert made["cpu_seconds"] >= 0
    driver.run(study, ())  # what lies there is gone on with, and says so
    assert study.runs.made | {"results": ""} == made | {"results": "", "resumed": ["second"]}
    driver.forget(study)
    driver.run(study, ())
    assert study.runs.made["commit"] == "third"
    assert "resumed" not in study.runs.made


def test_results_that_somebody_else_wrote_are_not_the_studys(
    study: driver.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits(monkeypatch, "first")
    driver.run(study, ())
    assert study.recorded
    (Path("study.results.json")).write_text("{}")
    assert study.runs.made == {}
    assert not study.recorded


def test_the_seconds_of_workers_are_not_those_of_the_run() -> None:
    assert table.in_one_process([])
    assert table.in_one_process(["--workers", "0", "--device", "cpu"])
    assert not table.in_one_process(["--workers", "2"])
    assert not table.in_one_process(["--workers", "0", "--ray", "auto"])


TINY = """
rounds = 2
keep = [1]
[data]
name = "rotten_tomatoes"
limit = 60
clients = 5
[vocabulary]
vectors = "hashed:8"
[model]
embedding = 8
hidden = 4
"""


def a_fork(folder: Path) -> driver.Job:
    """Of a base that the result file knows, and that does not lie here."""
    (folder / "small.toml").write_text(TINY)
    rows = {"base": [], "fork": ["from=base/kept/000001", "train.lr=0.5"]}
    (folder / "small.rows.json").write_text(json.dumps(rows))
    runs = Runs("small", {"machine": Scale()}, config="small.toml")
    table.write_results(runs.results_file("machine"), results(base=[5.0]))
    base, fork = driver.jobs(Catalogue({"small": runs}, {}), "machine")
    assert (base.row, base.done, fork.row, fork.done) == ("base", True, "fork", False)
    return fork


@pytest.mark.slow
@pytest.mark.usefixtures("small")  # results go to a folder of the test's own
def test_a_forks_base_is_run_first_where_it_does_not_lie_here(tmp_path: Path) -> None:
    """It was done, so nobody ran it, and the fork found no checkpoint."""
    fork = a_fork(tmp_path)
    driver.run(fork, [])
    found = fork.runs.found()
    assert found["fork"][0]["rounds"] == 2
    assert found["base"][0]["made"]["model"] != found["fork"][0]["made"]["model"]
    shutil.rmtree("runs")
    good, said = check.check(fork, [], tmp_path / "again")
    assert good, said
    assert said.endswith("bit for bit")


def test_a_fork_that_is_there_needs_no_base_and_another_one_the_rows_own(
    config: Path, tmp_path: Path
) -> None:
    rows = {"base": ["train.lr=0.5"], "fork": ["from=base/kept/000002"]}
    finished(config, tmp_path / "base-0", "train.lr=0.1")
    with pytest.raises(SystemExit, match=r"base-0 was run with other settings \(train.lr\)"):
        table.run_row(config, rows, "fork", 0, tmp_path)
    out = finished(config, tmp_path / "fork-0")
    assert table.run_row(config, rows, "fork", 0, tmp_path) == out


def test_a_fork_of_what_is_no_row_is_refused(config: Path, tmp_path: Path) -> None:
    rows = {"fork": ["from=base/kept/000002"]}
    with pytest.raises(SystemExit, match="'fork' is forked from 'base', which is not run here"):
        table.run_row(config, rows, "fork", 0, tmp_path)


def test_a_refused_run_says_why_and_the_others_go_on(
    small: Catalogue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = driver.jobs(small, "quick")[0]
    finished(job.runs.path, table.run_folder(job.folder, job.row, job.seed), "train.lr=0.1")
    assert papers.everything([job], driver.run, [], again=lambda job: False) == 1
    said = capsys.readouterr().err.splitlines()
    assert "base-0 was run with other settings (rounds, train.lr)" in said[0]
    assert said[1:] == ["failed: small | base | 0"]


def test_only_what_is_asked_for_and_nothing_that_is_not_there(small: Catalogue) -> None:
    assert {job.row for job in driver.jobs(small, "quick", ["small"])} == {"base"}
    with pytest.raises(CatalogueError, match="has no 'table-99'"):
        driver.jobs(small, "quick", ["table-99"])


def test_a_result_file_keeps_runs_that_lie_here_no_more(tmp_path: Path) -> None:
    old = results(dear=[9.0, 8.0], base=[5.0])
    path = tmp_path / "a.results.json"
    rows: dict[str, list[str]] = {"dear": [], "base": [], "new": []}
    found = table.collected(tmp_path / "runs", tmp_path / "a.toml", rows, old)
    table.write_results(path, found)
    assert table.read_results(path) == old
    assert len(path.read_text().splitlines()) == 2 + 3 + 2 * 2  # a run on a line


# --- who made it, and the same again ------------------------------------------------------------


def test_a_run_says_which_code_made_it_and_which_went_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "dear-0.made-by.json"
    for commit in ("first", "first", "second"):
        here = {"commit": commit, "clean": True}
        monkeypatch.setattr(table, "commit_here", lambda here=here: here)
        table.note_maker(tmp_path / "dear-0", "lexfed run small.toml --set seed=0")
    found = json.loads(note.read_text())
    assert (found["commit"], found["clean"], found["resumed"]) == ("first", True, ["second"])
    assert found["command"] == "lexfed run small.toml --set seed=0"
    assert found["torch"]
    assert found["cpu"]


def test_five_digits_are_compared_on_another_processor_and_all_on_the_same() -> None:
    made = {"torch": "2", "cpu": "a", "model": "x"}
    kept = {"global_accuracy": 0.7654321, "seconds": 3.0, "made": made}
    again = {"global_accuracy": 0.7654322, "seconds": 4.0, "made": made}
    assert same.differences(kept, again) == ["global_accuracy"]
    assert same.differences(kept, {**kept, "made": {**made, "model": "y"}}) == ["the model"]
    other = {**again, "made": {**made, "cpu": "b", "model": "y"}}
    assert same.differences(kept, other) == []
    assert same.differences(kept, {**other, "global_accuracy": 0.7655}) == ["global_accuracy"]


# --- the real catalogue -------------------------------------------------------------------------


def test_the_catalogue_names_what_there_is() -> None:
    """Every configuration is accepted with every row's settings at every scale; every row and run
    that a claim or a column names exists.
    """
    found = catalogue.load()
    for runs in found.runs.values():
        if runs.command:
            assert all((ROOT / "experiments" / line.split()[0]).is_file() for line in runs.command)
            continue
        for scale in runs.scales:
            for row in runs.rows(scale):
                price._table(runs, row, scale)
    for entry in found.entries.values():
        rows = {row for name in entry.runs if found.runs[name].config
                for row in table.rows_of(found.runs[name].path)}  # fmt: skip
        assert set(entry.rows) <= rows, entry.id
        for claim in entry.claims:
            for one in claim.comparisons:
                assert (one.runs or entry.runs[0]) in found.runs, claim.id
                known = table.rows_of(found.runs[one.runs or entry.runs[0]].path)
                assert one.left in known, claim.id
                assert one.right_runs or one.right in known, claim.id


def test_rows_of_a_claim_have_made_as_many_passes_over_their_texts() -> None:
    """Two epochs were ahead of one."""
    found = catalogue.load()
    for entry in found.entries.values():
        for claim in entry.claims:
            for one in claim.comparisons:
                runs = found.runs[one.runs or entry.runs[0]]
                other = found.runs[one.right_runs] if one.right_runs else runs
                tables = (price._table(runs, one.left, "machine"),
                          price._table(other, one.right, "machine"))  # fmt: skip
                passes = {table["train"]["epochs"] for table in tables
                          if table["method"] != "local_only"}  # fmt: skip
                assert len(passes) <= 1, f"{claim.id}: {one.left} against {one.right}"


def test_every_committed_result_is_of_a_row() -> None:
    found = catalogue.load()
    for runs in found.runs.values():
        for scale in () if runs.command else runs.scales:
            left = runs.found(scale).keys() - table.rows_of(runs.path).keys()
            assert not left, f"{runs.results_file(scale)}: no row of the table's any more"


def test_every_table_and_figure_of_the_papers_is_in_the_catalogue() -> None:
    said = {
        "FedeVocab": [f"Table {n}" for n in range(1, 10)] + [f"Figure {n}" for n in (3, 4, 5)],
        "Federated Word2Vec": ["Table 1"] + [f"Figure {n}" for n in range(1, 5)],
        "Tokenizer for free": [f"Table {n}" for n in range(1, 6)]
        + [f"Figure {n}" for n in range(3, 7)],
    }
    entries = catalogue.load().entries.values()
    for paper, wanted in said.items():
        words = " ".join(entry.what + "," for entry in entries if entry.paper == paper)
        assert [one for one in wanted if f"{one}," not in words] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table4-sst2", "text8-topics", "table2-blogs"])
def test_a_quick_run_of_each_paper_gives_the_committed_bits(name: str, tmp_path: Path) -> None:
    job = driver.jobs(catalogue.load(), "quick", [name])[0]
    good, said = check.check(job, [], tmp_path)
    assert good, said


def test_runs_that_were_scored_on_other_users_are_not_paired() -> None:
    """An older run may have had another split: it compares with nothing, and the page is made."""
    run = {"seed": 0, "word_perplexity": 9.0, "users": [[4.0, 2], [6.0, 3]]}
    better = {**run, "users": [[3.0, 2], [5.0, 3]]}
    other = {**run, "users": [[4.0, 2], [6.0, 4]]}
    assert table.of_users(better, run) is not None
    assert table.of_users(better, other) is None
    assert "±" in paper_tables.against([better], [run])
    assert paper_tables.against([better], [other]) == "–"
    assert verdicts.over_users([better], [run]) is not None
    assert verdicts.over_users([better], [other]) is None


def test_of_many_comparisons_it_is_told_how_many_hold() -> None:
    outcomes = tuple(
        verdicts.Outcome(word, (0.1,), ((0.7, 0.6),), Comparison("a", ">", "b", "global_accuracy"))
        for word in (HOLDS, NOT, NOT, PART, NOT)
    )
    many = verdicts.Verdict(PART, outcomes, 0)
    assert verdicts.evidence(many) == "1 of 5 comparisons holds, 1 in part"
    few = verdicts.evidence(verdicts.Verdict(PART, outcomes[:2], 0))
    assert few.count("70.0 against 60.0") == 2
