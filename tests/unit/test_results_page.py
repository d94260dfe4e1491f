"""RESULTS.md is made of a template and of result files: no figure in it was typed."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import table
from experiments.papers import catalogue
from experiments.papers.catalogue import Catalogue, Entry, Runs, Scale
from experiments.papers.verdicts import Claim, Comparison
from tests.conftest import ROOT
from tools import paper_tables, results_page
from tools.references import UnknownFigureError, looked_up, resolved


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "experiments" / "some"
    folder.mkdir(parents=True)
    runs = {
        "fedavg, slow": [{"seed": 0, "global_accuracy": 0.70, "bytes_up_per_client_round": 2.5e6},
                         {"seed": 1, "global_accuracy": 0.74, "bytes_up_per_client_round": 2.5e6}],
        "ours": [{"seed": 0, "global_accuracy": 0.80}, {"seed": 1, "global_accuracy": 0.82}],
    }  # fmt: skip
    (folder / "table.results.json").write_text(json.dumps(runs))
    cells = [{"attack": "dlg", "batch": n, "ptlr": 1 / n, "auc": None} for n in (1, 2)]
    (folder / "attack.results.json").write_text(json.dumps(cells))
    (folder / "nested.results.json").write_text(json.dumps({"plain": {"lira": {"auc": 0.697}}}))
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("some/table > fedavg, slow > global_accuracy", "72.0"),
        ("some/table > fedavg, slow > seed=1 > global_accuracy", "74.0"),
        ("some/table > fedavg, slow > global_accuracy | spread", "72.0 ± 2.8"),
        ("some/table > ours > global_accuracy | each", "80.0, 82.0"),
        ("some/table > ours > global_accuracy | minus fedavg, slow", "+9.0"),
        ("some/table > fedavg, slow > bytes_up_per_client_round | MB", "2.50 MB"),
        ("some/attack > attack=dlg; batch=2 > ptlr | .2f", "0.50"),
        ("some/attack > attack=dlg; batch=1 > ptlr | percent", "100.0"),
        ("some/attack > attack=dlg; batch=1 > ptlr | share", "all"),
        ("some/attack > attack=dlg; batch=2 > ptlr | share", "50 %"),
        ("some/nested > plain > lira > auc | .2f", "0.70"),
    ],
)
def test_a_figure_in_the_prose_is_looked_up(files: Path, reference: str, shown: str) -> None:
    assert looked_up(reference, files) == shown


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("some/tabel > ours > global_accuracy", "no result file"),
        ("some/table > their > global_accuracy", "no 'their'"),
        ("some/table > ours > local_accuracy", "no 'local_accuracy'"),
        ("some/table > ours > seed=7 > global_accuracy", "nothing with seed=7"),
        ("some/attack > attack=dlg; batch=1 > auc", "no 'auc'"),
        ("some/table > ours > global_accuracy | sprad", "unknown form 'sprad'"),
        ("some/table > ours > global_accuracy | minus theirs", "no 'theirs'"),
        ("some/table > ours", "not a figure"),
    ],
)
def test_a_figure_that_is_not_there_is_refused(files: Path, reference: str, said: str) -> None:
    with pytest.raises(UnknownFigureError, match=said):
        looked_up(reference, files)


def test_text_around_references_stays_as_it_is(files: Path) -> None:
    text = "It has {{some/table > ours > global_accuracy}} %, and {braces} stay."
    assert resolved(text, files) == "It has 81.0 %, and {braces} stay."


# --- tables and verdicts of a page ----------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    monkeypatch.setattr(catalogue, "EXPERIMENTS", tmp_path)
    (tmp_path / "small.toml").write_text("rounds = 4\n")
    (tmp_path / "small.rows.json").write_text(json.dumps({"ours": [], "theirs": [], "new": []}))
    runs = Runs("small", {"machine": Scale()}, config="small.toml", scaled="four rounds (100)")
    claims = tuple(
        Claim(name, f"{left} is ahead", (Comparison(left, ">", "theirs", "global_accuracy"),))
        for name, left in (("ahead", "ours"), ("later", "new"))
    )
    entry = Entry("a-table1", "A paper", "Table 1", "that it is ahead", ("small",), (),
                  ("global_accuracy",), {"ours": {"global_accuracy": "91.2"}}, "", claims)  # fmt: skip
    return Catalogue({"small": runs}, {"a-table1": entry})


def write(folder: Path, **rows: list[dict[str, Any]]) -> None:
    (folder / "small.results.json").write_text(json.dumps(rows))


MADE = {"fingerprint": "0123456789abcdef", "commit": "fedcba9876543210", "clean": True}


def test_a_table_has_ours_beside_the_papers_and_names_its_runs(
    small: Catalogue, tmp_path: Path
) -> None:
    write(
        tmp_path,
        ours=[{"seed": n, "global_accuracy": 0.8 + n / 100, "made": MADE} for n in (0, 1)],
        theirs=[{"seed": 0, "global_accuracy": 0.7}],
    )
    shown = paper_tables.entry_table(small, "a-table1")
    assert shown.splitlines()[0] == "| row | seeds | global, % | paper: global, % | run |"
    assert "| ours | 2 | 80.5 ± 0.7 | 91.2 | `0123456` at `fedcba9` |" in shown
    assert "| theirs | 1 | 70.0 | – | – |" in shown
    assert "new" not in shown


def test_a_table_of_runs_that_never_said_who_made_them_has_no_such_column(
    small: Catalogue, tmp_path: Path
) -> None:
    write(tmp_path, ours=[{"seed": 0, "global_accuracy": 0.8}])
    assert (
        paper_tables.entry_table(small, "a-table1").splitlines()[0].endswith("| paper: global, % |")
    )


def test_a_verdict_is_computed_and_its_reason_stands_only_while_it_fits(
    small: Catalogue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "- {{claim ahead: holds}} Because of *this*.\n"
    write(tmp_path, ours=[], theirs=[])
    assert results_page.claims(line, small) == "- *Not judged yet*: ours is ahead.\n"
    ours = [{"seed": n, "global_accuracy": 0.8} for n in (0, 1)]
    write(tmp_path, ours=ours, theirs=[{**run, "global_accuracy": 0.7} for run in ours])
    assert results_page.claims(line, small) == (
        "- **Holds**: ours is ahead. 80.0 against 70.0: +10.0 ± 0.0 points (2 seeds). Because of *this*.\n"
    )
    write(tmp_path, ours=ours, theirs=[{**run, "global_accuracy": 0.9} for run in ours])
    shown = results_page.claims(line, small)
    assert (
        shown
        == "- **Does not hold**: ours is ahead. 80.0 against 90.0: -10.0 ± 0.0 points (2 seeds).\n"
    )
    assert "written for 'holds'" in capsys.readouterr().err


def test_a_claim_that_was_run_in_part_says_what_came_out_of_that(
    small: Catalogue, tmp_path: Path
) -> None:
    entry = small.entries["a-table1"]
    both = Claim("both", "both are ahead", tuple(one.comparisons[0] for one in entry.claims))
    some = replace(small, entries={"a-table1": replace(entry, claims=(both,))})
    runs = [{"seed": n, "global_accuracy": 0.8} for n in (0, 1)]
    write(tmp_path, ours=runs, theirs=[{**run, "global_accuracy": 0.7} for run in runs])
    assert results_page.claims("- {{claim both: holds}} Why.\n", some) == (
        "- *Not judged yet*: both are ahead. 80.0 against 70.0: +10.0 ± 0.0 points (2 seeds); "
        "1 of 2 not run yet.\n"
    )


def test_a_finding_stands_only_while_it_is_one(small: Catalogue, tmp_path: Path) -> None:
    text = "# A\n\n{{when ahead: holds}} **Ahead,\nby far.** And so on.\n\n{{table a-table1}}\n"
    without = "# A\n\n{{table a-table1}}\n"
    runs = [{"seed": n, "global_accuracy": 0.8} for n in (0, 1)]
    write(tmp_path, ours=runs)
    assert results_page.findings(text, small) == without
    write(tmp_path, ours=runs, theirs=[{**run, "global_accuracy": 0.9} for run in runs])
    assert results_page.findings(text, small) == without
    write(tmp_path, ours=runs, theirs=[{**run, "global_accuracy": 0.7} for run in runs])
    assert results_page.findings(text, small) == text.replace("{{when ahead: holds}} ", "")
    text = "{{when run a-table1}} **Measured.**\n\nMore.\n"
    assert results_page.findings(text, small) == "**Measured.**\n\nMore.\n"
    write(tmp_path)
    assert results_page.findings(text, small) == "More.\n"


def test_what_was_scaled_down_is_said_once(
    small: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_page, "ROOT", tmp_path)
    write(tmp_path, ours=[{"seed": 0, "global_accuracy": 0.8}])
    shown = results_page.tables("{{table a-table1}}\n\n{{table a-table1}}\n", small)
    first, again = shown.split("| ours |")[1:]
    assert "Smaller than in the paper: four rounds (100)." in first
    assert "four rounds" not in again
    assert "Smaller than in the paper, as said above." in again


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((), "Run here, smaller: 0 in full, 0 in part, 2 not yet."),
        (("ours",), "Run here, smaller: 0 in full, 2 in part, 0 not yet."),
        # half of Figure 2 is never run
        (("ours", "theirs", "new"), "Run here, smaller: 1 in full, 1 in part, 0 not yet."),
    ],
)
def test_the_page_begins_with_how_much_was_run(
    small: Catalogue, tmp_path: Path, rows: tuple[str, ...], said: str
) -> None:
    """A table of several data sets is one table; what is ours alone is none of the papers'."""
    first = small.entries["a-table1"]
    never = Runs("never", {"paper": Scale()}, config="small.toml")
    more = {
        "a-figure2": replace(first, id="a-figure2", what="Figure 2, some", rows=("ours",)),
        "a-figure2-rest": replace(first, id="a-figure2-rest", what="Figure 2", runs=("never",)),
        "ours": replace(first, id="ours", what="ours alone"),
    }
    every = Catalogue({**small.runs, "never": never}, {**small.entries, **more})
    runs = {row: [{"seed": 0, "global_accuracy": 0.8}] for row in rows}
    write(tmp_path, **runs)
    shown = results_page.standing(every)
    assert shown.startswith("The papers have 2 tables and figures of results.")
    assert said in shown


