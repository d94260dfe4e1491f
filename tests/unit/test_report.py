"""Pages for people: one file, drawn from what a run left; text from users stays text."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexfed.audits import score
from lexfed.audits.cells import about
from lexfed.experiment.config import load
from lexfed.records.rundir import RunDir
from lexfed.report import audit_page, charts, frame, page, run_charts
from lexfed.report.used import used
from tests.conftest import ROOT, Lexfed

SCRIPT = "<script>alert(1)</script>"
NOISE = ("privacy.placement=central", "privacy.noise=1.0", "privacy.clip=1.0",
         "cohort.sampling=poisson", "data.classes=2",
         "privacy.accountant=rdp", "vocabulary.corpus=rotten_tomatoes")  # fmt: skip


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def specs(text: str) -> list[dict[str, Any]]:
    """The charts of a page."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)
    return [json.loads(one) for one in found]


def titles(text: str) -> list[str]:
    return re.findall(r"<figure data-chart[^>]*><h3>(.*?)</h3>", text)


def summary_of(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(run, "summary.json").read_text())
    return found


def test_a_run_imports_no_library_of_pictures(tiny: Path) -> None:
    """Half of the time of a small run went into importing matplotlib. (numba, which
    compiles the loops of a model, loads scipy.linalg.)
    """
    script = tiny.parent / "run.py"
    script.write_text(
        "import sys\nfrom lexfed import cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print([n for n in ('matplotlib', 'scipy.stats') if n in sys.modules])\n"
    )
    command = [sys.executable, str(script), "run", str(tiny), "--out", "a"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tiny.parent, capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert (tiny.parent / "a/report.html").is_file()


def test_the_page_is_one_file_with_its_charts_in_it(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    text = Path("a/report.html").read_text()
    assert len(text.encode()) < 1_500_000
    assert titles(text) == [
        "Accuracy by round", "Training loss by round", "Sent so far",
        "Spread over clients at the end", "Labels of each client&#x27;s texts",
    ]  # fmt: skip
    assert len(specs(text)) == 5
    assert len(re.findall(r'<p class="reads">[^<]+[.]</p>', text)) == 5, "how to read each"
    assert text.count("<details><summary>The numbers") == 5
    outside = text.replace(frame._asset("vega.js"), "")
    assert not re.search(r"(src|href|url)\s*[=(:]\s*.?(http|//)", outside)


def test_a_page_runs_no_script_but_its_own(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    text = Path("a/report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe-eval" not in policy[1]
    bodies = re.findall(r"<script>(.*?)</script>", text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in bodies]
    assert re.findall(r"'sha256-([^']+)'", policy[1]) == hashes
    assert len(bodies) == 2


def test_the_curves_are_those_of_the_records(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    records = RunDir(Path("a")).records()
    loss = specs(Path("a/report.html").read_text())[1]["data"]["values"]
    assert [(one["x"], one["y"]) for one in loss] == [(r["round"], r["loss"]) for r in records]
    sent = specs(Path("a/report.html").read_text())[2]["data"]["values"]
    assert max(one["y"] for one in sent) == pytest.approx(
        max(sum(r[key] for r in records) for key in ("bytes_up", "bytes_down")) / 1e6
    )


def test_text_of_users_is_text(tmp_path: Path, tiny: Path, lexfed: Lexfed) -> None:
    rows = [
        {"text": f"fine {SCRIPT} film {i}", "label": (SCRIPT, "</title><b>")[i % 2],
         "source": f"{SCRIPT}{i % 3}"}
        for i in range(90)
    ]  # fmt: skip
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = ("data.partition=source", "data.clients=3", "rounds=1",
                "defences.minimum_words=100000")  # fmt: skip
    done = lexfed("run", tiny, "--out", "a", *sets(*settings))
    assert done.returncode == 0, done.stderr
    text = Path("a/report.html").read_text()
    assert "<script>alert" not in text
    assert "</title><b>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;0" in text, "but it is there"
    labels = specs(text)[-1]["data"]["values"]
    assert {one["part"] for one in labels} == {SCRIPT, "</title><b>"}
    compared = lexfed("compare", "a", "--out", "c.html")
    assert compared.returncode == 0, compared.stderr
    assert "<script>alert" not in Path("c.html").read_text()


# --- only what was used --------------------------------------------------------------------------


def test_the_page_shows_the_keys_that_were_read(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a", *sets("method=fedprox", "rounds=1")).returncode == 0
    told = tomllib.loads(used(RunDir(Path("a"))))
    assert {"data", "model", "train", "fedprox", "rounds", "seed"} <= set(told)
    assert not {"word2vec", "agreement", "lg_fedavg", "language_model", "audit"} & set(told)
    assert "samples" not in told["evaluation"]
    text = Path("a/report.html").read_text()
    assert "[word2vec]" not in text
    assert "lexfed run config.toml --out again" in text
    whole = tomllib.loads(Path("a/config.toml").read_text())
    assert all(told[key][name] == value for key in ("train", "data")
               for name, value in whole[key].items() if name in told[key])  # fmt: skip


# --- what a summary tells for it -----------------------------------------------------------------


def test_labels_by_client_are_the_partitions(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a", *sets("rounds=1")).returncode == 0
    from lexfed.experiment.assembly import assemble

    people = assemble(load(Path("a/config.toml"))).population
    told = summary_of("a")["label_counts"]
    assert told["labels"] == [0, 1]
    for client, counts in enumerate(told["clients"]):
        assert counts == np.bincount(people.client(client).train.labels, minlength=2).tolist()


@pytest.mark.parametrize(
    "settings", [NOISE, ("secure.sums=true", "evaluation.clients=3"), ("secrets=system",)]
)
def test_labels_are_not_told_where_clients_are_promised_something(
    settings: tuple[str, ...], tiny: Path, lexfed: Lexfed
) -> None:
    """The page before this one did not tell them either."""
    done = lexfed("run", tiny, "--out", "a", *sets("rounds=1", *settings))
    assert done.returncode == 0, done.stderr
    assert summary_of("a")["label_counts"] is None
    assert "Labels of each client" not in Path("a/report.html").read_text()


def test_the_account_by_round_ends_at_what_is_printed(tiny: Path, lexfed: Lexfed) -> None:
    done = lexfed("run", tiny, "--out", "a", *sets("rounds=12", *NOISE))
    assert done.returncode == 0, done.stderr
    summary = summary_of("a")
    told = summary["epsilon_by_round"]
    assert 2 < len(told) <= 10
    assert told[-1][0] == 12
    assert told[-1][1] == pytest.approx(summary["epsilon_this_run"])
    assert [one[1] for one in told] == sorted(one[1] for one in told)
    assert "The privacy account by round" in titles(Path("a/report.html").read_text())


def test_no_account_is_drawn_of_a_promise_that_does_not_hold(tiny: Path, lexfed: Lexfed) -> None:
    leaky = [*NOISE[:-1], "vocabulary.corpus=clients", "rounds=2"]
    assert lexfed("run", tiny, "--out", "a", *sets(*leaky)).returncode == 0
    assert summary_of("a")["epsilon_by_round"] == []
    assert "The privacy account" not in Path("a/report.html").read_text()


# --- language models -----------------------------------------------------------------------------


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    path = tmp_path / "writer.toml"
    path.write_text(
        """
name = "writer"
rounds = 2
method = "tokenizer_for_free"
[data]
name = "rotten_tomatoes"
partition = "iid"
clients = 12
unseen = 4
test = 0.0
validation = 0.0
limit = 200
[tokenizer]
size = 300
public = "rotten_tomatoes"
words_per_user = 40
[language_model]
layers = 1
width = 8
context = 8
[tokenizer_for_free]
switch = [1]
sample_words = 400
[cohort]
size = 3
[train]
optimizer = "sgd"
lr = 0.1
"""
    )
    return path


def test_texts_are_written_if_they_are_asked_for(writer: Path, lexfed: Lexfed) -> None:
    """They may quote users: nobody's page holds some without having asked."""
    done = lexfed("run", writer, "--out", "none")
    assert done.returncode == 0, done.stderr
    assert summary_of("none")["samples"] is None
    assert "Texts it writes" not in Path("none/report.html").read_text()
    done = lexfed("run", writer, "--out", "two", *sets("evaluation.samples=2"))
    assert done.returncode == 0, done.stderr
    samples = summary_of("two")["samples"]
    assert list(samples) == ["before the switch of the tokenizer", "at the end"]
    assert [len(texts) for texts in samples.values()] == [2, 2]
    assert "Texts it writes" in Path("two/report.html").read_text()
    again = lexfed("generate", "two", "--words", 30, "--texts", 2)
    assert samples["at the end"][0] in again.stdout, "the very ones that `generate` writes"


def test_a_classifier_writes_no_texts(tiny: Path, lexfed: Lexfed) -> None:
    done = lexfed("run", tiny, "--out", "a", *sets("evaluation.samples=2"))
    assert done.returncode == 2
    assert "a classifier writes no texts" in done.stderr


# --- audits --------------------------------------------------------------------------------------

AUDIT = ROOT / "experiments/quick/audit.toml"
SMALL = ("audit.sentences=[2]", "audit.clients=2", "audit.others=1000", "data.clients=6",
         "data.limit=1600", 'audit.attacks=["rows","span","sentences"]')  # fmt: skip


def test_an_audit_shows_texts_only_if_it_is_asked_to(lexfed: Lexfed) -> None:
    plain = ('audit.methods=["fedavg"]', 'audit.defences=["none"]', "audit.examples=0")
    done = lexfed("audit", AUDIT, "--out", "a", *sets(*SMALL, *plain))
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path("a/audit.json").read_text())
    assert all(row["examples"] is None for row in rows)
    assert "What the client wrote" not in Path("a/audit.html").read_text()


def test_an_audit_marks_the_words_that_were_read(lexfed: Lexfed) -> None:
    done = lexfed("audit", AUDIT, "--out", "a", *sets(*SMALL, "audit.examples=1"))
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path("a/audit.json").read_text())
    (leaky,) = [r for r in rows if (r["method"], r["attack"]) == ("fedavg", "rows")]
    (example,) = leaky["examples"]
    known = {w for text in example["texts"] for w in text.split()} & set(example["read"])
    assert len(known) > 10
    assert leaky["recall_at_n"] == 1.0
    text = Path("a/audit.html").read_text()
    assert text.count("<mark>") > 40
    assert all(f"<mark>{frame.escape(word)}</mark>" in text for word in known)
    turned = [r for r in rows if "rotation" in str(r["defence"]) and r["attack"] == "span"]
    (blind,) = [r["examples"][0] for r in turned if r["attacker"] == "public files"]
    written = {w for t in blind["texts"] for w in t.split()}
    assert len(written & set(blind["read"])) < len(known) / 4, "the pair: a rotation hides them"
    assert '<table class="matrix">' in text
    assert "1.00</td>" in text
    curves = [row["roc"] for row in rows if row["roc"]]
    assert curves
    assert all([share for _, share in one] == sorted(share for _, share in one) for one in curves)
    assert "Who was there? (ROC, both axes logarithmic)" in titles(text)


def test_a_curve_passes_through_the_rates_of_its_row() -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    members = torch.randn(500, generator=generator) + 1
    others = torch.randn(10_000, generator=generator)
    cell = score.Cell({"attack": "sentences"}, [score.membership(members, others)])
    row = cell.row()
    curve = dict(row["roc"])
    assert curve[0.01] == row["tpr_at_1pct_fpr"]
    assert curve[0.001] == row["tpr_at_01pct_fpr"]
    assert list(curve) == list(score.CURVE)


def test_texts_in_an_audit_are_escaped() -> None:
    row = dict.fromkeys(score.KEYS) | {
        "attack": SCRIPT, "attacker": SCRIPT, "method": SCRIPT, "defence": SCRIPT,
        "recall_at_n": 0.5, "auc": 0.5, "nothing_to_read": 0,
        "examples": [{"texts": [f"a {SCRIPT}"], "read": [SCRIPT]}],
    }  # fmt: skip
    text = audit_page.page([row], {"audited": SCRIPT})
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert") > 5


# --- pictures ------------------------------------------------------------------------------------


def test_many_points_are_thinned_and_the_last_one_stays() -> None:
    points = [(float(n), float(n)) for n in range(5000)]
    thin = charts.thinned(points)
    assert len(thin) <= charts.MOST + 1
    assert thin[0] == points[0]
    assert thin[-1] == points[-1]
    assert charts.thinned(points[:30]) == points[:30]


def test_a_histogram_counts_all() -> None:
    values = [1.0, 1.0, 2.0, 50.0]
    chart = charts.histogram("t", "r.", values, "x")
    assert sum(bar["n"] for bar in chart.spec["data"]["values"]) == 4
    assert chart.spec["data"]["values"][0]["n"] == 3
    same = charts.histogram("t", "r.", [2.0] * 5, "x")
    assert same.spec["data"]["values"][0]["n"] == 5, "also of one size"


def test_the_map_keeps_who_is_near_whom() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(3)[[0] * 5 + [1] * 5 + [2] * 5]
    plane = run_charts._plane(centres * 10 + rng.normal(0, 0.3, (15, 3)))
    assert plane.shape == (15, 2)
    gaps = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    own = np.kron(np.eye(3), np.ones((5, 5))).astype(bool)
    assert gaps[own].max() < gaps[~own].min() * 1.5
    assert len({tuple(row) for row in plane.round(6)}) == 15, "no two lie on each other"


def test_words_of_the_map_are_those_whose_neighbours_are_told(
    tmp_path: Path, lexfed: Lexfed
) -> None:
    """A report names no other words of a list."""
    from lexfed.report.run_charts import words

    setting = ("data.limit=400", "data.clients=3", "rounds=2", "word2vec.dimension=8",
               'word2vec.queries=["funny","film"]', "agreement.minimum=3")  # fmt: skip
    done = lexfed("run", ROOT / "experiments/quick/agreed.toml", "--out", "a", *sets(*setting))
    assert done.returncode == 0, done.stderr
    summary = summary_of("a")
    (chart,) = words(summary, Path("a/artifacts"))
    told = {w for near in summary["neighbours"].values() for w in near["federated"]}
    shown = {one["word"] for one in chart.spec["data"]["values"]}
    assert shown == told | set(summary["neighbours"])


def test_the_embedded_script_has_its_notice() -> None:
    notice = (frame.ASSETS / "NOTICE.txt").read_text()
    for name in ("vega 6.2.0", "vega-lite 6.4.1", "BSD-3-Clause", "ISC", "MIT"):
        assert name in notice
    script = frame._asset("vega.js")
    assert '"6.2.0"' in script
    assert '"6.4.1"' in script
    assert "</script" not in script.lower()


def test_an_audit_page_of_nothing_has_no_empty_tab(tiny: Path) -> None:
    row = dict.fromkeys(score.KEYS) | {"attack": "labels", "not_run": "no upload"}
    text = audit_page.page([row], about(tiny, load(tiny)))
    assert re.findall(r'class="tab" id="tab-\d"><h2>([^<]+)', text) == [
        "Every attack",
        "Threat model",
    ]


def test_a_page_can_be_written_again_elsewhere(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a", *sets("rounds=1")).returncode == 0
    before = Path("a/report.html").read_text()
    assert page.write(RunDir(Path("a")), Path("b.html")).read_text() == before


def test_a_curve_of_some_clients_says_so(tiny: Path, lexfed: Lexfed) -> None:
    """It stands beside figures of all of them."""
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    page = Path("a/report.html").read_text()
    said = "of 2 clients (evaluation.clients), the same throughout; the figures above are of 6"
    assert said in page
    assert lexfed("run", tiny, "--out", "b", "--set", "evaluation.clients=6").returncode == 0
    assert "evaluation.clients)" not in Path("b/report.html").read_text(), "all of them"


def test_a_report_without_a_promise_says_so_once(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a", "--set", "rounds=1").returncode == 0
    page = Path("a/report.html").read_text()
    assert page.count("Nothing is promised to those whose texts the model is trained on") == 1
    words = [word for setting in NOISE for word in ("--set", setting)]
    assert lexfed("run", tiny, "--out", "b", *words, "--set", "rounds=1").returncode == 0
    assert "Nothing is promised to those" not in Path("b/report.html").read_text()
