"""Own data as people have it, remarks on what may go wrong with it, and a configuration to start
from.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lexfed.core.errors import DataError
from lexfed.corpus import checking
from lexfed.corpus.catalogue import load
from lexfed.experiment import config
from lexfed.experiment.starting import look, write
from lexfed.runs import hints
from tests.conftest import BAD, GOOD, Lexfed, corpus_of

SECRET = "wombat"  # of a user's text: no message may hold it
ROWS = [
    (f"{(GOOD if i % 2 else BAD)[i % 5]}, {SECRET} {i}", ("bad", "good")[i % 2]) for i in range(60)
]


def table(separator: str) -> str:
    lines = [f'"{text}"{separator}{label}' for text, label in ROWS]
    return "\n".join([f"text{separator}label", *lines]) + "\n"


def objects() -> list[dict[str, str]]:
    return [{"text": text, "label": label} for text, label in ROWS]


def folder_of_texts(path: Path) -> None:
    for number, (text, label) in enumerate(ROWS):
        (path / label).mkdir(parents=True, exist_ok=True)
        (path / label / f"{number}.txt").write_text(text)


def folder_of_tables(path: Path) -> None:
    path.mkdir()
    lines = [json.dumps(row) for row in objects()]
    (path / "north.jsonl").write_text("\n".join(lines[:30]))
    (path / "south.jsonl").write_text("\n".join(lines[30:]))


KINDS: dict[str, Callable[[Path], object]] = {
    "comma.csv": lambda p: p.write_text(table(",")),
    "semicolon.csv": lambda p: p.write_text(table(";")),
    "bar.csv": lambda p: p.write_text(table("|")),
    "tab.tsv": lambda p: p.write_text(table("\t")),
    "bom.csv": lambda p: p.write_bytes(table(",").encode("utf-8-sig")),
    "wide.csv": lambda p: p.write_bytes(table(",").encode("utf-16")),
    "latin.csv": lambda p: p.write_bytes(table(";").replace("fine", "füne").encode("latin-1")),
    "packed.csv.gz": lambda p: p.write_bytes(gzip.compress(table(",").encode())),
    "lines.jsonl": lambda p: p.write_text("\n".join(json.dumps(row) for row in objects())),
    "packed.jsonl.gz": lambda p: p.write_bytes(
        gzip.compress("\n".join(json.dumps(row) for row in objects()).encode())
    ),
    "list.json": lambda p: p.write_text(json.dumps(objects())),
    "columns.json": lambda p: p.write_text(
        json.dumps({"text": [t for t, _ in ROWS], "label": [n for _, n in ROWS]})
    ),
    "texts": folder_of_texts,
    "tables": folder_of_tables,
}


@pytest.mark.parametrize("name", KINDS)
def test_the_same_texts_from_any_kind_of_file(name: str, tmp_path: Path) -> None:
    KINDS[name](tmp_path / name)
    corpus = load(str(tmp_path / name))
    plain = {text.replace("fine", "füne") if name == "latin.csv" else text for text, _ in ROWS}
    assert set(corpus) == plain
    assert corpus.label_names == ("bad", "good")
    texts = {text: int(label) for text, label in zip(corpus, corpus.labels, strict=True)}
    assert all(texts[t.replace("fine", "füne") if name == "latin.csv" else t] == ("bad", "good").index(n)
               for t, n in ROWS)  # fmt: skip
    if name == "tables":
        assert corpus.sources is not None
        assert set(corpus.sources.to_pylist()) == {"north", "south"}


def test_a_text_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\nanother\n\n")
    assert list(load(str(tmp_path / "a.txt"))) == ["one text", "another"]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        (
            "short.csv",
            b"text,label\nwombat is fine,1\nwombat,with,commas,0\n",
            "row 3 has 4 columns, not 2",
        ),
        ("broken.jsonl", b'{"text": "wombat"}\n{"text": wombat}\n', "can't be read as jsonl"),
        ("broken.json", b'{"text": "wombat"', "can't be read as json"),
        ("strange.json", b'{"text": "wombat"}', "damaged, or of another kind"),
        ("not.csv.gz", b"text,label\nwombat,1\n", "not packed with gzip"),
        ("bytes.csv", b"text,label\nwombat \x81\x8d,1\n", "save it as UTF-8"),
        ("a.doc", b"wombat", "unknown ending"),
        ("half.csv", b"text,label\nwombat,0.5\nwombat two,1.0\n", "no whole number"),
        ("one.csv", b"text,label\nwombat,1\nwombat two,1\n", "nothing to learn"),
    ],
)
def test_a_file_that_can_not_be_read_is_one_line_without_its_text(
    name: str, content: bytes, line: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    settings = (f"data.name={tmp_path / name}", "data.classes=none")
    words = [word for setting in settings for word in ("--set", setting)]
    result = lexfed("run", tiny, "--out", "a", *words)
    assert result.returncode == 2
    assert line in result.stderr
    assert SECRET not in result.stderr + result.stdout
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("labels", "names"), [(["true", "false"], ("false", "true")), (["1.0", "0.0"], None)]
)
def test_truth_values_and_spreadsheet_numbers_are_labels(
    labels: list[str], names: tuple[str, ...] | None, tmp_path: Path
) -> None:
    lines = [f"text {i},{labels[i % 2]}" for i in range(10)]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(lines))
    corpus = load(str(tmp_path / "a.csv"))
    assert corpus.label_names == names
    assert sorted(set(corpus.labels.tolist())) == [0, 1]


# --- remarks -------------------------------------------------------------------------------------


def test_remarks_on_texts_count_and_never_quote(lexfed: Lexfed, tmp_path: Path) -> None:
    lines = [f"{SECRET} {i % 5},{int(i == 0)}" for i in range(100)] + [",0"] * 7
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(lines))
    result = lexfed("data", "check", "a.csv")
    assert result.returncode == 0, result.stderr
    for part in ("7 of 107 rows have no text", "95 of 100 texts occur more than once",
                 "99 % of the texts are of one class", "rarest class has 1 texts"):  # fmt: skip
        assert part in result.stdout
    assert SECRET not in result.stdout


def test_a_good_data_set_gets_no_remark(lexfed: Lexfed) -> None:
    result = lexfed("data", "check", "rotten_tomatoes")
    assert "nothing looks wrong" in result.stdout


def test_clients_of_few_words_are_remarked_on_as_init_does(lexfed: Lexfed) -> None:
    """`init` warned of them, and `data check` found nothing wrong."""
    rows = [f"word{i % 40} and more {i},{i % 2},u{i % 12}" for i in range(240)]
    Path("a.csv").write_text("text,label,author\n" + "\n".join(rows))
    checked, made = lexfed("data", "check", "a.csv"), lexfed("init", "private", "--data", "a.csv")
    (note,) = [line for line in checked.stdout.splitlines() if "different words" in line]
    assert "uploads of fewer than" in note
    assert note.rstrip(".").removeprefix("note: as `lexfed init private` would part them, ") in (
        made.stdout
    )
    Path("b.csv").write_text("text\n" + "\n".join(row.split(",")[0] for row in rows))
    unlabelled = lexfed("data", "check", "b.csv")
    assert "different words" not in unlabelled.stdout, "nobody learns to classify them"


def test_texts_of_the_test_split_that_are_trained_on_are_counted(
    lexfed: Lexfed, tmp_path: Path
) -> None:
    rows = [{"text": f"text {i}", "label": i % 2, "split": "train"} for i in range(20)]
    rows += [{"text": f"text {i}", "label": i % 2, "split": "test"} for i in range(16, 26)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert (
        "4 texts of the test split are in the training split"
        in lexfed("data", "check", "a.jsonl").stdout
    )


@pytest.mark.parametrize(
    ("texts", "remark"),
    [
        (["我喜欢看电影因为它很有趣"] * 3, "no spaces between words"),
        (["мне понравился этот фильм"], "cyrillic 100 %"),
        (["أعجبني هذا الفيلم"], "arabic 100 %"),
        (["😀😀😀 nice"], "emoji"),
        (["123 456"], "no letters"),
    ],
)
def test_scripts_are_named(texts: list[str], remark: str) -> None:
    assert any(remark in line for line in checking.of_scripts(texts))
    assert not list(checking.of_scripts(GOOD))


def test_a_run_says_before_it_starts_what_may_go_wrong(tiny: Path, lexfed: Lexfed) -> None:
    settings = ("data.clients=20", "data.limit=40", "vocabulary.size=4")
    words = [word for setting in settings for word in ("--set", setting)]
    out = lexfed("run", tiny, "--out", "a", *words).stdout
    for part in ("clients hold fewer than 5 texts", "data.limit = 40 leaves out"):
        assert part in out
    assert "note: the word list knows" in out
    unset = lexfed("run", tiny, "--out", "b", *words, "--set", "data.limit=none")
    assert unset.returncode == 0, unset.stderr
    assert "leaves out" not in unset.stdout


def test_a_run_says_at_its_end_what_went_wrong() -> None:
    figures = {"global_accuracy": 0.5, "test_majority_accuracy": 0.6}
    (worse,) = hints.after(figures, [])
    assert "no better than always saying" in worse
    records = [
        {"round": r, "loss": 1 / r, "metrics": {"global_accuracy": a}}
        for r, a in ((1, 0.6), (2, 0.8), (3, 0.75), (4, 0.7))
    ]
    (overfitted,) = hints.after({}, records)
    assert "80.0 % at round 2 and is 70.0 % now" in overfitted
    vectors = {"heldout_loss": 4.2, "untrained_heldout_loss": 4.1}
    (diverged,) = hints.after(vectors, [])
    assert "no better than untrained" in diverged
    assert not list(
        hints.after({"global_accuracy": 0.7, "test_majority_accuracy": 0.6}, records[:2])
    )


def test_a_curve_is_of_the_same_clients_throughout(tiny: Path, lexfed: Lexfed) -> None:
    """Five on the way, all at the end: one run "fell" from 65.4 to 56.1 % at its last point."""
    setting = ("--set", "evaluation.every=1", "--set", "evaluation.clients=2")
    assert lexfed("run", tiny, "--out", "a", *setting).returncode == 0
    last = json.loads(Path("a/rounds.jsonl").read_text().splitlines()[-1])["metrics"]
    assert last["scored_clients"] == 6
    few = last["on_the_way"]
    alone = ("--set", "evaluation.last=2", "--set", "evaluation.clients=2")
    assert lexfed("run", tiny, "--out", "b", *alone).returncode == 0
    summary = json.loads(Path("b/summary.json").read_text())
    assert few["local_accuracy"] == summary["local_accuracy"] != last["local_accuracy"]
    assert "on_the_way" not in json.loads(Path("a/summary.json").read_text())


# --- paths ---------------------------------------------------------------------------------------


def test_files_are_found_beside_the_configuration_and_the_run_can_move(
    tiny: Path, lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tiny.read_text().replace(f"{tmp_path}/texts.jsonl", "texts.jsonl")
    tiny.write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert lexfed("run", "../tiny.toml", "--out", "a").returncode == 0
    monkeypatch.chdir("/")
    run = tmp_path / "elsewhere" / "a"
    assert lexfed("run", run, "--resume", "--set", "rounds=4").returncode == 0
    assert config.load(run / "config.toml").data.name == str(tmp_path / "texts.jsonl")


# --- lexfed init ---------------------------------------------------------------------------------


def test_init_looks_at_the_data(tmp_path: Path) -> None:
    rows = [
        f'{i};"{GOOD[i % 5]} and so on {i}";{("yes", "no")[i % 2]};u{i % 12}' for i in range(120)
    ]
    (tmp_path / "a.csv").write_text("id;Review;Sentiment;author\n" + "\n".join(rows))
    seen = look(str(tmp_path / "a.csv"))
    assert (seen.text, seen.label, seen.user, seen.source) == (
        "Review",
        "Sentiment",
        "author",
        None,
    )
    assert (seen.texts, seen.classes, seen.users) == (120, 2, 12)
    written = config.loads(write("private", seen))
    assert (written.data.text, written.data.label) == ("Review", "Sentiment")
    assert written.data.partition == "user"
    assert written.method == "fedevocab"
    assert (written.fedevocab.adaptive, written.fedevocab.table_lr) == (False, 0.1)
    assert (written.train.epochs, written.train.logit_adjustment) == (2, 1.0)
    assert written.defences.rotation == "shared"


@pytest.mark.parametrize(
    "question",
    ["private", "agreed", pytest.param("learned", marks=pytest.mark.slow), "audit"],
)
def test_init_writes_what_runs(question: str, lexfed: Lexfed, tmp_path: Path) -> None:
    rows = [{"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i % 7}", "label": i % 2, "user": f"u{i % 30}",
             "source": f"s{i % 3}"} for i in range(150)]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = lexfed("init", question, "--data", "a.jsonl")
    assert made.returncode == 0, made.stderr
    assert f"wrote {question}.toml" in made.stdout
    again = lexfed("init", question, "--data", "a.jsonl")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    parsed = config.load(tmp_path / f"{question}.toml")
    assert parsed.data.name == str(tmp_path / "a.jsonl")
    if question == "audit":
        return
    quick = {"private": ("model.hidden=4",), "agreed": ("agreement.minimum=2", "word2vec.dimension=4"),
             "learned": ("tokenizer_for_free.switch=[1]", "tokenizer_for_free.sample_words=300",
                         "tokenizer_for_free.teach_words=300",
                         "tokenizer.size=400", "privacy.noise=0.1")}[question]  # fmt: skip
    words = [word for setting in ("rounds=2", *quick) for word in ("--set", setting)]
    run = lexfed("run", f"{question}.toml", "--out", "run", *words)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("init", "privat"), "did you mean 'private'?"),
        (("init", "private", "--data", "nowhere.csv"), "there is no file"),
        (("init", "private", "--data", "texts.txt"), "no labels to learn"),
        (("init", "private", "--data", "one.csv"), "all texts of one.csv have the same label"),
    ],
)
def test_what_init_can_not_do_is_one_line(
    words: tuple[str, ...], line: str, lexfed: Lexfed, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("a\nb\n")
    (tmp_path / "one.csv").write_text("text,label\na,good\nb,good\n")
    result = lexfed(*words)
    assert result.returncode == 2
    assert line in result.stderr
    assert not list(tmp_path.glob("*.toml"))


def test_a_column_of_texts_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n")
    with pytest.raises(DataError, match="no column of texts"):
        look(str(tmp_path / "a.csv"))


# --- presets -------------------------------------------------------------------------------------


def test_the_published_fedevocab_is_a_preset() -> None:
    paper = config.loads('method = "fedevocab"\n[fedevocab]\npreset = "paper"\n')
    assert (paper.fedevocab.adaptive, paper.fedevocab.table_lr) == (True, 1.0)
    assert (paper.train.epochs, paper.train.logit_adjustment) == (1, 0.0)
    ours = config.loads('method = "fedevocab"\n')
    assert (ours.fedevocab.adaptive, ours.fedevocab.table_lr) == (False, 0.1)
    assert (ours.train.epochs, ours.train.logit_adjustment) == (2, 1.0)
    said = config.loads('method = "fedevocab"\n[train]\nepochs = 3\n', ["fedevocab.adaptive=true"])
    assert (said.train.epochs, said.fedevocab.adaptive) == (3, True), "what is set stays"
    assert config.loads('method = "fedavg"\n').train.epochs == 1, "others have their own"
    assert config.loads(config.to_toml(ours)) == ours


def test_a_corpus_of_hand_is_checked_too() -> None:
    assert list(checking.of_texts(corpus_of(["a b c"] * 10, [1] * 10)))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (2.5, []),
        (4.10, []),
        (4.158, ["the loss on held-out text (4.158) is hardly better than untrained vectors' (4.159): "
                 "raise word2vec.epochs, or bring more text"]),
        (4.30, ["the loss on held-out text (4.300) is no better than untrained vectors' (4.159): "
                "lower word2vec.lr, or bring more text"]),
    ],
)  # fmt: skip
def test_vectors_that_have_learned_nothing_are_told_of(loss: float, said: list[str]) -> None:
    """Four thousand words, two passes: 4.158 against 4.159, and no word about it."""
    summary = {"heldout_loss": loss, "untrained_heldout_loss": 4.1588830833596715}
    assert list(hints.after(summary, [])) == said


def test_init_makes_more_passes_over_little_text_and_it_learns(lexfed: Lexfed) -> None:
    texts = [
        text.replace('"', "") for text, _ in zip(load("rotten_tomatoes"), range(200), strict=False)
    ]
    lines = [f'"{text}",s{i % 3}' for i, text in enumerate(texts)]
    Path("a.csv").write_text("text,source\n" + "\n".join(lines))
    assert lexfed("init", "agreed", "--data", "a.csv").returncode == 0
    run = lexfed("run", "agreed.toml", "--out", "a")
    assert run.returncode == 0, run.stderr
    assert "untrained" not in run.stdout
