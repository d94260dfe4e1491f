"""One table of figures: what summary.json holds, what people call it, how it is written, and where
it is shown.

A method of one's own may bring figures that are not here: they are shown under their own names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def three(value: float) -> str:
    return f"{value:.3f}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def _one(value: float) -> str:
    return f"{value:,.1f}"


def _tiny(value: float) -> str:
    return f"{value:g}"


def _seconds(value: float) -> str:
    return f"{value:.1f}"


def _held(value: Mapping[str, Any]) -> str:
    return f"{value['held']} of {value['uploads']}"


def reasons(value: Mapping[str, int]) -> str:
    """Most frequent first."""
    ranked = sorted(value.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ranked) or "none"


@dataclass(frozen=True)
class Figure:
    key: str
    label: str = ""  # none: it is for programs
    write: Callable[[Any], str] = number
    # r: what a run prints; s: `compare` on a terminal; c: the page of `compare`; k: a card of the
    # report
    where: str = ""
    # options are chosen by it, and which of two values is the better one
    better: Literal["", "higher", "lower"] = ""


FIGURES: tuple[Figure, ...] = (
    Figure("name"),
    Figure("method"),  # as the configuration names it
    Figure("method_name", "method", str, "rsc"),
    Figure("seed"),
    Figure("rounds", "rounds"),
    Figure("clients", "clients"),
    Figure("client_names"),  # where they are sources or users; for who runs the simulation
    # classifiers
    Figure("global_accuracy", "global accuracy", percent, "rsck", "higher"),
    Figure(
        "global_accuracy_interval", "global accuracy ± (95 %: texts and clients drawn)", percent
    ),
    Figure("global_accuracy_spread", "global accuracy, spread over clients", percent),
    Figure("global_accuracy_mean", "global accuracy (arithmetic mean)", percent),
    Figure("local_accuracy", "local accuracy", percent, "rsck"),
    Figure("local_accuracy_interval", "local accuracy ± (95 %)", percent),
    Figure("local_accuracy_spread", "local accuracy, spread over clients", percent),
    Figure("local_majority_accuracy", "majority class alone", percent, "rsck"),
    Figure("test_majority_accuracy", "most frequent class of the test set", percent),
    Figure("macro_f1", "macro F1", percent),
    Figure("label_counts"),  # of each client's texts, where no promise is made
    Figure("unseen_accuracy", "unseen clients' accuracy", percent, "c"),
    # word vectors
    Figure("vocabulary_size", "words in the vocabulary"),
    Figure("single_source_words", "words of one organisation alone"),
    Figure("agreement_refused"),
    Figure("heldout_loss", "loss on held-out text", three, "rsck", "lower"),
    Figure("centralised_heldout_loss", "loss, all text in one place", three, "rck"),
    # language models
    Figure("word_perplexity", "perplexity per word", _one, "rsck", "lower"),
    Figure("word_perplexity_interval", "perplexity per word ± (95 %: users drawn)", _one),
    Figure("worst_tenth_perplexity", "perplexity per word, worst tenth of users", _one, "c"),
    Figure("word_accuracy", "word accuracy", percent, "c"),
    Figure("tokens_per_word", "tokens per word", three, "rsck"),
    Figure("oov_rate", "unknown words", percent, "c"),
    Figure("unigram_kld", "KL divergence", three, "rsck"),
    Figure("tokenizer_switches", "tokenizer switches", number, "c"),
    Figure("test_users", "test users"),
    Figure("before_switch"),
    Figure("after_switch"),
    Figure("users"),
    Figure("samples"),  # texts that it writes, if they were asked for
    # privacy
    Figure("epsilon_this_run", "epsilon of this run", number, "rck"),
    Figure("epsilon_deployment", "epsilon of the deployment", number, "rsck"),
    Figure("delta", "delta", _tiny),
    Figure("privacy", "privacy", str),
    Figure("promise"),
    Figure("experimenter"),
    Figure("ledger"),
    Figure("epsilon_by_round"),  # a round, what this run had spent then, and its deployment
    Figure("held_back", "uploads held back", _held),
    # word vectors, beside their loss
    Figure("alone_heldout_loss", "loss, the best organisation alone", three, "r"),
    Figure("untrained_heldout_loss", "loss, untrained", three),
    Figure("wordsim353", "WordSim353 (Spearman)", three, "rck"),
    Figure("wordsim353_found", "WordSim353, pairs known", percent),
    Figure("simlex999", "SimLex-999 (Spearman)", three),
    Figure("simlex999_found", "SimLex-999, pairs known", percent),
    Figure("analogies", "analogies solved", percent),
    Figure("analogies_asked"),
    Figure("centralised_wordsim353", "WordSim353, all text in one place", three),
    Figure("centralised_simlex999", "SimLex-999, all text in one place", three),
    Figure("centralised_analogies", "analogies solved, all text in one place", percent),
    Figure("neighbour_overlap"),
    Figure("neighbours"),
    Figure("organisations"),
    # cost
    Figure("bytes_up_per_client_round", "up, per client and round", size, "sc"),
    Figure("bytes_up", "sent up", size, "rsck"),
    Figure("bytes_down", "sent down", size, "rsc"),
    Figure("parameters_shared", "parameters that travel", whole, "c"),
    Figure("parameters_private", "parameters that stay (per client)", whole, "c"),
    Figure("seconds", "seconds", _seconds, "rsck"),
    Figure("device", "device", str),  # where clients computed, when the run ended
    Figure("refused", "replies refused", reasons),
    Figure("stopped", "ended", str),
    Figure("reason"),
)

# what follows from the configuration, the ledger and what is released. All else was made of users'
# texts without noise, or counts who took part: under a promise it is the experimenter's
PUBLISHED = frozenset(
    (
        "name", "method", "method_name", "seed", "rounds", "clients", "vocabulary_size",
        "tokenizer_switches", "test_users", "epsilon_this_run", "epsilon_deployment", "delta",
        "privacy", "promise", "experimenter", "ledger", "epsilon_by_round", "parameters_shared",
        "stopped", "device",
    )
)  # fmt: skip

# in the metrics of a last record: the figures of those clients that were scored on the way
ON_THE_WAY = "on_the_way"


def curve_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics of a record as a curve shows them: of the same clients throughout."""
    metrics: Mapping[str, Any] = record["metrics"]
    return {**metrics, **(metrics.get(ON_THE_WAY) or {})}


def client_name(summary: Mapping[str, Any], client: int) -> str:
    """What the data calls a client, else its number."""
    names = summary.get("client_names")
    return str(names[client] if names else client)


SUMMARY = tuple(figure.key for figure in FIGURES)  # always present in summary.json
LABELS: Mapping[str, str] = {figure.key: figure.label for figure in FIGURES if figure.label}
_BY_KEY = {figure.key: figure for figure in FIGURES}


def shown(where: str) -> tuple[str, ...]:
    """The keys that are shown there, in order."""
    return tuple(figure.key for figure in FIGURES if where in figure.where)


def chosen_by(summary: Mapping[str, Any]) -> Figure | None:
    """The figure of a run by which options are chosen; None: it has none."""
    found = (f for f in FIGURES if f.better and summary.get(f.key) is not None)
    return next(found, None)


def counted(count: int, what: str) -> str:
    """1 round, 2 rounds."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def human(key: str, value: Any) -> str:
    """A figure as people read it: terminal, report and README agree."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    figure = _BY_KEY.get(key)
    return (
        figure.write(value)
        if figure is not None
        else number(value)
        if isinstance(value, int | float)
        else str(value)
    )
