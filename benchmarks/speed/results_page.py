"""The page benchmarks/RESULTS.md, from the figures."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import work as shared
from pictures import BARS
from ratios import START_UP_AIM, Ratio, Spread, ratios, spread, spreads

Part = Mapping[str, Any]

INTRODUCTION = """# Speed beside the peers

Written by `make bench`. Every runner of a part does the same work: the same model from the same
weights, on the same batches of the same clients. Before anything is timed, all of them do one round
and must end in the same weights, to 1e-5. Runners take turns, so that all meet the same machine.
Figures are medians of the repeats, with the least and the most in brackets. Absolute times are this
machine's; ratios carry further.

CPU per local step is the processor time of all processes in the rounds after the first, over the
local steps in them. Start-up is the time from the start of the process to its first round. Memory
is the proportional set size (PSS) of all processes together, daemons too, at its peak: `/proc` is
read five times a second in a run of its own, whose times do not count."""

CLASSIFIER = """\
`lexfed run` is what a user has: the command line with `--workers 2`. Its whole run goes from
the start of the process to its end: imports, texts read and cut into words, workers, {rounds}
rounds, a checkpoint and a record after each, at the end the scores of all 100 clients, the
model and the report. Its round is the time between two of its lines, checkpoint and record
included. Flower's simulation (ServerApp, ClientApp, Ray with two CPUs, one per client;
telemetry off) reads the batches as numbers from a file; its whole run goes from the start of
its process to its end: imports, Ray, {rounds} rounds, one score and the weights saved. lexfed
in one process and the bare loop are rounds alone."""


def page(found: Mapping[str, Part]) -> str:
    lines = [INTRODUCTION, "", *_machine(found), "", *_aims(found)]
    lines += ["", *(f"![{about[0]}](plots/speed-{name}.svg)\n" for name, about in drawn(found))]
    for name, part in found.items():
        if name == "scale":
            lines += ["", *_scale(part)]
        elif name == "start-up":
            lines += ["", *_start_up(part)]
        elif name == "classifier":
            lines += ["", *_classifier(part)]
        elif name in shared.WORKS:
            lines += ["", *_language(name, part)]
    return "\n".join(lines) + "\n"


def drawn(found: Mapping[str, Part]) -> list[tuple[str, tuple[str, str, str, float]]]:
    """The pictures that there is something for."""
    runs = [
        run for part in found.values() if "memory" in part for run in chain(*part["runs"].values())
    ]
    return [
        (name, about) for name, about in BARS.items()
        if runs and (about[1] == "peak_pss_mb" or any(about[1] in run for run in runs))
    ]  # fmt: skip


def _machine(found: Mapping[str, Part]) -> Iterator[str]:
    """Of each machine, commit and day that the parts were measured on, one line."""
    by_place: dict[str, list[str]] = {}
    for name, part in found.items():
        about = part["measured"]
        versions = "; ".join(
            f"{who}: " + ", ".join(f"{package} {number}" for package, number in known.items())
            for who, known in about["versions"].items()
        )
        line = f"{about['machine']}; {versions}; lexfed at {about['commit']}, {about['when']}."
        by_place.setdefault(line, []).append(name)
    for line, names in by_place.items():
        which = "" if len(by_place) == 1 else f" ({', '.join(names)})"
        yield f"Measured on{which} {line}"


def _aims(found: Mapping[str, Part]) -> Iterator[str]:
    yield "## Aims"
    yield ""
    yield "| work | figure | of | beside | ratio | aim | |"
    yield "|---|---|---|---|---|---|---|"
    for one in ratios(found):
        yield _ratio(one)
    if "start-up" in found:
        beyond = spreads(found["start-up"]["runs"]["lexfed run"], "beyond_torch_s")
        assert beyond is not None
        yield (
            f"| start-up | CPU seconds to the first round | lexfed run | `import torch` | "
            f"{_figure(beyond, 2)} s more | at most {START_UP_AIM} s | "
            f"{_met(beyond.middle <= START_UP_AIM)} |"
        )


def _ratio(one: Ratio) -> str:
    aim = one.aim
    return (
        f"| {aim.part} | {aim.what} | {aim.ours} | {aim.theirs} | {_figure(one.value, 2)} | "
        f"at most {aim.most:.2f} | {_met(one.met)} |"
    )


def _met(met: bool) -> str:
    return "met" if met else "**not met**"


def _figure(value: Spread | None, places: int) -> str:
    if value is None:
        return ""
    if value.least == value.most:
        return f"{value.middle:,.{places}f}"
    return f"{value.middle:,.{places}f} ({value.least:,.{places}f} to {value.most:,.{places}f})"


COLUMNS = {
    "cpu_ms_per_step": ("CPU ms per local step", 2, 1.0),
    "wall_s_per_round": ("s per round", 3, 1.0),
    "start_s": ("start-up s", 1, 1.0),
    "whole_s": ("whole run s", 1, 1.0),
    "bytes_up_per_client": ("upload KB", 0, 1e-3),
}


def _table(part: Part) -> Iterator[str]:
    runs = part["runs"]
    shown = [key for key in COLUMNS if any(key in run for some in runs.values() for run in some)]
    yield (
        "| runner | " + " | ".join(COLUMNS[key][0] for key in shown) + " | memory MB | processes |"
    )
    yield "|---|" + "---|" * (len(shown) + 2)
    for who, some in runs.items():
        cells = []
        for key in shown:
            _, places, unit = COLUMNS[key]
            known = [float(run[key]) * unit for run in some if run.get(key) is not None]
            cells.append(_figure(spread(known) if known else None, places))
        memory = part["memory"][who]
        cells += [f"{memory['peak_pss_mb']:,.0f}", f"{memory['processes']:,.0f}"]
        yield f"| {who} | " + " | ".join(cells) + " |"


def _repeats(part: Part) -> int:
    return len(next(iter(part["runs"].values())))


def _language(name: str, part: Part) -> Iterator[str]:
    work = shared.WORKS[name]
    texts = "1 to 64 texts, 8 in the mean," if work.variable else f"{work.texts} texts"
    yield f"## {name}: {work.vocabulary:,} tokens, width {work.width}"
    yield ""
    yield (
        f"A private language model: {texts} a user, their words by Zipf's law, an LSTM with a tied "
        f"softmax, cohorts of {work.cohort} by Poisson's law, clip, noise and Adam at the server. "
        f"After one round without noise all weights agree to {part['agree_to']:.1e}. "
        f"{_repeats(part)} repeats."
    )
    yield ""
    yield from _table(part)


def _classifier(part: Part) -> Iterator[str]:
    yield "## classifier: BiLSTM 100/64, 20,000 words, 10 of 100 clients a round, FedAvg"
    yield ""
    yield CLASSIFIER.format(rounds=part["rounds"])
    yield ""
    yield f"After one round all weights agree to {part['agree_to']:.1e}. {_repeats(part)} repeats."
    yield ""
    yield from _table(part)


def _start_up(part: Part) -> Iterator[str]:
    runs = part["runs"]["lexfed run"]
    yield "## start-up: `lexfed run` on 400 short texts"
    yield ""
    yield f"CPU seconds of the process, by its own clock. {_repeats(part)} repeats."
    yield ""
    yield "| until | seconds | beyond `import torch` |"
    yield "|---|---|---|"
    yield f"| `import torch` alone | {_figure(spreads(runs, 'import_torch_s'), 2)} | |"
    for until, key in (
        ("the first round begins", ""),
        ("the first round is over", "first_round_"),
        ("the run of two rounds has ended, report written", "whole_"),
    ):
        whole, beyond = (spreads(runs, f"{key}{end}") for end in ("cpu_s", "beyond_torch_s"))
        yield f"| {until} | {_figure(whole, 2)} | {_figure(beyond, 2)} |"


def _scale(part: Part) -> Iterator[str]:
    yield "## scale"
    yield ""
    yield "Time and memory by the cohort and the population: [scale_rounds.md](scale_rounds.md)."
