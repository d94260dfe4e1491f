"""FedeVocab's privacy experiment (Zhang et al., EMNLP 2022, sec. 4.2, A.3): Tables 2, 7, 8, 9 and
Figure 3.

    export LEXFED_DATA=DIR                                          # AG News, GloVe of 100 numbers
    python experiments/audit/inversion.py closed                    # without a search: all texts
    python experiments/audit/inversion.py dlg --texts 32 --batches 1 2 4
    python experiments/audit/inversion.py dlg --texts 64 --batches 8 16 32 64
    python experiments/audit/inversion.py tag --texts 16 --batches 1 2 4
    python experiments/audit/inversion.py cases
    python experiments/audit/inversion.py                           # the tables of what was run

The same with `--model transformer`. Two processes part the work with `--share 0/2` and `--share
1/2`; one that was cut short goes on where it was. Rows go to runs/inversion, a file for each
process; the last call writes what all of them say to inversion.results.json and inversion.md beside
this file. All of it: `python -m experiments.papers --only inversion`.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from inversion_study import (
    BATCHES,
    Row,
    Target,
    cases,
    cells,
    closed_forms,
    places,
    private_texts,
    searches,
    target_of,
)
from torch import Tensor

from lexfed.audits.closed_form.attackers import PUBLIC_FILES
from lexfed.audits.closed_form.front_ends import ATTENTION, EPSILON, Encoder
from lexfed.audits.closed_form.row_names import pretrained_order
from lexfed.audits.inversion.dlg import Inversion, threat_of
from lexfed.core.params import Params
from lexfed.core.seeds import derive, root
from lexfed.corpus.catalogue import load
from lexfed.methods.fedrecon import is_private_token
from lexfed.metrics.leakage import span
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.encoder import load_encoder, resolve
from lexfed.models.model import Example, ModelOptions, collate
from lexfed.vocabulary.pretrained import PretrainedTokenizer, load_tokenizer
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.vectors import load as load_vectors
from lexfed.vocabulary.word import UNKNOWN, Vocabulary, WordTokenizer

HERE = Path(__file__)
RUNS = HERE.parents[2] / "runs" / "inversion"
CLASSES, TEXTS = 4, 128
LONGEST = {"bilstm": 32, "transformer": 40}  # words; word pieces
LAYERS = 2  # of MiniLM's six, at a third of their price
STEPS = (
    300  # evaluations of a search, whatever the batch: else its size would not be all that differs
)
TAG = 0.01  # of TAG's second term
SEED = root(0)
# Table 2 (PTLR in %, DistilBERT and BiLSTM) and Table 7 (BERT-Base, FedeVocab: F1 by batch size)
PAPER_PTLR = {"fedavg": (88.2, 87.6), "fedrecon": (2.4, 2.1), "fedevocab": (1.3, 1.2)}
PAPER_F1 = (0.007, 0.005, 0.009, 0.010, 0.007, 0.008, 0.008)
NAMES = {
    "fedavg": "FedAvg", "fedrecon": "FedRecon", "fedevocab": "FedeVocab", "-": "",
    "right": "public table", "wrong": "wrong table", "moved rows": "among rows that moved", "span": "span",
    "rows": "rows that moved", "dlg": "DLG", "tag": "TAG", "prior": "the most frequent words, no upload",
}  # fmt: skip
SETTINGS = {
    "bilstm": "BiLSTM, 100 hidden states, GloVe of 100 numbers (the paper: 300 and 300), texts of at most 32 words",
    "transformer": "MiniLM's first two layers, pretrained (the paper: DistilBERT), texts of at most 40 word pieces",
}
FIGURES = {
    "f1": "F1 of distinct words, by batch size (Figure 3)",
    "ptlr": "Words with a digit that are read (PTLR), by batch size",
    "rouge_l": "ROUGE-L, texts beside the best guess of their length",
    "sentences": "How many of the 128 texts",
}


def bilstm() -> tuple[Target, list[Example]]:
    """GloVe of 100 numbers and 100 hidden ones; the paper has 300 and 300."""
    public = load_vectors("glove_6b_100d_top100k.npz").head(20_000)
    corpus = load("ag_news")
    digits = sorted(
        {word for text in corpus for word in words(text) if is_private_token(word)}
        - set(public.words)
    )
    tokens = (UNKNOWN, *public.words, *digits)
    model = BiLSTMClassifier(
        ModelOptions(embedding=public.dimension, hidden=100, dropout=0.0), CLASSES
    )
    target = target_of(model, tokens, public, CLASSES, SEED)
    tokenizer = WordTokenizer(Vocabulary(tokens, (0,) * len(tokens)))
    return target, private_texts(corpus, tokenizer, TEXTS, LONGEST["bilstm"], derive(SEED, "texts"))


def transformer() -> tuple[Target, list[Example]]:
    """The first layers of a pretrained MiniLM, and its own table of word pieces."""
    model, tokenizer = load_encoder("minilm", CLASSES, True), load_tokenizer(resolve("minilm"), 512)
    model.module.base_model.encoder.layer = model.module.base_model.encoder.layer[:LAYERS]
    params = model.init(0, SEED)
    order, table = pretrained_order(tokenizer), params[model.word_table]

    def ranked(observed: Params, candidates: Tensor) -> Tensor:
        found = span(*(value for name, value in observed.items() if name.endswith(ATTENTION)))
        return order[front_end(params, tokenizer, order, candidates).ranking(found, PUBLIC_FILES)]

    tokens = tokenizer.vocabulary.tokens
    target = Target(model, params, tokens, table, CLASSES, order, ranked)
    corpus = load("ag_news")
    return target, private_texts(
        corpus, tokenizer, TEXTS, LONGEST["transformer"], derive(SEED, "texts")
    )


def front_end(
    params: Params, tokenizer: PretrainedTokenizer, order: Tensor, candidates: Tensor
) -> Encoder:
    position, kind, scale, shift = (
        params[f"bert.embeddings.{name}"]
        for name in (
            "position_embeddings.weight",
            "token_type_embeddings.weight",
            "LayerNorm.weight",
            "LayerNorm.bias",
        )
    )
    return Encoder(
        tokenizer,
        order,
        candidates,
        position[: LONGEST["transformer"]] + kind[0],
        scale,
        shift,
        EPSILON,
    )


MODELS = {"bilstm": bilstm, "transformer": transformer}


def run(arguments: argparse.Namespace) -> None:
    target, examples = MODELS[arguments.model]()
    examples = examples[: arguments.texts]
    options = Inversion(
        derive(SEED, "search"), steps=STEPS, alpha=TAG if arguments.attack == "tag" else 0.0
    )
    threat = threat_of(collate(examples[: arguments.batches[0]]), target.public.shape[1], CLASSES)
    print(f"{threat}", flush=True)
    if arguments.attack == "cases":
        found = [asdict(case) for case in cases(target, examples[:3], options)]
        write_lines(RUNS / f"{arguments.model}-cases.json", found)
        return
    kind, (number, shares) = (
        f"{arguments.model}-{arguments.attack}",
        map(int, arguments.share.split("/")),
    )
    done = {(row["batch"], row["first"]) for row in recorded(kind)}
    with (RUNS / f"{kind}-{number}.jsonl").open("a") as file:
        for place in places(arguments.texts, arguments.batches)[number::shares]:
            if place in done:
                continue
            if arguments.attack == "closed":
                rows = closed_forms(target, examples, [place], derive(SEED, "wrong"))
            else:
                rows = searches(
                    target, examples, [place], replace(options, seed=derive(options.seed, *place))
                )
            file.write(
                "".join(json.dumps(asdict(row)) + "\n" for row in rows)
            )  # all of a batch, or nothing
            file.flush()


def recorded(kind: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(RUNS.glob(f"{kind}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """A JSON list with a line for each row."""
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def tables() -> None:
    found = [
        {"model": model, **asdict(cell)}
        for model in MODELS
        for cell in cells(
            Row(**row)
            for attack in ("closed", "dlg", "tag")
            for row in recorded(f"{model}-{attack}")
        )
    ]
    write_lines(HERE.with_suffix(".results.json"), found)
    read = {
        model: json.loads(path.read_text())
        for model in MODELS
        if (path := RUNS / f"{model}-cases.json").exists()
    }
    HERE.with_suffix(".md").write_text("\n".join(page(found, read)) + "\n")


def page(found: Sequence[dict[str, Any]], read: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "# Gradient inversion on news texts: FedeVocab's privacy experiment"
    yield ""
    yield "Made by `experiments/audit/inversion.py`; its docstring says how. A text has at least three words with a digit."
    yield "The paper's attacker of FedeVocab decodes with a table that is not the client's (*wrong table*). Beside it: the"
    yield "same vectors, decoded with the public table that the client began with, and what needs no search at all. Of a"
    yield "span the first n words count, n being the number of distinct ones. A search is one start of at most"
    yield f"{STEPS} evaluations: what it does not find, a longer one may."
    for model, setting in SETTINGS.items():
        own = [cell for cell in found if cell["model"] == model]
        if own:
            yield from ("", f"## {setting}", "", *leaked(own, model))
            for key, title in FIGURES.items():
                yield from ("", title, "", *by_batch(own, key))
        for number, case in enumerate(read.get(model, [])):
            yield from (
                "",
                f"Text {number + 1}, one at a time (Tables 8 and 9)",
                "",
                "| | |",
                "|---|---|",
            )
            yield f"| original | {shown(case['original'])} |"
            yield from (
                f"| {label('dlg', *way.split(', '))} | {shown(text)} |"
                for way, text in case["read"].items()
            )


def shown(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def label(attack: str, method: str, decoding: str) -> str:
    return ", ".join(name for name in (NAMES[attack], NAMES[method], NAMES[decoding]) if name)


def leaked(own: Sequence[dict[str, Any]], model: str) -> Iterator[str]:
    yield "Table 2: words with a digit that are read from single texts (PTLR, %)."
    yield ""
    yield "| | the paper | rows that moved | DLG, wrong table | DLG, public table | span, public table |"
    yield "|---|---|---|---|---|---|"
    ways = (("rows", "-"), ("dlg", "wrong"), ("dlg", "right"), ("span", "right"))
    for method, (distilbert, lstm) in PAPER_PTLR.items():
        cells = [pick(own, (attack, method, decoding), 1, "ptlr") for attack, decoding in ways]
        figures = [
            lstm if model == "bilstm" else distilbert,
            *(None if x is None else 100 * x for x in cells),
        ]
        yield f"| {NAMES[method]} | {' | '.join('–' if x is None else f'{x:.1f}' for x in figures)} |"


def by_batch(own: Sequence[dict[str, Any]], key: str) -> Iterator[str]:
    """Figure 3: a column for each size of a batch."""
    ways = dict.fromkeys((cell["attack"], cell["method"], cell["decoding"]) for cell in own)
    yield f"| | {' | '.join(map(str, BATCHES))} |"
    yield "|---" * (len(BATCHES) + 1) + "|"
    for way in ways:
        figures = [pick(own, way, size, key) for size in BATCHES]
        if any(figure is not None for figure in figures):
            digits = 0 if key == "sentences" else 2
            yield f"| {label(*way)} | {' | '.join('–' if x is None else f'{x:.{digits}f}' for x in figures)} |"
    if key == "f1":
        yield f"| *the paper: FedeVocab, BERT-Base (Table 7)* | {' | '.join(f'{x:.2f}' for x in PAPER_F1)} |"


def pick(
    own: Sequence[dict[str, Any]], way: tuple[str, str, str], batch: int, key: str
) -> float | None:
    wanted = (*way, batch)
    return next(
        (c[key] for c in own if (c["attack"], c["method"], c["decoding"], c["batch"]) == wanted),
        None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attack", nargs="?", choices=("closed", "dlg", "tag", "cases"))
    parser.add_argument("--model", choices=tuple(MODELS), default="bilstm")
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--share", default="0/1", help="which part of the batches: NUMBER/PARTS")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    if arguments.attack:
        run(arguments)
    else:
        tables()


if __name__ == "__main__":
    main()
