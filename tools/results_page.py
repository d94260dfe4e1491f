"""RESULTS.md, from experiments/results.template.md and committed result files.

    python -m tools.results_page           write it
    python -m tools.results_page --check   say whether it is current

In the template, besides references (tools/references.py):

    {{standing}}              how many of the papers' tables and figures were run
    {{repeated}}              how many runs are of a commit that is in no history any more
    {{overview}}              every table and figure of the papers: what was run, and the verdicts
    {{table NAME}}            of an entry of the catalogue, with what was scaled down, the result
                              files and the command, or that it was not run; or another table of
                              tools/paper_tables.py, tools/audit_tables.py
    {{when ID: VERDICT}} ...  a paragraph that stands only while the claim has this verdict
    {{when run ENTRY}} ...    a paragraph that stands only if something of the entry was run
    - {{claim ID: VERDICT}} Why.   a claim of the catalogue: its verdict is computed; the reason
                              stands only while it is the one that it was written for
"""

import re
import sys
import textwrap
from collections.abc import Iterable

from experiments.papers import verdicts
from experiments.papers.catalogue import Catalogue, Entry, Runs
from tools import audit_tables, paper_tables
from tools.references import UnknownFigureError, resolved
from tools.result_files import ROOT, markdown

TEMPLATE = ROOT / "experiments" / "results.template.md"
PAGE = ROOT / "RESULTS.md"
WIDTH = 110
HARD = "\x1f"  # stands for a space where no line may end
SHOWN = re.compile(r"\{\{table (.+?)\}\}")
CLAIM = re.compile(r"^- \{\{claim (\S+): (holds|in part|does not)\}\} ?(.*(?:\n  .*)*)\n", re.M)
WHEN = re.compile(
    r"^\{\{when (?:run (\S+)|(\S+): (holds|in part|does not))\}\} ((?:.+\n)+)\n?", re.M
)
PART_OF_PAPER = re.compile(r"(?:Table|Figure) \d+")
WORDS = {verdicts.HOLDS: "Holds", verdicts.PART: "Holds in part", verdicts.NOT: "Does not hold"}
MADE = "<!-- made by `make results` from experiments/results.template.md and result files -->\n"


def page(catalogue: Catalogue = paper_tables.CATALOGUE) -> str:
    text = TEMPLATE.read_text().partition("-->\n")[2].lstrip()
    text = claims(findings(text, catalogue), catalogue)
    text = text.replace("{{standing}}", standing(catalogue))
    text = text.replace("{{repeated}}", paper_tables.repeated())
    text = text.replace("{{overview}}", overview(catalogue))
    return MADE + wrapped(resolved(tables(text, catalogue), ROOT))


def findings(text: str, catalogue: Catalogue) -> str:
    """Paragraphs that say what was found, without those that are not true, or not yet known."""

    def stands(run: str, claim: str, word: str) -> bool:
        if run:
            return bool(ran(catalogue, catalogue.entries[run]))
        return judged(*catalogue.claim(claim), catalogue).word == word

    return WHEN.sub(lambda one: f"{one[4]}\n" if stands(one[1], one[2], one[3]) else "", text)


def tables(text: str, catalogue: Catalogue) -> str:
    said: set[str] = set()  # runs of which it was told what is smaller than in the paper
    return SHOWN.sub(lambda found: shown(found[1], catalogue, said), text)


def wrapped(text: str) -> str:
    """Paragraphs and list items in lines of WIDTH: figures are shorter than their references."""
    blocks, fenced = [], False
    for block in re.split(r"\n{2,}", text):  # a table of which there is nothing leaves a gap
        fence = block.count("```") % 2 == 1
        if fenced or "```" in block or block.startswith(("|", "#", "<")):
            fenced ^= fence
            blocks.append(block)
            continue
        items = re.split(r"\n(?=- )", block)
        blocks.append("\n".join(_folded(item) for item in items))
    return "\n\n".join(blocks).rstrip() + "\n"