def test_the_overview_says_how_many_runs_are_lacking(small: Catalogue, tmp_path: Path) -> None:
    write(tmp_path, ours=[{"seed": n, "global_accuracy": 0.8} for n in (0, 1)])
    assert "| 1 of 3 runs |" in results_page.overview(small)  # a seed that nobody asked for is none
    runs = [{"seed": 0, "global_accuracy": 0.8}]
    write(tmp_path, ours=runs, theirs=runs, new=runs)
    assert "| 3 runs |" in results_page.overview(small)


def scored(*points: tuple[int, int, float], seed: int = 0) -> dict[str, Any]:
    """A run with a curve: round, clients that were scored, global accuracy."""
    curve = {
        "global_accuracy": [[n, score] for n, _, score in points],
        "scored_clients": [[n, clients] for n, clients, _ in points],
        "bytes_up": [[n, n * 1e6] for n, _, _ in points],
    }
    sent = {"parameters_shared": 10, "bytes_up_per_client_round": 1e5}
    return {"seed": seed, "curve": curve, **sent}


FEDAVG = scored((10, 5, 0.60), (20, 5, 0.70), (30, 100, 0.90))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        # FedAvg's last was of all clients (90.0): five of them never got there
        (scored((10, 5, 0.65), (20, 5, 0.75), (30, 100, 0.80)), "20 MB, round 20"),
        # all clients are ahead at the end: of the five, nobody knows
        (scored((10, 5, 0.55), (20, 5, 0.65), (30, 100, 0.95)), "not reached"),
        # of another number of clients, or of other clients: nothing compares
        (scored((10, 7, 0.95), (20, 7, 0.95)), "no curve of the same clients"),
        (scored((10, 5, 0.95), (20, 5, 0.95), seed=1), "no curve of the same clients"),
        ({**FEDAVG, "curve": {}}, "no curve kept"),
    ],
)
def test_what_was_sent_until_a_score_is_told_of_the_same_clients(
    run: dict[str, Any], said: str
) -> None:
    aim, found = paper_tables.reached(run, [FEDAVG])
    assert found == said
    assert aim == ("70.0" if "same clients" not in said else "–")


