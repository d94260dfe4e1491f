"""Tables of figures, made from committed result files: for docs/papers/*.md, docs/defences.md and
RESULTS.md (tools/results_page.py).

    python -m tools.paper_tables           write them into the pages, between their markers
    python -m tools.paper_tables --check   say whether the pages hold them

A page says `<!-- table: NAME -->`, and the table stands below it, up to `<!-- end of table -->`.
What the papers report stands in the catalogue, experiments/papers/*.toml.
"""

import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from experiments import table as _table
from experiments.papers import catalogue as _catalogue
from experiments.papers.catalogue import HERE, Catalogue, Entry, Runs
from tools.audit_tables import defences
from tools.result_files import ROOT, markdown, results

PAGES = (*sorted((ROOT / "docs" / "papers").glob("*.md")), ROOT / "docs" / "defences.md")
MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->)", re.S)
SENT, ALL_SENT = "bytes_up_per_client_round", "bytes_up"
LOST = "–"  # older runs did not record who made them


# --- an entry of the catalogue --------------------------------------------------------------------


def found(catalogue: Catalogue, entry: Entry) -> list[tuple[Runs, str, list[dict[str, Any]]]]:
    """The rows that were run, with their runs, in the entry's order."""
    rows = []
    for name in entry.runs:
        known = catalogue.runs[name].found()
        wanted = entry.rows or tuple(known)
        rows += [(catalogue.runs[name], row, known[row]) for row in wanted if known.get(row)]
    return rows


def asked(catalogue: Catalogue, entry: Entry) -> list[tuple[str, str, int]]:
    """Which runs stand for it at machine scale: their name, the row, the seed."""
    wanted = []
    for name in entry.runs:
        runs = catalogue.runs[name]
        rows = runs.rows("machine") if runs.config and "machine" in runs.scales else {}
        wanted += [
            (name, row, seed)
            for row in rows
            if not entry.rows or row in entry.rows
            for seed in runs.scales["machine"].seeds_of(row)
        ]
    return wanted


def entry_table(catalogue: Catalogue, name: str, made: bool = True) -> str:
    """Ours beside the paper's, one row for each of the runs' rows; and who made it."""
    entry = catalogue.entries[name]
    several = len(entry.runs) > 1
    reported = [key for key in entry.figures if any(key in row for row in entry.reported.values())]
    made = made and any(maker(ran) != LOST for _, _, ran in found(catalogue, entry))
    heads = ["data"] * several + ["row", "seeds", *(head(key) for key in entry.figures)]
    heads += [f"paper: {head(key)}" for key in reported] + ["run"] * made
    lines = []
    for runs, row, ran in found(catalogue, entry):
        paper = entry.reported.get(f"{runs.name}: {row}" if several else row, {})
        with_gain = [{**run, "gain": share_of_gain(runs, run)} for run in ran]
        cells = [runs.called or runs.name] * several + [row, str(len(ran))]
        cells += [figure(with_gain, key, runs) for key in entry.figures]
        cells += [str(paper.get(key, "–")) for key in reported]
        lines.append(cells + [maker(ran)] * made)
    return markdown(heads, lines)


def head(key: str) -> str:
    if key == SENT:
        return "up per client and round"
    if key == ALL_SENT:
        return "up, of all"
    if key.startswith("against "):
        return f"{key} (paired over users, by seed)"
    name = _table.COLUMNS.get(key, key.replace("_", " "))
    return name if key not in _table.PERCENT or name.endswith("%") else f"{name}, %"


def figure(runs: Sequence[dict[str, Any]], key: str, of: Runs | None = None) -> str:
    if key == SENT:
        return f"{statistics.mean(run[key] for run in runs) / 1e6:.2f} MB"
    if key == ALL_SENT:
        return f"{statistics.mean(run[key] for run in runs) / 1e6:,.0f} MB"
    if key.startswith("against ") and of is not None:
        return against(runs, of.found().get(key.removeprefix("against "), []))
    values = [run[key] for run in map(_table.derived, runs) if run.get(key) is not None]
    return str(_table.cell(key, values))


