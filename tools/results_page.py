"""RESULTS.md, from experiments/results.template.md and committed result files.

    python -m tools.results_page           write it
    python -m tools.results_page --check   say whether it is current

In the template, besides references (tools/references.py):

    {{overview}}              every table and figure of the papers: what was run, and the verdicts
    {{table NAME}}            of an entry of the catalogue, with what was scaled down, the result
                              files and the command, or that it was not run; or another table of
                              tools/paper_tables.py, tools/audit_tables.py
    - {{claim ID: VERDICT}} Why.   a claim of the catalogue: its verdict is computed; the reason
                              stands only while it is the one that it was written for
"""

import re
import sys
import textwrap

from experiments.papers import verdicts
from experiments.papers.catalogue import Catalogue, Entry
from tools import audit_tables, paper_tables
from tools.references import UnknownFigureError, resolved
from tools.result_files import ROOT, markdown

TEMPLATE = ROOT / "experiments" / "results.template.md"
PAGE = ROOT / "RESULTS.md"
WIDTH = 110
HARD = "\x1f"  # stands for a space where no line may end
SHOWN = re.compile(r"\{\{table (.+?)\}\}")
CLAIM = re.compile(r"^- \{\{claim (\S+): (holds|in part|does not)\}\} ?(.*(?:\n  .*)*)\n", re.M)
WORDS = {verdicts.HOLDS: "Holds", verdicts.PART: "Holds in part", verdicts.NOT: "Does not hold"}
MADE = "<!-- made by `make results` from experiments/results.template.md and result files -->\n"


def page(catalogue: Catalogue = paper_tables.CATALOGUE) -> str:
    text = TEMPLATE.read_text().partition("-->\n")[2].lstrip()
    text = claims(text, catalogue)
    text = text.replace("{{overview}}", overview(catalogue))
    text = SHOWN.sub(lambda found: shown(found[1], catalogue), text)
    return MADE + wrapped(resolved(text, ROOT))


def wrapped(text: str) -> str:
    """Paragraphs and list items in lines of WIDTH: figures are shorter than their references."""
    blocks, fenced = [], False
    for block in text.split("\n\n"):
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
            return f"- *Not run yet*: {claim.says}.\n"
        why = f" {found[3].strip()}" if verdict.word == found[2] and found[3].strip() else ""
        if verdict.word != found[2] and found[3].strip():
            print(f"{claim.id}: '{verdict.word}' by now, its reason was written for '{found[2]}'; "
                  "left out", file=sys.stderr)  # fmt: skip
        said = verdicts.evidence(verdict)
        return f"- **{WORDS[verdict.word]}**: {claim.says}. {said}.{why}\n"

    return CLAIM.sub(line, text)


def shown(name: str, catalogue: Catalogue) -> str:
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
    return f"{make().rstrip()}\n\n{below(catalogue, entry, again)}"


def ran(catalogue: Catalogue, entry: Entry) -> int:
    """How many runs there are of it; of a command, whether its file is there."""
    files = [catalogue.runs[name] for name in entry.runs]
    if any(runs.command for runs in files):
        return sum(runs.results_file("machine").is_file() for runs in files)
    return sum(len(runs) for _, _, runs in paper_tables.found(catalogue, entry))


def below(catalogue: Catalogue, entry: Entry, again: str) -> str:
    """What was scaled down, where each run is told of, and how to repeat it."""
    there = [catalogue.runs[name] for name in entry.runs]
    there = [runs for runs in there if "machine" in runs.scales]
    there = [runs for runs in there if runs.results_file("machine").is_file()]
    scaled = " ".join(f"Scaled down: {runs.scaled}." for runs in there[:1] if runs.scaled)
    files = [runs.results_file("machine").relative_to(ROOT) for runs in there]
    links = ", ".join(f"[{file.name}]({file})" for file in files)
    lacking = [name for name in entry.runs if name not in {runs.name for runs in there}]
    missing = f"Not run yet: {', '.join(lacking)}. " if lacking else ""
    notes = f"{entry.notes} " if entry.notes else ""
    return f"{notes}{scaled} {missing}Each run: {links}. Again: {again}.".strip()


def overview(catalogue: Catalogue) -> str:
    rows = []
    for entry in catalogue.entries.values():
        words = [judged(entry, claim, catalogue).word for claim in entry.claims]
        counts = [(word, words.count(word)) for word in WORDS if word in words]
        number = ran(catalogue, entry)
        one = any(catalogue.runs[name].command for name in entry.runs)
        many = "1 run" if number == 1 else f"{number} runs"
        runs = "not run yet" if not number else "one study" if one else many
        said = ", ".join(f"{word}: {count}" for word, count in counts) or "–"
        rows.append([entry.paper, entry.what, entry.shows, runs, said])
    heads = ("paper", "where", "what it shows", "here", "claims")
    return markdown(heads, rows).rstrip()


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