# --- the real page --------------------------------------------------------------------------------


def test_the_page_is_what_template_and_results_make() -> None:
    assert (ROOT / "RESULTS.md").read_text() == results_page.page(), "run make results"


def test_no_figure_of_the_page_was_typed() -> None:
    """Outside of references, prose may name settings and parts of papers; a percentage, a mean with
    a spread or a decimal is a result.
    """
    text = results_page.TEMPLATE.read_text().partition("-->")[2]
    prose = re.sub(r"\{\{.*?\}\}|`[^`]*`|\([^)]*\)|\"[^\"]*\"", "", text, flags=re.S)
    assert re.findall(r"\d+\.\d+|\d+ ?%|±", prose) == []


def test_every_entry_of_the_catalogue_is_on_the_page() -> None:
    template = results_page.TEMPLATE.read_text().partition("-->")[2]
    missing = [name for name in catalogue.load().entries if name not in template]
    assert missing == []
    claims = {claim.id for entry in catalogue.load().entries.values() for claim in entry.claims}
    assert claims == set(re.findall(r"\{\{claim (\S+):", template))


def test_a_commit_that_nobody_can_look_up_is_marked() -> None:
    left = next(iter(paper_tables.left_behind()))
    made = {"fingerprint": "f" * 32, "commit": left, "clean": True}
    assert paper_tables.maker([{"made": made}]) == f"`fffffff` at `{left[:7]}`*"
    here = {"made": {**made, "commit": "0" * 40}}
    assert paper_tables.maker([here]) == "`fffffff` at `0000000`"
    assert paper_tables.maker([here, {"made": made}]).endswith("*")


def test_every_commit_of_a_result_is_of_this_history_or_marked() -> None:
    shallow = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if shallow.stdout.strip() != "false":
        pytest.skip("a checkout without its history")
    made = [run["made"] for one in paper_tables.CATALOGUE.runs.values() if not one.command
            for several in one.found().values() for run in several if run.get("made")]  # fmt: skip
    commits = {one["commit"] for one in made} - {None}
    assert len(commits) > 5
    unknown = {c for c in commits if not table.in_history(c)}
    assert unknown <= set(paper_tables.left_behind())
    assert not any(table.in_history(c) for c in paper_tables.left_behind())
    assert all(table.in_history(c) for c in paper_tables.left_behind().values())