def against(runs: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> str:
    """Ratio of perplexities of the same test users, and its standard error."""
    other = {run["seed"]: run for run in others if run.get("users")}
    said = []
    for run in runs:
        if run["seed"] in other and run is not other[run["seed"]] and run.get("users"):
            difference, error = _table.of_users(run, other[run["seed"]]) or (0.0, 0.0)
            if difference:
                said.append(f"{100 * (math.exp(difference) - 1):+.1f} ± {100 * error:.1f} %")
    return "; ".join(said) or "–"


def share_of_gain(runs: Runs, run: Mapping[str, Any]) -> float | None:
    """Word vectors: all text in one place was trained once for each seed and word list, with the
    first row.
    """
    if run.get("heldout_loss") is None:
        return None
    first = {one["seed"]: one for one in next(iter(runs.found().values()))}
    base = first.get(run["seed"], {})
    if base.get("vocabulary_size") != run["vocabulary_size"]:
        base = run  # other words: another loss
    central, untrained = base.get("centralised_heldout_loss"), run["untrained_heldout_loss"]
    return None if central is None else (untrained - run["heldout_loss"]) / (untrained - central)


def maker(runs: Sequence[Mapping[str, Any]]) -> str:
    """The first seed's configuration and the commit of the code that ran it."""
    made = runs[0].get("made", {})
    if not made.get("commit"):
        return LOST
    dirty = "" if made.get("clean", True) else ", changed"
    gone = "*" * any(run.get("made", {}).get("commit") in left_behind() for run in runs)
    return f"`{made['fingerprint'][:7]}` at `{made['commit'][:7]}`{gone}{dirty}"


@cache
def left_behind() -> Mapping[str, str]:
    """Commits that ran results and are in no history: their branch was lost before it was merged.
    With each, the commit that their code came in with.
    """
    found: dict[str, str] = json.loads((HERE / "left_behind.json").read_text())
    return found


def repeated() -> str:
    """How runs of such commits compare with the same ones, done again since."""
    runs = [run for one in CATALOGUE.runs.values() if not one.command
            for several in one.found().values() for run in several]  # fmt: skip
    made = [run.get("made", {}) for run in runs]
    again = [one["before"]["now"] for one in made
             if one.get("before", {}).get("commit") in left_behind()]  # fmt: skip
    still = sum(one.get("commit") in left_behind() for one in made)
    same = sum(now == "bit for bit" for now in again)
    return f"{still} are left; of {len(again)} that were run again {same} gave the same bits"


# --- FedeVocab ------------------------------------------------------------------------------------


def data_sizes() -> str:
    entry = CATALOGUE.entries["fedevocab-table1"]
    ours = results("papers/data_sizes.results")
    keys = ("train", "test", "labels")
    heads = ("data", *(f"{key}, ours" for key in keys), *(f"{key}, the paper" for key in keys))
    rows = [[name, *(f"{ours[name][key]:,}" for key in keys), *(paper[key] for key in keys)]
            for name, paper in entry.reported.items()]  # fmt: skip
    return markdown(heads, rows)


def leaked() -> str:
    """Words with a digit that are read from one text, in percent."""
    cells = [row for row in results("audit/inversion.results")
             if (row["model"], row["batch"]) == ("bilstm", 1)]  # fmt: skip

    def share(method: str, attack: str, decoding: str) -> str:
        wanted = (method, attack, decoding)
        values = [row["ptlr"] for row in cells
                  if (row["method"], row["attack"], row["decoding"]) == wanted]  # fmt: skip
        if not values:
            return "nothing travels" if attack == "rows" else "–"
        return f"{100 * values[0]:.0f}"

    attacks = (("rows", "-"), ("dlg", "wrong"), ("dlg", "right"), ("span", "right"))
    heads = ("method", "the paper", "rows that moved", "DLG, another model's table",
             "DLG, the public table", "span, the public table")  # fmt: skip
    paper = CATALOGUE.entries["fedevocab-table2"].reported
    rows = [[name, paper[name]["ptlr"], *(share(name, *attack) for attack in attacks)]
            for name in paper]  # fmt: skip
    return markdown(heads, rows)


IN_TABLE_4 = {  # the paper's methods in its order, and what stands beside them here
    "local training": "local_only",
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "LG-FedAvg": "lg_fedavg",
    "FedRecon": "fedrecon",
    "FedeVocab": "fedevocab",
    "FedAvg, logit adjustment": "fedavg, logit adjustment",
    "FedAvg, logit adjustment, our server": "fedavg, logit adjustment, our server",
    "private tables, *ours*": "fedevocab, ours",
}
BY_MAX = ("fedavg, logit adjustment, our server", "fedevocab, ours")  # on 20 Newsgroups


def table_4() -> str:
    """Global and local accuracy on the three data sets, the paper's numbers in brackets."""
    entries = [
        CATALOGUE.entries[f"fedevocab-table4-{data}"] for data in ("20news", "agnews", "sst2")
    ]
    files = [CATALOGUE.runs[entry.runs[0]].found() for entry in entries]
    keys = ("global_accuracy", "local_accuracy")

    def cell(entry: Entry, runs: _table.Results, row: str, key: str) -> str:
        row += ", max" * (entry.id.endswith("20news") and row in BY_MAX)
        mean = f"{100 * statistics.mean(run[key] for run in runs[row]):.1f}"
        paper = entry.reported.get(row, {}).get(key)
        return mean if paper is None else f"{mean} ({paper})"

    pairs = list(zip(entries, files, strict=True))
    lines = [[shown, *(cell(entry, runs, row, key) for entry, runs in pairs for key in keys)]
             for shown, row in IN_TABLE_4.items()]  # fmt: skip
    most = [f"{100 * statistics.mean(run['local_majority_accuracy'] for run in runs['fedavg']):.1f}"
            for runs in files]  # fmt: skip
    lines.insert(0, ["a constant guess", *(one for value in most for one in ("", value))])
    names = ("20 Newsgroups", "AG News", "SST-2")
    heads = ("", *(f"{name}, {one}" for name in names for one in ("global", "local")))
    return markdown(heads, lines)


BATCHES = (1, 2, 4, 8, 16, 32, 64)
ATTACKS = {  # what Figure 3 and Table 7 show, and what stands beside it here
    "the most frequent words, no upload": ("prior", "-", "-"),
    "rows that moved, FedAvg": ("rows", "fedavg", "-"),
    "DLG, FedAvg, public table": ("dlg", "fedavg", "right"),
    "DLG, FedRecon, wrong table": ("dlg", "fedrecon", "wrong"),
    "DLG, FedeVocab, wrong table (the paper's attack)": ("dlg", "fedevocab", "wrong"),
    "DLG, FedeVocab, public table": ("dlg", "fedevocab", "right"),
    "span, FedeVocab, public table": ("span", "fedevocab", "right"),
}


def by_batch(model: str) -> str:
    """F1 of a text's distinct words."""
    cells = {
        (row["attack"], row["method"], row["decoding"], row["batch"]): row["f1"]
        for row in results("audit/inversion.results")
        if row["model"] == model
    }
    rows = [
        [name, *(f"{cells[(*key, n)]:.2f}" if (*key, n) in cells else "–" for n in BATCHES)]
        for name, key in ATTACKS.items()
    ]
    return markdown(("texts in a batch", *map(str, BATCHES)), rows)


def to_reach() -> str:
    """What a client sends in a round, and what all had sent when a score was first met that FedAvg
    has at the end of its curve: of the same few clients, in the same seed.
    """
    lines = []
    for runs, row, ran in found(CATALOGUE, CATALOGUE.entries["fedevocab-figure4"]):
        first = min(ran, key=lambda run: int(run["seed"]))
        travels = f"{first['parameters_shared']:,}"
        told = reached(first, runs.found().get("fedavg", []))
        lines.append([runs.called, row, travels, figure([first], SENT), *told])
    return markdown(("data", "row", "parameters that travel", "up per client and round",
                     "global, % (FedAvg's last)", "sent until then, by all"), lines)  # fmt: skip


def reached(run: Mapping[str, Any], fedavg: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The score to reach, and what was sent until then. Clients of another seed, and of another
    number, are other clients.
    """
    curve = run.get("curve", {})
    base = next((one.get("curve", {}) for one in fedavg if one["seed"] == run["seed"]), {})
    goals, scores = _of_the_few(base), _of_the_few(curve)
    same = bool(goals) and (not curve or _few(base) == _few(curve))
    aim = f"{100 * goals[-1][1]:.1f}" if same else "–"
    if not curve:
        return aim, "no curve kept"
    if not same:
        return aim, "no curve of the same clients"
    met = [n for n, score in scores if score >= goals[-1][1]]
    if not met:
        return aim, "not reached"
    return aim, f"{dict(curve['bytes_up'])[met[0]] / 1e6:,.0f} MB, round {met[0]:.0f}"


def best_round() -> str:
    """What a choice of the round on test data is worth, where a run of Table 4 kept its curve."""
    lines = []
    for runs, row, ran in found(CATALOGUE, CATALOGUE.entries["fedevocab-figure4"]):
        curves = [few for run in ran if (few := _of_the_few(run.get("curve", {})))]
        scores = [[score for _, score in few] for few in curves]
        if scores:
            last, best = ([f(of) for of in scores] for f in (lambda of: of[-1], max))
            gains = [100 * (b - a) for a, b in zip(last, best, strict=True)]
            means = [f"{100 * statistics.mean(values):.1f}" for values in (last, best)]
            gain = f"{statistics.mean(gains):+.1f}"
            lines.append([runs.called, row, str(len(scores)), *means, gain])
    if not lines:
        return "*Not run yet*: no run of Table 4 has kept its curve.\n"
    return markdown(("data", "row", "seeds", "last scored round, %", "best, %", "points"), lines)


def learned_on_the_way(name: str, key: str, without: Sequence[int] = ()) -> str:
    """A curve as a table: the first seed of each row, at about eight of its rounds. Rounds in which
    everybody was scored are left out: beside the few of the others they would mean nothing.
    """
    rows = []
    for _, row, ran in found(CATALOGUE, CATALOGUE.entries[name]):
        rows.append((row, dict(_of_the_few(ran[0].get("curve", {}), key))))
    rounds = sorted({n for _, points in rows for n in points} - set(without))
    if not rounds:
        return ""
    kept = rounds[:: max(1, len(rounds) // 8)]
    kept = kept if rounds[-1] in kept else [*kept, rounds[-1]]
    return markdown(
        ("round", *(f"{n:.0f}" for n in kept)),
        [[row, *(_point(p[n]) if n in p else "–" for n in kept)] for row, p in rows if p],
    )


def _of_the_few(
    curve: Mapping[str, Any], key: str = "global_accuracy"
) -> list[tuple[float, float]]:
    """Rounds and scores of the same few clients, round after round: the last round is scored on all
    of them, and would not compare.
    """
    clients = dict(curve.get("scored_clients", []))
    return [(n, s) for n, s in curve.get(key, []) if clients.get(n) == _few(curve)]


def _few(curve: Mapping[str, Any]) -> float | None:
    """How many clients are scored on the way; None: the run did not say."""
    scored = curve.get("scored_clients", [])
    return scored[0][1] if scored else None


def _point(value: float) -> str:
    return f"{value:,.0f}" if value > 100 else f"{value:.3f}"


# --- Federated Word2Vec ---------------------------------------------------------------------------


def neighbours() -> str:
    """Nearest words: one organisation of finance alone, all together, all text in one place."""
    entry = CATALOGUE.entries["word2vec-table1"]
    paper = entry.reported
    ran = {row: runs[0] for _, row, runs in found(CATALOGUE, entry)}
    own, joined = (ran[row]["neighbours"] for row in ("finance alone", "together"))
    near = {word: (own[word]["federated"] if word in own else ["(not among its words)"],
                   joined[word]["federated"], joined[word]["centralised"])
            for word in paper["together"]}  # fmt: skip
    heads = ("word", "ours, finance alone", "together", "in one place", "paper: finance alone",
             "paper: together")  # fmt: skip
    rows = [
        [word, *(", ".join(said[:5]) for said in three),
         str(paper["finance alone"][word]), str(paper["together"][word])]
        for word, three in near.items()
    ]  # fmt: skip
    return markdown(heads, rows)


def gensim() -> str:
    """Medians of three repeats; text once: the time to equally good vectors."""
    runs: dict[str, list[dict[str, float]]] = {}
    for run in results("benchmarks/word2vec")["speed"]:
        runs.setdefault(run["trainer"], []).append(run)

    def median(ran: list[dict[str, float]], of: str, per: str) -> str:
        return f"{statistics.median(run[of] / run[per] for run in ran):,.0f}"

    scores = ("heldout_loss", "wordsim353")
    rows = [
        [name, median(ran, "words", "cpu"), median(ran, "words", "wall"),
         *(f"{statistics.median(run[key] for run in ran):.3f}" for key in scores),
         median(ran, "text_words", "cpu"), median(ran, "text_words", "wall")]
        for name, ran in runs.items()
    ]  # fmt: skip
    return markdown(("", "words/s, CPU", "words/s, wall", "held-out loss", "WordSim353",
                     "text once: words/s, CPU", "wall"), rows)  # fmt: skip


def iterations() -> str:
    """A FedSGD iteration as in the paper: medians over repeats."""
    runs: dict[tuple[int, str], list[dict[str, float]]] = {}
    for run in results("benchmarks/word2vec")["steps"]:
        runs.setdefault((run["words"], run["upload"]), []).append(run)
    rows = []
    for (words, upload), ran in sorted(runs.items(), key=lambda one: (one[0][1], one[0][0])):
        cpu, up, down = (statistics.median(run[k] for run in ran) for k in ("cpu_ms", "up", "down"))
        dense = ran[0]["dense"]
        sent = [f"{up / 1e3:,.0f} kB", f"{dense / up:,.0f}"]
        got = [f"{down / 1e6:.2f} MB", f"{dense / down:,.0f}"]
        rows.append([f"{words:,}", upload, f"{cpu:.1f}", *sent, *got])
    return markdown(("words", "upload", "iteration, CPU ms", "up per node", "times below dense",
                     "down per node", "times below dense"), rows)  # fmt: skip


# --- Tokenizer for free ---------------------------------------------------------------------------


def written() -> str:
    """What the model of Figure 3 wrote at the end: its users are public text."""
    ran = found(CATALOGUE, CATALOGUE.entries["tokenizer-figure3"])
    texts = ran[0][2][0].get("samples", {}).get("at the end", []) if ran else []
    shown = ["".join(c for c in text if c.isprintable()).replace("`", "'") for text in texts]
    return "```text\n" + "\n\n".join(" ".join(text.split()[:60]) for text in shown) + "\n```\n"


CATALOGUE = _catalogue.load()


def _of(name: str) -> Callable[[], str]:
    return lambda: entry_table(CATALOGUE, name, made=False)


# on the pages of docs/
TABLES: dict[str, Callable[[], str]] = {
    "bilstm": _of("fedevocab-table4-sst2"),
    "encoder": _of("fedevocab-table3-sst2"),
    "leaked": leaked,
    "topics": _of("word2vec-topics"),
    "all text": _of("word2vec-all"),
    "neighbours": neighbours,
    "tokenizers": _of("tokenizer-table2"),
    "switches": _of("tokenizer-figure4"),
    "defences": defences,
}

# on RESULTS.md alone; those of audits are in audit_tables.py
MORE: dict[str, Callable[[], str]] = {
    "fedevocab-table1": data_sizes,
    "fedevocab-table2": leaked,
    "table 4": table_4,
    "fedevocab-figure3": lambda: by_batch("bilstm"),
    "fedevocab-table7": lambda: by_batch("transformer"),
    "fedevocab-figure4": to_reach,
    "word2vec-table1": neighbours,
    "curve word2vec-figures1-2": lambda: learned_on_the_way("word2vec-figures1-2", "heldout_loss"),
    "curve word2vec-figures3-4": lambda: learned_on_the_way("word2vec-figures3-4", "heldout_loss"),
    "curve tokenizer-figure4": lambda: learned_on_the_way(
        "tokenizer-figure4", "word_perplexity", without=(80, 160, 240)
    ),
    "tokenizer-figure3": written,
    "gensim": gensim,
    "iterations": iterations,
    "best round": best_round,
}


def filled(text: str) -> str:
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> None:
    stale = [page for page in PAGES if filled(page.read_text()) != page.read_text()]
    if "--check" in sys.argv:
        names = [str(page) for page in stale]
        raise SystemExit(f"not current, run make docs: {names}" if stale else 0)
    for page in stale:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