def _folded(item: str) -> str:
    """A command in backticks stays on one line: it is copied."""
    inside = "  " if item.startswith("- ") else ""
    words = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", HARD), " ".join(item.split()))
    lines = textwrap.fill(
        words, WIDTH, subsequent_indent=inside, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace(HARD, " ")


def judged(entry: Entry, claim: verdicts.Claim, catalogue: Catalogue) -> verdicts.Verdict:
    known = {name: runs.found() for name, runs in catalogue.runs.items() if runs.config}
    return verdicts.verdict(claim, lambda runs, row: known[runs].get(row, []), entry.runs[0])


def claims(text: str, catalogue: Catalogue) -> str:
    def line(found: re.Match[str]) -> str:
        entry, claim = catalogue.claim(found[1])
        verdict = judged(entry, claim, catalogue)
        if not verdict.word:
            some = f" {verdicts.evidence(verdict)}." if verdict.outcomes else ""
            return f"- *Not judged yet*: {claim.says}.{some}\n"
        why = f" {found[3].strip()}" if verdict.word == found[2] and found[3].strip() else ""
        if verdict.word != found[2] and found[3].strip():
            print(f"{claim.id}: '{verdict.word}' by now, its reason was written for '{found[2]}'; "
                  "left out", file=sys.stderr)  # fmt: skip
        said = verdicts.evidence(verdict)
        return f"- **{WORDS[verdict.word]}**: {claim.says}. {said}.{why}\n"

    return CLAIM.sub(line, text)


def shown(name: str, catalogue: Catalogue, said: set[str]) -> str:
    entry = catalogue.entries.get(name)
    if entry is None:
        known = paper_tables.MORE | audit_tables.TABLES
        if name not in known:
            raise UnknownFigureError(f"there is no table called '{name}'")
        return known[name]().rstrip()
    again = f"`python -m experiments.papers --only {name}`"
    if not ran(catalogue, entry):
        return f"*Not run yet*: {again}." + f" {entry.notes}" * bool(entry.notes)
    make = paper_tables.MORE.get(name) or (lambda: paper_tables.entry_table(catalogue, name))
    return f"{make().rstrip()}\n\n{below(catalogue, entry, again, said)}"


def ran(catalogue: Catalogue, entry: Entry) -> int:
    """How many runs there are of it; of a command, whether its file is there."""
    files = [catalogue.runs[name] for name in entry.runs]
    if any(runs.command for runs in files):
        return sum(runs.results_file("machine").is_file() for runs in files)
    return sum(len(runs) for _, _, runs in paper_tables.found(catalogue, entry))


def lacking(catalogue: Catalogue, entry: Entry) -> int:
    """How many of the runs that stand for it are still to be made."""
    if not (wanted := paper_tables.asked(catalogue, entry)):  # a command's file has no seeds
        return 0
    there = {
        (runs.name, row, run["seed"])
        for runs, row, several in paper_tables.found(catalogue, entry)
        for run in several
    }
    return len(set(wanted) - there)


def below(catalogue: Catalogue, entry: Entry, again: str, said: set[str]) -> str:
    """What was scaled down, where each run is told of, and how to repeat it."""
    there = [catalogue.runs[name] for name in entry.runs]
    there = [runs for runs in there if "machine" in runs.scales]
    there = [runs for runs in there if runs.results_file("machine").is_file()]
    files = [runs.results_file("machine").relative_to(ROOT) for runs in there]
    links = ", ".join(f"[{file.name}]({file})" for file in files)
    missing = [runs.called or runs.name for name in entry.runs
               if (runs := catalogue.runs[name]) not in there]  # fmt: skip
    parts = [entry.notes, smaller(there, said)]
    parts += [f"Not run yet: {', '.join(missing)}."] if missing else []
    made = [paper_tables.maker([{"made": runs.made}]) for runs in there if runs.made]
    parts += [f"Run: {', '.join(made)}."] * bool(made)
    return " ".join(part for part in [*parts, f"Each run: {links}. Again: {again}."] if part)


def smaller(there: Iterable[Runs], said: set[str]) -> str:
    """Of each of these runs once on the page."""
    scaled = [runs for runs in there if runs.scaled]
    new = [runs for runs in scaled if runs.name not in said]
    said |= {runs.name for runs in new}
    if not new:
        return "Smaller than in the paper, as said above." if scaled else ""
    if len(scaled) == 1:
        return f"Smaller than in the paper: {new[0].scaled}."
    each = " ".join(f"{runs.called or runs.name}: {runs.scaled}." for runs in new)
    return f"Smaller than in the paper. {each}"


def standing(catalogue: Catalogue) -> str:
    """A table of several data sets is one table; an entry may stand for several."""
    states: dict[tuple[str, str], set[str]] = {}
    for entry in catalogue.entries.values():
        for part in PART_OF_PAPER.findall(entry.what):
            states.setdefault((entry.paper, part), set()).add(state(catalogue, entry))
    full, none = (sum(found == {one} for found in states.values()) for one in ("full", "none"))
    part = len(states) - full - none
    return (
        f"The papers have {len(states)} tables and figures of results. Run here, smaller: {full} "
        f"in full, {part} in part, {none} not yet."
    )


def state(catalogue: Catalogue, entry: Entry) -> str:
    if not ran(catalogue, entry):
        return "none"
    return "part" if lacking(catalogue, entry) else "full"


def overview(catalogue: Catalogue) -> str:
    rows = []
    for entry in catalogue.entries.values():
        words = [judged(entry, claim, catalogue).word for claim in entry.claims]
        counts = [(word, words.count(word)) for word in WORDS if word in words]
        said = ", ".join(f"{word}: {count}" for word, count in counts) or "–"
        here, lacks = how_many(catalogue, entry), entry.left_out or "–"
        rows.append([entry.paper, entry.what, entry.shows, here, lacks, said])
    heads = ("paper", "where", "what it shows", "here", "left out", "claims")
    return markdown(heads, rows).rstrip()


def how_many(catalogue: Catalogue, entry: Entry) -> str:
    if not ran(catalogue, entry):
        return "not run yet"
    if any(catalogue.runs[name].command for name in entry.runs):
        return "one study"
    every, left = len(paper_tables.asked(catalogue, entry)), lacking(catalogue, entry)
    return f"{every - left} of {every} runs" if left else "1 run" if every == 1 else f"{every} runs"


def main() -> None:
    try:
        made = page()
    except UnknownFigureError as fault:
        raise SystemExit(f"results: {fault}") from fault
    if "--check" in sys.argv:
        raise SystemExit(0 if PAGE.read_text() == made else "not current, run make results")
    PAGE.write_text(made)


if __name__ == "__main__":
    main()
