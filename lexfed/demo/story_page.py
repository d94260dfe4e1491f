"""The page of the demo: four chapters, each with what was found and the command that repeats it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lexfed.core.figures import human
from lexfed.core.files import write_atomically
from lexfed.demo import story
from lexfed.demo.story import COMPARED, Story
from lexfed.privacy.accounting import from_json, times
from lexfed.report import audit_charts, charts, frame, run_charts
from lexfed.report.frame import Chart, Tab, escape, paragraph, table

NAMES = {
    story.ALONE: "everyone alone",
    story.TOGETHER: "FedAvg: all share one table",
    story.PRIVATE: "FedeVocab: tables stay at home",
}
LEAD = (
    "Federated learning keeps texts where they are and sends updates of a model instead. Four "
    "short experiments on printed film reviews show what that does with an organisation's words. "
    "All of it ran on this machine."
)
NONE, TURNED, PUBLIC = "none", "defences.rotation=shared", "public files"


def write(told: Story) -> Path:
    path = told.folder / "report.html"
    write_atomically(path, page(told).encode())
    return path


def page(told: Story) -> str:
    chapters = (_leak(told), _private(told), _agreed(told), _learned(told))
    return frame.document(
        "Where does a federation's vocabulary come from?",
        paragraph(LEAD),
        [Tab("The story", "".join(chapters))],
    )


def _chapter(number: int, title: str, *parts: str) -> str:
    return f'<h2 id="chapter-{number}">{number}. {escape(title)}</h2>' + "".join(parts)


def _again(*commands: str) -> str:
    return paragraph("To repeat this alone:") + frame.code("\n".join(commands))


def _percent(share: float) -> str:
    return human("global_accuracy", share)


# --- 1 -------------------------------------------------------------------------------------------


def _leak(told: Story) -> str:
    row = story.leak(told, story.TOGETHER, NONE, "rows", PUBLIC)
    said = (
        "With FedAvg all clients share one table with a row for every word of a public list. A "
        "client moves the rows of the words it has, and no others. So whoever gets the upload "
        f"reads its words off: {_percent(row['recall_at_n'])} of those that the list knows, where "
        f"guessing the most frequent words would find {_percent(row['prior_recall_at_n'])}. Marked "
        "are the words that were written and read."
    )
    example = row["examples"][0]
    shown = audit_charts.example_of("A client's reviews, and its upload", example["texts"],
                                    example["read"])  # fmt: skip
    title = "An organisation's words leave with FedAvg"
    return _chapter(1, title, paragraph(said, ""), shown, _again(told.command("leak")))


# --- 2 -------------------------------------------------------------------------------------------


def _private(told: Story) -> str:
    open_, turned = (
        story.leak(told, story.PRIVATE, defence, "span", PUBLIC) for defence in (NONE, TURNED)
    )
    said = (
        "With FedeVocab every client keeps its table, and only the layers behind it travel. The "
        "clients below start from the public vectors of chapter 3. They send far less than with "
        "FedAvg, which is the most accurate. On as little text as this, what they gain over "
        "training alone shows on texts like their own."
    )
    still = (
        "But the first layer that travels moves only along the vectors of the client's words. Who "
        f"has the public vectors still reads {_percent(open_['recall_at_n'])} of the words. A "
        "rotation that the clients share and the server lacks stops that: "
        f"{_percent(turned['recall_at_n'])}, where word frequency alone finds "
        f"{_percent(turned['prior_recall_at_n'])}. It holds as long as no client gives it away."
    )
    rows = [
        (
            NAMES[name],
            *(human(key, run.summary()[key]) for key in ("global_accuracy", "local_accuracy")),
            human("bytes_up", run.summary()["bytes_up"]),
        )
        for name, run in zip(COMPARED, told.compared, strict=True)
    ]
    heads = ("method", "accuracy on common texts", "accuracy on texts like its own", "sent up")
    examples = [
        audit_charts.example_of(title, row["examples"][0]["texts"], row["examples"][0]["read"])
        for title, row in (("Without a rotation", open_), ("With a rotation", turned))
    ]
    again = [told.command("private", "--set", f"method={name}") for name in COMPARED]
    return _chapter(
        2, "Private: keep the table", paragraph(said, ""), table(heads, rows),
        frame.figures(_accuracy(told)), paragraph(still, ""), *examples, _grid(told),
        _again(*again),
    )  # fmt: skip


def _accuracy(told: Story) -> Iterator[Chart]:
    intervals, majority = {}, {}
    for name, run in zip(COMPARED, told.compared, strict=True):
        summary = run.summary()
        score, half = (summary[f"global_accuracy{end}"] for end in ("", "_interval"))
        intervals[NAMES[name]] = (100 * (score - half), 100 * score, 100 * (score + half))
        majority[NAMES[name]] = 100 * summary["test_majority_accuracy"]
    yield charts.ranges(
        "Accuracy on common texts",
        "Right is better; bars are 95 % intervals, and the tick is always saying one class.",
        intervals, "%", majority,
    )  # fmt: skip


def _grid(told: Story) -> str:
    rows = [row for row in told.leaks if row["attack"] == "span" and row["not_run"] is None]
    return audit_charts.grid("Who reads how much of it", rows)


# --- 3 -------------------------------------------------------------------------------------------


def _agreed(told: Story) -> str:
    summary = told.agreed.summary()
    loss = {key: human(key, summary[key]) for key in ("heldout_loss", "alone_heldout_loss")}
    said = (
        f"{summary['clients']} organisations agree on {summary['vocabulary_size']:,} words that at "
        "least two of them hold. Each sends hashes of its words under a key that the server lacks; "
        f"words of one organisation alone in the list: {summary['single_source_words']:,}. Then "
        "they train word vectors together. On text that nobody trained on the loss is "
        f"{loss['heldout_loss']} together, and {loss['alone_heldout_loss']} for the best "
        "organisation alone."
    )
    rows = [
        (word, ", ".join(near["alone"]), ", ".join(near["federated"]))
        for word, near in summary["neighbours"].items()
    ]
    heads = ("nearest to", "the first organisation alone", "all together")
    drawn = [*run_charts.clients(summary), *run_charts.words(summary, told.agreed.artifacts)]
    return _chapter(
        3, "Agreed: a word list nobody gave away, vectors better than anyone's alone",
        paragraph(said, ""), table(heads, rows, "grid"), frame.figures(drawn),
        _again(told.command("agreed")),
    )  # fmt: skip


# --- 4 -------------------------------------------------------------------------------------------


def _learned(told: Story) -> str:
    summary = told.learned.summary()
    before, after = summary["before_switch"], summary["after_switch"]
    said = (
        f"{summary['clients']:,} users train a language model with differential privacy. It begins "
        f"with a tokenizer of other, public text. After round {before['round']} the model writes a "
        "text of its own, and a tokenizer is learned from that: what users wrote is not looked at "
        f"again. Tokens per word: {before['tokens_per_word']:.3f} before, "
        f"{after['tokens_per_word']:.3f} after; distance of the tokenizer's text from the users' "
        f"(KL divergence): {before['unigram_kld']:.3f} and {after['unigram_kld']:.3f}."
    )
    one, other = (times(from_json(ledger)) for ledger in story.spent(told))
    account = (
        f"The account has {one} noisy releases before the switch, and {other} after it: the "
        "tokenizer cost nothing. " + summary["privacy"]
    )
    chosen = paragraph(
        f"Of the last {story.LOOKED_AT} reviews, the one that the two cut most differently:"
    )
    rows = f"<h3>The public tokenizer: {len(told.cut.before)} tokens</h3>{_pieces(told.cut.before)}"
    rows += f"<h3>The learned one: {len(told.cut.after)} tokens</h3>{_pieces(told.cut.after)}"
    texts = "".join(
        f"<h3>What the model writes, {escape(when)}</h3>{frame.code(chr(10).join(samples))}"
        for when, samples in (summary["samples"] or {}).items()
    )
    return _chapter(
        4, "Learned: a tokenizer for free", paragraph(said, ""), chosen, rows,
        paragraph(account, ""), frame.figures(run_charts.account(summary)), texts,
        _again(told.command("learned")),
    )  # fmt: skip


def _pieces(tokens: Sequence[str]) -> str:
    parts = " ".join(f'<span class="piece">{escape(token)}</span>' for token in tokens)
    return f'<p class="words">{parts}</p>'
