"""What stood in a newcomer's way, one test each: names of organisations, runs that are not finished
or not alike, folders and files given to --out, a full disk, an audit that says what it is of.
"""

import json
import re
import resource
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from rich.console import Console

import lexfed as package
from lexfed.core.errors import ConfigError
from lexfed.core.files import write_atomically
from lexfed.experiment import known_methods
from lexfed.learning.training_verbs import TRAIN
from lexfed.records.rundir import RunDir
from lexfed.report import page, progress
from lexfed.runtime.recording import Recorder
from lexfed.wire import Message
from tests.conftest import BAD, GOOD, ROOT, Lexfed, lexfed_process, no_pictures

NAMES = ("East clinic", "North clinic", "South clinic")


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """A configuration on texts of three clinics, which have names."""
    rows = [
        {
            "text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i}",
            "label": i % 2,
            "source": NAMES[i % 3],
            "airline": ("aa", "bb")[i % 2],
            "user": f"u{i % 9}",
        }
        for i in range(150)
    ]
    (tmp_path / "clinics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "clinics.toml"
    path.write_text(
        """
name = "clinics"
rounds = 2
[data]
name = "clinics.jsonl"
partition = "source"
clients = 3
[vocabulary]
corpus = "clients"
[model]
embedding = 4
hidden = 3
[cohort]
size = 2
[train]
batch = 8
"""
    )
    return path


@pytest.fixture
def without_pages() -> Iterator[None]:
    with no_pictures():
        yield


# --- names ---------------------------------------------------------------------------------------


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_organisations_have_their_names_and_no_name_travels(
    clinics: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = ("--set", "defences.minimum_words=100000", "--set", "cohort.size=3")
    run = lexfed("run", clinics, "--out", "a", "--record-wire", "wire", *settings)
    assert run.returncode == 0, run.stderr
    summary = json.loads(Path("a/summary.json").read_text())
    assert summary["client_names"] == list(NAMES)
    page = Path("a/report.html").read_text()
    held = page[page.index("Uploads held back") :]
    assert all(f"<td>{name}</td>" in held for name in NAMES), "in place of 0, 1, 2"
    for folder in ("wire", "a/artifacts", "a/checkpoint"):
        assert not re.search(rb"(?i)clinic[^s]", everything_in(tmp_path / folder)), folder
    assert lexfed("export", "a", "--to", "model").returncode == 0
    assert not re.search(rb"(?i)(north|east|south) clinic", everything_in(tmp_path / "model"))


def test_word_lists_are_told_by_organisation(clinics: Path, lexfed: Lexfed) -> None:
    agreed = lexfed("vocab", "agree", clinics)
    assert agreed.returncode == 0, agreed.stderr
    preview = lexfed("vocab", "preview", clinics)
    assert preview.returncode == 0, preview.stderr
    for name in NAMES:
        assert re.search(rf"^{name} +\d", agreed.stdout, re.M)
        assert re.search(rf"^{name} +\d", preview.stdout, re.M)


def test_word_vectors_show_who_gained(clinics: Path, lexfed: Lexfed) -> None:
    settings = ("rounds=2", "data.test_of=each", "agreement.minimum=2", "word2vec.dimension=4",
                "cohort.sampling=everyone")  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    clinics.write_text(
        'method = "federated_word2vec"\n' + clinics.read_text().partition("[vocabulary]")[0]
    )
    run = lexfed("run", clinics, "--out", "a", *words)
    assert run.returncode == 0, run.stderr
    page = Path("a/report.html").read_text()
    table = page[page.index("own held-out text") :]
    assert all(f"<td>{name}</td>" in table for name in NAMES)


@pytest.mark.usefixtures("without_pages")
def test_a_client_can_be_called_by_its_name(clinics: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", clinics, "--out", "a", "--set", "method=local_only").returncode == 0
    named, numbered = (
        lexfed("predict", "a", "--in", "clinics.jsonl", "--client", who)
        for who in ("North clinic", "1")
    )
    assert named.returncode == 0, named.stderr
    assert named.stdout == numbered.stdout
    assert "model: client 1 (North clinic)" in named.stdout
    unknown = lexfed("predict", "a", "--in", "clinics.jsonl", "--client", "Nort clinic")
    assert unknown.returncode == 2
    assert "did you mean 'North clinic'?" in unknown.stderr


@pytest.mark.usefixtures("without_pages")
def test_clients_without_names_stay_numbers(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    assert json.loads(Path("a/summary.json").read_text())["client_names"] is None


@pytest.mark.usefixtures("without_pages")
def test_several_clients_of_one_source_can_be_told_apart(clinics: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", clinics, "--out", "a", "--set", "data.clients=4").returncode == 0
    names = json.loads(Path("a/summary.json").read_text())["client_names"]
    assert names == ["East clinic (1)", "North clinic", "South clinic", "East clinic (2)"]


# --- runs side by side ---------------------------------------------------------------------------


@pytest.mark.usefixtures("without_pages")
def test_runs_on_other_data_are_not_compared_in_silence(clinics: Path, lexfed: Lexfed) -> None:
    other = ("--set", "seed=7", "--set", "data.limit=60", "--set", "data.partition=iid")
    assert lexfed("run", clinics, "--out", "a").returncode == 0
    assert lexfed("run", clinics, "--out", "b", *other).returncode == 0
    assert lexfed("run", clinics, "--out", "c", "--set", "method=local_only").returncode == 0
    assert "note:" not in lexfed("compare", "a", "c").stdout, "methods are what is compared"
    result = lexfed("compare", "a", "b", "c", "--out", "page.html")
    assert result.returncode == 0, result.stderr
    (note,) = [line for line in result.stdout.splitlines() if line.startswith("note:")]
    for part in ("data.limit (none, 60)", "data.partition (source, iid)", "seed (0, 7)"):
        assert part in note
        assert part in Path("page.html").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "a", "--out", "nowhere/page.html"),
        ("report", "a", "--out", "nowhere/page.html"),
        ("init", "private", "--data", "texts.jsonl", "--out", "nowhere/page.toml"),
        ("vocab", "agree", "tiny.toml", "--out", "nowhere/page.json"),
        ("predict", "a", "--in", "texts.jsonl", "--out", "nowhere/page.csv"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.usefixtures("without_pages")
def test_a_folder_that_is_not_there_is_named_as_it_was_given(
    words: tuple[str, ...], tiny: Path, lexfed: Lexfed
) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    result = lexfed(*words)
    assert result.returncode == 2
    assert "there is no folder nowhere for --out nowhere/page." in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout, "refused before the work"
    assert not Path("nowhere").exists()


# --- a run that is not finished ------------------------------------------------------------------


def interrupted(tiny: Path, lexfed: Lexfed) -> None:
    """A run whose third round never came."""
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    Path("a/summary.json").unlink()
    Path("a/report.html").unlink()
    lines = Path("a/rounds.jsonl").read_text().splitlines(keepends=True)
    Path("a/rounds.jsonl").write_text("".join(lines[:2]))


def test_an_unfinished_run_has_a_page_of_what_there_is(tiny: Path, lexfed: Lexfed) -> None:
    interrupted(tiny, lexfed)
    result = lexfed("report", "a")
    assert result.returncode == 0, result.stderr
    assert "unfinished: round 2 of 3" in result.stdout
    page = Path("a/report.html").read_text()
    assert "unfinished: round 2 of 3" in page
    assert "global accuracy" in page, "round 2 was scored"
    assert not Path("a/summary.json").exists(), "the contract holds for finished runs"
    compared = lexfed("compare", "a")
    assert compared.returncode == 2
    assert "unfinished: round 2 of 3; go on with: lexfed run a --resume" in compared.stderr


def test_a_run_without_a_round_has_a_page_too(tiny: Path, lexfed: Lexfed) -> None:
    interrupted(tiny, lexfed)
    Path("a/rounds.jsonl").unlink()
    assert lexfed("report", "a").returncode == 0
    assert "unfinished: round 0 of 3" in Path("a/report.html").read_text()


# --- what --out may be ---------------------------------------------------------------------------


@pytest.mark.usefixtures("without_pages")
def test_an_empty_folder_is_used(tiny: Path, lexfed: Lexfed) -> None:
    for name in ("a", "wire", "audit", "fork"):
        Path(name).mkdir()
    run = lexfed("run", tiny, "--out", "a", "--record-wire", "wire")
    assert run.returncode == 0, run.stderr
    assert Path("a/summary.json").exists()
    assert Path("wire/about.json").exists()
    fork = lexfed("run", tiny, "--out", "fork", "--from", "a", "--set", "rounds=4")
    assert fork.returncode == 0, fork.stderr
    audit = lexfed("audit", tiny, "--out", "audit", "--attack", "labels")
    assert audit.returncode == 0, audit.stderr
    frames = package.run({"rounds": 1, "model": {"embedding": 2, "hidden": 2}, "data": {"clients": 2},
                          "cohort": {"size": 2}},
                         corpus={"text": GOOD + BAD, "label": [1] * 5 + [0] * 5},
                         out=_empty("frame"), quiet=True)  # fmt: skip
    assert frames.summary["rounds"] == 1


def _empty(name: str) -> Path:
    Path(name).mkdir()
    return Path(name)


def test_an_empty_folder_stays_if_the_run_comes_to_nothing(tiny: Path, lexfed: Lexfed) -> None:
    Path("a").mkdir()
    Path("broken.py").write_text(
        "import lexfed\n"
        "def build(parts, options):\n    raise ValueError('mine')\n"
        "METHOD = lexfed.Entry('mine', lexfed.CLASSIFIER, build)\n"
    )
    failed = lexfed("run", tiny, "--out", "a", "--set", "method=broken:METHOD")
    assert failed.returncode != 0
    assert list(Path("a").iterdir()) == []


@pytest.mark.parametrize("option", ["--out", "--record-wire"])
@pytest.mark.usefixtures("without_pages")
def test_a_file_or_a_full_folder_is_not_said_to_be_a_run(
    option: str, tiny: Path, lexfed: Lexfed
) -> None:
    Path("file").write_text("mine")
    Path("folder").mkdir()
    Path("folder/mine.txt").write_text("mine")
    for name, line in (("file", "is a file"), ("folder", "is not empty")):
        words = ("--out", "fresh") if option == "--record-wire" else ()
        result = lexfed("run", tiny, *words, option, name)
        assert result.returncode == 2
        assert f"{name} exists already and {line}; choose another {option}" in result.stderr
        assert "--resume" not in result.stderr
        assert result.stderr.count("\n") == 1
        assert not Path("fresh").exists()
    assert Path("file").read_text() == "mine"
    assert lexfed("run", tiny, "--out", "run").returncode == 0
    again = lexfed("run", tiny, "--out", "run")
    assert "lexfed run run --resume" in again.stderr


# --- messages about the data ---------------------------------------------------------------------


@pytest.mark.usefixtures("without_pages")
def test_a_column_in_place_of_a_partition_is_explained(clinics: Path, lexfed: Lexfed) -> None:
    result = lexfed("run", clinics, "--out", "a", "--set", "data.partition=airline")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    for part in (
        "data.partition = 'airline' is not known",
        "dirichlet, iid, quantity, source, user",
        "text, label, source, airline, user",
        'data.partition = "source" and data.source = "airline"',
    ):
        assert part in result.stderr
    parted = lexfed("run", clinics, "--out", "a", "--set", "data.partition=source",
                    "--set", "data.source=airline", "--set", "data.clients=2")  # fmt: skip
    assert parted.returncode == 0, parted.stderr
    assert json.loads(Path("a/summary.json").read_text())["client_names"] == ["aa", "bb"]


def test_a_word_that_is_no_column_lists_both(clinics: Path, lexfed: Lexfed) -> None:
    for word in ("diriclet", "hospital"):
        result = lexfed("run", clinics, "--out", "a", "--set", f"data.partition={word}")
        assert result.returncode == 2
        assert "dirichlet, iid, quantity, source, user" in result.stderr
        assert ("did you mean 'dirichlet'?" in result.stderr) == (word == "diriclet")
        assert "text, label, source, airline, user" in result.stderr


@pytest.mark.parametrize(("rows", "clients"), [(5, 6), (2, 2), (12, 20)])
def test_too_few_rows_are_counted(rows: int, clients: int, tiny: Path, lexfed: Lexfed) -> None:
    lines = [f"text number {i},{i % 2}" for i in range(rows)]
    Path("few.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    result = lexfed("run", tiny, "--out", "a", "--set", "data.name=few.csv",
                    "--set", f"data.clients={clients}", "--set", "cohort.size=2")  # fmt: skip
    assert result.returncode == 2
    assert f"few.csv has only {rows} texts" in result.stderr
    assert f"too few for {clients} clients" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("without_pages")
def test_rows_without_text_and_other_scripts_are_said_by_the_run_itself(
    tiny: Path, lexfed: Lexfed
) -> None:
    rows = [
        {"text": "我喜欢看电影因为它很有趣" if i % 2 else "", "label": i // 2 % 2}
        for i in range(80)
    ]
    rows += [{"text": f"我 {i}", "label": i % 2} for i in range(20)]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = lexfed(
        "run", tiny, "--out", "a", "--set", "data.clients=2", "--set", "cohort.size=2"
    ).stdout
    assert "note: 40 of 100 rows have no text" in out
    assert "no spaces between words" in out


# --- an audit says what it is of ------------------------------------------------------------------


@pytest.mark.usefixtures("without_pages")
def test_an_audit_names_run_data_date_and_command(clinics: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", clinics, "--out", "a", "--record-wire", "wire").returncode == 0
    for words, what in (
        (("a",), "a"),
        (("wire", "--truth", "a"), "wire"),
        (("clinics.toml",), "clinics.toml"),
    ):
        command = ("audit", *words, "--attack", "labels", "--out", f"of-{what}")
        result = lexfed(*command)
        assert result.returncode == 0, result.stderr
        about = json.loads(Path(f"of-{what}/about.json").read_text())
        assert about["audited"] == what
        assert about["name"] == "clinics"
        assert about["data"].endswith("clinics.jsonl, by source, 3 clients")
        assert about["method"] == "fedavg"
        assert about["command"] == " ".join(["lexfed", *command])
        assert (
            abs(time.mktime(time.strptime(about["date"], "%Y-%m-%d %H:%M:%S")) - time.time()) < 60
        )
        page = Path(f"of-{what}/audit.html").read_text()
        for value in about.values():
            assert value in result.stdout
            assert value in page


@pytest.mark.usefixtures("without_pages")
def test_an_audit_of_clients_alone_says_that_there_is_nothing_to_read(
    tiny: Path, lexfed: Lexfed
) -> None:
    """`local_only` gave a table without a column of values."""
    assert lexfed("run", tiny, "--out", "a", "--set", "method=local_only").returncode == 0
    result = lexfed("audit", "a", "--out", "audit")
    assert result.returncode == 0, result.stderr
    assert "How frequent is each class?" not in result.stdout
    rows = json.loads(Path("audit/audit.json").read_text())
    (labels,) = [row for row in rows if row["attack"] == "labels"]
    assert "no upload" in labels["not_run"]
    assert "no upload" in result.stdout
    assert "no upload" in Path("audit/audit.html").read_text()


@pytest.mark.usefixtures("without_pages")
def test_a_run_can_be_audited_from_anywhere(
    clinics: Path, lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lexfed("run", clinics, "--out", "a").returncode == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    audit = lexfed("audit", "../a", "--attack", "labels", "--out", "found")
    assert audit.returncode == 0, audit.stderr
    assert lexfed("audit", "../clinics.toml", "--attack", "labels", "--out", "b").returncode == 0


# --- a full disk ---------------------------------------------------------------------------------


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond a size: what a full disk does, without filling one. (Python itself
    leaves halves of compiled files then.)
    """
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize(
    ("size", "named"),
    [
        (0, "a/format.json"),
        (500, "a/config.toml"),
        (9_000, "a/checkpoint/"),
        (60_000, "a/report.html"),
    ],
)
def test_a_disk_that_is_full_names_the_file_and_leaves_no_half_of_one(
    size: int, named: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = ("--set", "rounds=1", "--set", "model.hidden=20", "--set", "evaluation.last=1")
    with full_disk(size):
        done = lexfed("run", tiny, "--out", "a", *settings)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith(f"lexfed: File too large: {named}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert "/." not in done.stderr, "the file that was meant, not a temporary one"
    assert [str(path) for path in tmp_path.rglob(".*")] == []
    if size <= 500:  # nothing was begun
        assert not Path("a").exists()
    else:
        assert lexfed("run", "a", "--resume").returncode == 0, "when there is room again"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_record_that_has_no_room_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        RunDir(tmp_path).append({"round": 1})
    assert error.value.filename == str(tmp_path / "rounds.jsonl")


def test_a_message_that_has_no_room_leaves_no_half(tmp_path: Path) -> None:
    message = Message({"model/a": torch.zeros(5000)}, {"round": 1, "step": 1, "ask": 0})
    with full_disk(3000), pytest.raises(OSError, match="File too large") as error:
        Recorder(tmp_path).down(TRAIN, {7: message})
    assert error.value.filename == str(tmp_path / "000001-00-train-00000007-down")
    assert list(tmp_path.iterdir()) == []


def test_texts_that_have_no_room_leave_no_half(tmp_path: Path) -> None:
    texts = {"text": [text * 1000 for text in GOOD + BAD], "label": [1] * 5 + [0] * 5}
    with full_disk(5000), pytest.raises(OSError, match="File too large"):
        package.run({"rounds": 1}, corpus=texts, out=tmp_path / "a", quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_written_is_named_as_it_was_meant(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as error:
        write_atomically(tmp_path / "nowhere" / "a", b"x")
    assert error.value.filename == str(tmp_path / "nowhere" / "a")


# --- how long it takes ----------------------------------------------------------------------------


def record(round: int, scored: int = 0) -> dict[str, object]:
    metrics = {"global_accuracy": 0.5, "scored_clients": scored} if scored else {}
    return {"round": round, "loss": 0.1, "bytes_up": 1, "bytes_down": 1, "seconds": 1.0,
            "evaluation_seconds": 4.3 if scored else 0.0, "metrics": metrics}  # fmt: skip


def records() -> Iterator[object]:
    yield record(1)
    yield progress.Scoring(2, 5)
    yield record(2, scored=5)
    yield progress.Scoring(3, 100)
    time.sleep(0.4)  # the bar is drawn ten times a second
    yield record(3, scored=100)


@pytest.mark.parametrize("terminal", [True, False])
def test_scoring_is_not_silent_and_is_in_the_time_that_is_left(terminal: bool) -> None:
    """ "1 s left", then 86 seconds in which all clients were scored."""
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    progress.show(records(), 3, 0, console, 100)  # type: ignore[arg-type]
    out = file.getvalue()
    assert terminal or " left" not in out.partition("round 2")[0], "in the first one, workers start"
    assert "scoring 100 clients" in out
    assert "86 s left" in out, "100 clients of 0.86 s each"
    assert terminal or "87 s left" in out, "and before it a round of 1 s"


@pytest.mark.usefixtures("without_pages")
def test_a_run_says_when_it_scores(tiny: Path, lexfed: Lexfed) -> None:
    lines = lexfed("run", tiny, "--out", "a").stdout.splitlines()
    scoring = next(i for i, line in enumerate(lines) if "round 3/3  scoring 6 clients" in line)
    assert lines[scoring + 1].startswith("round 3/3  loss")


# --- words, packages, ways to call it -------------------------------------------------------------

WORDS = (
    "the ledger does not move", "parts them among", "a client that talks", "would in truth send",
    "apart for this run and for the deployment whose noise it carries", "the way of the data",
    "no loss to tell", "holds no vocabulary that all know", "could not be had",
)  # fmt: skip
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "lexfed").rglob("*.py")),
    *sorted((ROOT / "examples").glob("*.py")),
]


def hard_words(pages: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {words}"
        for path in pages
        for words in WORDS
        if words in " ".join(path.read_text().lower().replace("#", " ").split())
    ]


def test_words_that_stop_a_reader_are_gone() -> None:
    assert hard_words(PAGES) == []


def test_python_m_lexfed_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lexfed", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.stdout.strip() == f"lexfed {package.__version__}"


def test_torch_may_be_of_many_versions_and_is_tested_with_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {one.name: one for one in map(Requirement, project["dependencies"])}
    operators = {part.operator for part in wanted["torch"].specifier}
    assert operators == {">=", "<"}
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert wanted["torch"].specifier.contains(pinned)
    installs = re.findall(r"pip install.*", (ROOT / "Makefile").read_text())
    assert len(installs) == 4
    assert all("-c constraints.txt" in line for line in installs)


def test_a_method_that_was_replaced_does_not_run_under_the_old_name(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, lexfed: Lexfed
) -> None:
    """With workers it ran as stock FedAvg, without a word."""
    with pytest.raises(TypeError):
        known_methods.METHODS["fedavg"] = "mine:METHOD"  # type: ignore[index]
    from dataclasses import replace

    from lexfed.methods import fedavg

    def build(parts: object, options: object) -> object:
        raise AssertionError

    monkeypatch.setattr(fedavg, "METHOD", replace(fedavg.METHOD, build=build))
    for workers in ("0", "2"):
        result = lexfed("run", tiny, "--out", "a", "--workers", workers)
        assert result.returncode == 2
        assert "'fedavg' was replaced" in result.stderr
        assert "package.module:METHOD" in result.stderr
    with pytest.raises(ConfigError):
        known_methods.method("fedavg")


# --- five commands --------------------------------------------------------------------------------


def test_five_commands_of_the_readme_lead_from_a_csv_to_predictions(
    lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEXFED_DATA", raising=False)  # whoever cloned it has no data folder
    section = (
        (ROOT / "README.md").read_text().partition("in five commands")[2].partition("\n## ")[0]
    )
    commands = re.findall(r"^\$ \.venv/bin/lexfed (.+)$", section, re.M)
    assert [line.split()[0] for line in commands] == ["data", "init", "run", "predict", "export"]
    rows = [
        f'"{(GOOD if i % 2 else BAD)[i % 5]}, {i % 7}",{("bad", "good")[i % 2]}' for i in range(120)
    ]
    Path("notes.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    Path("new.csv").write_text("text\na fine film\nno fun\n\nwe loved it\n")
    for line in commands:
        result = lexfed(*line.split())
        assert result.returncode == 0, f"{line}: {result.stderr}"
    lines = Path("predictions.csv").read_text().splitlines()
    assert lines[0] == "row,label,probability,p_bad,p_good"
    assert len(lines) == 1 + 3
    assert {line.split(",")[1] for line in lines[1:]} <= {"bad", "good"}
    assert Path("model/README.md").exists()
    sent = json.loads(Path("first/summary.json").read_text())["bytes_up"]
    assert sent > 100_000, "and clients did train together"


# --- found on a second walk: German tickets, semicolons, latin-1, columns of any name ---------------


def tickets(rows: int = 160) -> None:
    lines = ["Nr;Filiale;Beschwerde;Kategorie"]
    for i in range(rows):
        kind, text = (("Rechnung", "falscher Betrag für"), ("Qualität", "schlechtes Gerät mit"))[
            i % 2
        ]
        lines.append(
            f'{i};{("Köln", "Lübeck", "Nürnberg")[i % 3]};"{text} Nummer {i}; bitte";{kind}'
        )
    Path("tickets.csv").write_text("\n".join(lines) + "\n", encoding="latin-1")


def test_columns_of_any_name_are_guessed_or_told(lexfed: Lexfed) -> None:
    tickets()
    for command in ("check", "show"):
        guessed = lexfed("data", command, "tickets.csv")
        assert guessed.returncode == 0, guessed.stderr
        assert "text = Beschwerde" in guessed.stdout
        assert ("note: no column of labels was found" in guessed.stdout) == (command == "check")
    told = lexfed("data", "check", "tickets.csv", "--label", "Kategorie", "--source", "Filiale")
    assert "text = Beschwerde, label = Kategorie, source = Filiale" in told.stdout
    assert "Köln: 54" in told.stdout
    lost = lexfed("init", "private", "--data", "tickets.csv")
    assert lost.returncode == 2
    assert "name it with --label (its columns: Nr, Filiale, Beschwerde, Kategorie)" in lost.stderr
    wrong = lexfed("init", "private", "--data", "tickets.csv", "--label", "Klasse")
    assert "has no column 'Klasse'; its columns: Nr, Filiale" in wrong.stderr
    made = lexfed(
        "init", "private", "--data", "tickets.csv", "--label", "Kategorie", "--source", "Filiale"
    )
    assert made.returncode == 0, made.stderr
    data = tomllib.loads(Path("private.toml").read_text())["data"]
    assert (data["text"], data["label"], data["source"]) == ("Beschwerde", "Kategorie", "Filiale")
    assert (data["partition"], data["clients"]) == ("source", 3)


def test_init_says_why_users_are_no_clients(lexfed: Lexfed) -> None:
    rows = [f"text number {i},{i % 2},u{i}" for i in range(60)]
    Path("a.csv").write_text("text,label,author\n" + "\n".join(rows))
    assert lexfed("init", "private", "--data", "a.csv").returncode == 0
    assert "60 users are too few, or have too few texts each" in Path("private.toml").read_text()


@pytest.mark.usefixtures("without_pages")
def test_what_init_writes_for_small_clients_does_learn(
    lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With minimum_words = 300 nobody sent anything: twenty rounds, chance, and no word about it."""
    monkeypatch.delenv("LEXFED_DATA", raising=False)
    tickets()
    made = lexfed(
        "init", "private", "--data", "tickets.csv", "--label", "Kategorie", "--source", "Filiale"
    )
    few = re.search(r"note: (clients have about .+ in spite of the rotation)", made.stdout)
    assert few is not None
    assert tomllib.loads(Path("private.toml").read_text())["defences"]["minimum_words"] == 0
    quick = [word for setting in ("rounds=2", "model.hidden=8", "evaluation.every=0", "model.embedding=16",
                                  "vocabulary.vectors=hashed:16") for word in ("--set", setting)]  # fmt: skip
    run = lexfed("run", "private.toml", "--out", "a", *quick)
    assert run.returncode == 0, run.stderr
    assert json.loads(Path("a/summary.json").read_text())["bytes_up"] > 10_000
    words = few[1].replace("than 320", "than 80")  # that are enough for vectors of 16 numbers
    assert f"note: {words}" in run.stdout
    assert words in page.page(RunDir(Path("a"))), "the report says it again"
    silent = lexfed(
        "run", "private.toml", "--out", "b", *quick, "--set", "defences.minimum_words=300"
    )
    assert (
        "note: 3 of 3 clients have fewer than 300 different words and send nothing" in silent.stdout
    )
    assert "uploads were held back, so little or nothing was learned" in silent.stdout
    assert "train longer" not in silent.stdout, "that would not help"
    assert words not in silent.stdout, "there such clients do not send"
    audit = lexfed("audit", "a", "--attack", "labels", "--out", "audit")
    assert "as configured" in audit.stdout, "a run's own rotation is no 'none'"


@pytest.mark.usefixtures("without_pages")
def test_the_comparison_that_the_configuration_suggests_runs(
    lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEXFED_DATA", raising=False)
    tickets()
    words = ("--label", "Kategorie", "--source", "Filiale")
    assert lexfed("init", "private", "--data", "tickets.csv", *words).returncode == 0
    text = Path("private.toml").read_text()
    (line,) = re.findall(r"# Compare:  lexfed (.+\\\n.+)", text)
    command = line.replace("\\\n#", "").replace("THIS", "private").split()
    quick = [word for setting in ("rounds=1", "model.hidden=4", "model.embedding=8",
                                  "vocabulary.vectors=hashed:8") for word in ("--set", setting)]  # fmt: skip
    result = lexfed(*command, *quick, "--out", "a")
    assert result.returncode == 0, result.stderr
    assert "fedavg" in result.stdout


@pytest.mark.usefixtures("without_pages")
def test_texts_that_are_left_out_are_counted(tiny: Path, lexfed: Lexfed) -> None:
    """Of 889 tickets 361 were trained on, without a word: the others were held out, or the same."""
    rows = [
        {"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i % 40}", "label": i % 2} for i in range(160)
    ]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = lexfed("run", tiny, "--out", "a").stdout
    (left_out,) = re.findall(r"note: (\d+) of 160 texts are left out", out)
    trained = int(re.search(r"clients, (\d+) texts", out)[1])  # type: ignore[index]
    assert int(left_out) + trained < 160


@pytest.mark.slow
def test_a_command_that_fails_at_once_ends_in_peace(tmp_path: Path) -> None:
    """One in four was aborted: a thread was still reading the table when the process ended."""
    lines = [f"{i};text number {i}" for i in range(900)]
    (tmp_path / "a.csv").write_text("Nr;text\n" + "\n".join(lines) + "\n")
    for _ in range(20):
        process = lexfed_process("data", "check", "a.csv", "--label", "none", cwd=tmp_path)
        _, stderr = process.communicate()
        assert (process.returncode, stderr.count("\n")) == (2, 1), stderr


@pytest.mark.usefixtures("without_pages")
def test_no_table_cuts_a_number_off(
    tiny: Path, lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns, and so in every pipe, numbers ended in "13,66…"."""
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    narrow = {}
    for columns in ("40", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        narrow[columns] = lexfed("compare", "a").stdout
        narrow[columns] += lexfed("audit", "a", "--attack", "labels", "--out", f"b{columns}").stdout
        assert "…" not in narrow[columns]
    numbers = [re.findall(r"\d+\.\d+ (?:%|[kMG]?B)|0\.\d\d", narrow[columns]) for columns in narrow]
    assert numbers[0] == numbers[1] != []
