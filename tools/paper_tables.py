"""The tables of figures on docs/papers/*.md and docs/defences.md, made from committed result files.

    python tools/paper_tables.py            write them into the pages, between their markers
    python tools/paper_tables.py --check    say whether the pages hold them

A page says `<!-- table: NAME -->`, and the table stands below it, up to `<!-- end of table -->`.
What the papers report was read in the papers, and stands here with the number of its table.
"""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"
PAGES = (*sorted((ROOT / "docs" / "papers").glob("*.md")), ROOT / "docs" / "defences.md")
MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->)", re.S)
Results = dict[str, list[dict[str, Any]]]


def _module(path: str) -> ModuleType:
    """What the experiments make tables with."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXPERIMENTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_table, _defences = _module("table.py"), _module("audit/defences_table.py")


def results(name: str) -> Any:
    return json.loads((EXPERIMENTS / f"{name}.json").read_text())


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def figure(runs: Sequence[dict[str, Any]], key: str) -> str:
    values = [run[key] for run in map(_table.derived, runs) if run.get(key) is not None]
    return str(_table.cell(key, values))


def sent(runs: Sequence[dict[str, Any]]) -> str:
    return f"{sum(run['bytes_up_per_client_round'] for run in runs) / len(runs) / 1e6:.2f} MB"


# --- FedeVocab ------------------------------------------------------------------------------------

ACCURACIES = ("global_accuracy", "local_accuracy", "local_majority_accuracy")
CLASSIFIERS = ("row", "seeds", "global", "local", "majority class alone", "up per client and round",
               "paper: global", "paper: local")  # fmt: skip
TABLE_4 = {  # SST-2, BiLSTM
    "local_only": ("54.7", "83.7"), "fedavg": ("83.0", "89.6"), "fedprox": ("82.8", "89.2"),
    "lg_fedavg": ("59.1", "85.6"), "fedrecon": ("85.4", "90.2"), "fedevocab": ("87.8", "92.1"),
}  # fmt: skip
TABLE_3 = {"fedavg": ("92.3", "95.0"), "fedevocab": ("92.5", "95.6")}  # SST-2, DistilBERT
TABLE_2 = {"fedavg": "87.6", "fedrecon": "2.1", "fedevocab": "1.2"}  # PTLR, BiLSTM


def classifiers(name: str, paper: dict[str, tuple[str, str]]) -> str:
    found: Results = results(f"fedevocab/{name}.results")
    rows = [
        [row, str(len(runs)), *(figure(runs, key) for key in ACCURACIES), sent(runs),
         *paper.get(row, ("–", "–"))]
        for row, runs in found.items() if runs
    ]  # fmt: skip
    return markdown(CLASSIFIERS, rows)


def leaked() -> str:
    """Words with a digit that are read from one text, in percent."""
    found = [row for row in results("audit/inversion.results")
             if (row["model"], row["batch"]) == ("bilstm", 1)]  # fmt: skip

    def share(method: str, attack: str, decoding: str) -> str:
        wanted = (method, attack, decoding)
        values = [row["ptlr"] for row in found
                  if (row["method"], row["attack"], row["decoding"]) == wanted]  # fmt: skip
        if not values:
            return "nothing travels" if attack == "rows" else "–"
        return f"{100 * values[0]:.0f}"

    attacks = (("rows", "-"), ("dlg", "wrong"), ("dlg", "right"), ("span", "right"))
    heads = ("method", "the paper", "rows that moved", "DLG, another model's table",
             "DLG, the public table", "span, the public table")  # fmt: skip
    rows = [[name, paper, *(share(name, *attack) for attack in attacks)]
            for name, paper in TABLE_2.items()]  # fmt: skip
    return markdown(heads, rows)


# --- Federated Word2Vec ---------------------------------------------------------------------------

VECTORS = ("heldout_loss", "gain", "better_off", "wordsim353", "vocabulary_size",
           "single_source_words")  # fmt: skip
VECTOR_HEADS = ("row", "seeds", "held-out loss", "share of the gain, %", "better off than alone",
                "WordSim353", "words", "of one organisation alone", "up per exchange")  # fmt: skip
NEIGHBOURS = {  # Table 1: the finance organisation alone, and the federation
    "market": ("this, proposed, some, all", "markets, company, share, trading"),
    "bacteria": ("rare, animals, applied, result", "organism, toxic, tissue, cells"),
    "money": ("stated, said, there, take", "paid, offer, sell, cash"),
}


def vectors(name: str) -> str:
    """All text in one place was trained once for each seed and word list: with the first row."""
    found: Results = results(f"word2vec/{name}.results")
    first = {run["seed"]: run for run in next(iter(found.values()))}

    def gain(run: dict[str, Any]) -> float | None:
        base = first[run["seed"]]
        if run["vocabulary_size"] != base["vocabulary_size"]:
            return None  # other words: another loss
        untrained, central = base["untrained_heldout_loss"], base["centralised_heldout_loss"]
        return float((untrained - run["heldout_loss"]) / (untrained - central))

    rows = [
        [row, str(len(runs)), *(figure([{**run, "gain": gain(run)} for run in runs], key)
                                for key in VECTORS), sent(runs)]
        for row, runs in found.items() if runs
    ]  # fmt: skip
    return markdown(VECTOR_HEADS, rows)


def neighbours() -> str:
    (run,) = results("word2vec/text8-all.results")["add rare, average frequent; int8 (default)"]
    heads = ("word", "ours, one organisation alone", "ours, together", "paper: alone",
             "paper: together")  # fmt: skip
    rows = [
        [word, *(", ".join(run["neighbours"][word][who][:4]) for who in ("alone", "federated")),
         *paper]
        for word, paper in NEIGHBOURS.items()
    ]  # fmt: skip
    return markdown(heads, rows)


# --- Tokenizer for free ---------------------------------------------------------------------------

TOKENIZERS = ("word_perplexity", "word_accuracy", "tokens_per_word", "unigram_kld")
TABLE_2_REDDIT = {
    "wiki": ("276.5", "22.2", "1.32", "0.78"), "oracle": ("256.9", "22.5", "1.22", "0"),
    "heavy hitters": ("274.2", "22.1", "1.30", "0.09"),
    "sampled": ("257.7", "22.5", "1.22", "0.02"),
}  # fmt: skip


def tokenizers() -> str:
    heads = ("tokenizer from", "seeds", "perplexity per word", "word accuracy, %",
             "tokens per word", "KL divergence", "paper (Reddit): perplexity", "accuracy, %",
             "tokens per word", "KL divergence")  # fmt: skip
    rows = [
        [row, str(len(runs)), *(figure(runs, key) for key in TOKENIZERS), *TABLE_2_REDDIT[row]]
        for row, runs in results("tokenizer/table2-blogs.results").items()
    ]
    return markdown(heads, rows)


def switches() -> str:
    """Seed 0, which every row has."""

    def value(run: dict[str, Any], key: str) -> str:
        return f"{run[key]['word_perplexity']:,.0f}" if run.get(key) else "–"

    first = {row: next((run for run in runs if run["seed"] == 0), None)
             for row, runs in results("tokenizer/figure4-blogs.results").items()}  # fmt: skip
    rows = [[row, value(run, "before_switch"), value(run, "after_switch"),
             f"{run['word_perplexity']:,.0f}"] for row, run in first.items() if run]  # fmt: skip
    return markdown(("row", "before the switch", "right after", "round 240"), rows)


# --- defences -------------------------------------------------------------------------------------


def defences() -> str:
    """What each costs, and what an attacker with public files then reads."""
    runs: Results = results("audit/defences-sst2.results")
    rows = results("audit/defences-sst2.audit-0")
    base = {run["seed"]: run["global_accuracy"] for run in runs["none"]}
    sizes = sorted({row["sentences"] for row in rows})
    prior = [f"{_defences._prior(rows, size):.2f}" for size in sizes]
    lines = [["(word frequencies alone, no upload)", "–", *prior]]
    for setting, name in _defences.ROWS.items():
        gaps = [run["global_accuracy"] - base[run["seed"]] for run in runs[name]]
        about = {"attack": "span", "defence": setting, "attacker": "public files",
                 "optimizer": "sgd"}  # fmt: skip
        read = [_defences.found(rows, "recall_at_n", sentences=size, **about) for size in sizes]
        cost = "–" if setting == "none" else _defences.interval(gaps)
        lines.append([f"`{setting}`", cost, *(cell.partition(" (")[0] for cell in read)])
    heads = ("defence", "points of accuracy", *(f"read of {size} texts" for size in sizes))
    return markdown(heads, lines)


TABLES: dict[str, Callable[[], str]] = {
    "bilstm": lambda: classifiers("table4-sst2", TABLE_4),
    "encoder": lambda: classifiers("table3-sst2-minilm", TABLE_3),
    "leaked": leaked,
    "topics": lambda: vectors("text8-topics"),
    "all text": lambda: vectors("text8-all"),
    "neighbours": neighbours,
    "tokenizers": tokenizers,
    "switches": switches,
    "defences": defences,
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
