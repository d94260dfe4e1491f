"""What the documentation tells a reader to type is typed here; its figures are those of result
files; the site has no broken link and asks nobody for anything.

README's commands are run by `make test`, on small data; all pages, word by word, by `make
test-docs`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import paper_tables, run_blocks

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
RUN = [page for page in PAGES if run_blocks.read(page).blocks]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def typed(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


# --- quick: part of `make test` -------------------------------------------------------------------


def test_the_readme_runs() -> None:
    """The commands as they stand; quick experiments and tables of texts are small ones."""
    done = typed("tools/run_blocks.py", "--small", "README.md")
    assert done.returncode == 0, done.stderr[-3000:]


def test_few_blocks_are_left_out_and_each_says_why() -> None:
    blocks = [(page, block) for page in PAGES for block in run_blocks.read(page).blocks]
    left = [f"{name(page)}:{block.line} {block.why_not}" for page, block in blocks if block.why_not]
    print(f"{len(blocks) - len(left)} blocks are run, {len(left)} are not:", *left, sep="\n")
    assert len(left) <= 8
    assert len(blocks) - len(left) >= 50


def test_every_block_is_of_a_kind_that_is_run_or_is_what_a_program_prints() -> None:
    for page in PAGES:
        kinds = re.findall(r"^ *```(\w*)[^\n]*\n.*?^ *```$", page.read_text(), re.M | re.S)
        assert set(kinds) <= {*run_blocks.KINDS, "text"}, name(page)
        assert not re.search(r"^    lexfed ", page.read_text(), re.M), "an indented command"


@pytest.mark.docs
def test_a_page_that_fails_is_told_by_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for block, said in {
        "```bash\ntrue\nfalse\ntrue\n```": "exit code 1",
        "```console\n$ lexfed no-such-command\nprinted\n```": "No such command",
        "```python\n1 / 0\n```": "division by zero",
        "```toml\nrounds = 3\nruonds = 4\n```": "did you mean",
        "```toml\n[door]\nsoket = 'here'\n```": "did you mean",
    }.items():
        page.write_text(f"Text.\n\n```text\nnot run\n```\n\n{block}\n")
        done = typed("tools/run_blocks.py", page)
        assert done.returncode == 1, block
        assert "page.md:7 failed" in done.stderr, block
        assert said in done.stderr, block


def test_tables_of_figures_are_those_of_the_result_files() -> None:
    used = []
    for page in paper_tables.PAGES:
        text = page.read_text()
        used += [found[2] for found in paper_tables.MARKED.finditer(text)]
        assert paper_tables.filled(text) == text, f"{name(page)}: run make docs"
    assert sorted(used) == sorted(paper_tables.TABLES)
    assert typed("-m", "tools.paper_tables", "--check").returncode == 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_what_they_print(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert cells[0]["source"][0].startswith("# ")


def test_there_is_a_notebook_for_each_question() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["agreed", "learned", "private"]


# --- `make test-docs` -----------------------------------------------------------------------------


@pytest.mark.docs
@pytest.mark.parametrize("page", RUN, ids=name)
def test_a_page_runs_word_by_word(page: Path) -> None:
    done = typed("tools/run_blocks.py", page)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    done = typed("tools/notebooks.py", path.stem)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = typed("-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.docs
def test_the_site_has_every_page_and_no_link_is_broken(site: Path) -> None:
    """MkDocs is strict about links of pages; what it made is looked at once more, link by link."""
    for page in ("index", "questions", "data-way", "own-data", "own-method", "using", "defences",
                 "deployment", "threat-model", "configuration", "api", "papers/fedevocab",
                 "papers/word2vec", "papers/tokenizer", "notebooks/private"):  # fmt: skip
        assert (site / f"{page}.html").exists(), page
    names = {path: set(Tags.of(path).names) for path in site.rglob("*.html")}
    for page in names:
        for link in Tags.of(page).links:
            if re.match(r"[a-z]+:", link) or page.name == "404.html":
                continue
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            assert target.exists(), f"{page.relative_to(site)}: {link}"
            if anchor and target.suffix == ".html" and not anchor.startswith("__"):
                assert anchor in names[target], f"{page.relative_to(site)}: {link}"


@pytest.mark.docs
def test_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        for asked in Tags.of(page).asked:
            assert not re.match(r"(https?:)?//", asked), f"{page.relative_to(site)}: {asked}"
    for style in site.rglob("*.css"):
        text = style.read_text()
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", text), style.name


@pytest.mark.docs
def test_the_reference_tells_every_public_function(site: Path) -> None:
    page = (site / "api.html").read_text()
    for public in ("run", "resume", "audit", "load_corpus", "partition", "open_run", "simulate"):
        assert f'id="lexfed.api.{public}"' in page, public
    assert "A row for each text: its label" in page, "what Run.predict says of itself"


class Tags(HTMLParser):
    """Of a page: where it links to, what can be linked to, what a browser asks for by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: list[str] = []
        self.asked: list[str] = []

    @classmethod
    def of(cls, path: Path) -> "Tags":
        one = cls()
        one.feed(path.read_text())
        return one

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value for key, value in attrs if value}
        self.names += [found[key] for key in ("id", "name") if key in found]
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.asked += list(self._asked(tag, found))

    @staticmethod
    def _asked(tag: str, found: dict[str, str]) -> Iterator[str]:
        if "src" in found:
            yield found["src"]
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            yield found.get("href", "")
