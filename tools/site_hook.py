"""What MkDocs does besides: pages may link to files of the repository outside docs/, and notebooks
are pages.

A linked file becomes a page of the site below `repository/`, so that no link leads out of it:
Markdown as it is, a program or a configuration as a block of code, anything else as the file.
"""

import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXECUTED = ROOT / ".notebooks"  # with what they printed; made by tools/notebooks.py
SHOWN = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".service": "ini", "": "text"}
ALWAYS = (ROOT / "RESULTS.md", ROOT / "CHANGELOG.md")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.M | re.S)


def on_files(files: "Files", config: Any) -> "Files":
    from mkdocs.structure.files import File

    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        own = files.get_file_from_path(f"notebooks/{notebook.name}")
        if own is not None:
            files.remove(own)
        executed = EXECUTED / notebook.name
        text = as_markdown(json.loads((executed if executed.exists() else notebook).read_text()))
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
    for path in sorted(outside()):
        uri = site_uri(path)
        if uri.endswith(".md"):
            files.append(File.generated(config, uri, content=shown(path)))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: "Page", config: Any, files: "Files") -> str:
    """Links as they lead within the site; within blocks of code nothing is a link."""
    here = page.file.src_uri
    return beside_fences(markdown, lambda text: LINK.sub(lambda m: _relinked(m, here), text))


def _relinked(link: re.Match[str], here: str) -> str:
    target = source_of(here).parent / link[1]
    path = Path(os.path.normpath(target))
    if not path.exists() or not path.is_relative_to(ROOT):
        return link[0]  # for MkDocs to complain of
    return f"]({posixpath.relpath(site_uri(path), posixpath.dirname(here))}{link[2] or ''})"


def site_uri(path: Path) -> str:
    """Where a file of the repository stands in the site."""
    if path.is_relative_to(DOCS):
        return (
            path.relative_to(DOCS)
            .with_suffix(".md" if path.suffix == ".ipynb" else path.suffix)
            .as_posix()
        )
    name = f"repository/{path.relative_to(ROOT).as_posix()}"
    if path.is_dir():
        return f"{name}/index.md"
    return f"{name}.md" if path.suffix in SHOWN else name


def source_of(uri: str) -> Path:
    """The file that a page was made of: its links are relative to it."""
    if not uri.startswith("repository/"):
        return DOCS / uri
    name = uri.removeprefix("repository/")
    whole = ROOT / name
    code = ROOT / name.removesuffix(".md")
    return code if not whole.exists() and code.is_file() else whole


def outside() -> set[Path]:
    """Every file beside docs/ that a page links to, or a page that is linked to, and so on."""
    found: set[Path] = set()
    waiting = [*DOCS.rglob("*.md"), *ALWAYS]
    found.update(ALWAYS)
    while waiting:
        page = waiting.pop()
        for target in links(page):
            if target.exists() and not target.is_relative_to(DOCS) and target not in found:
                found.add(target)
                inside = sorted(target.glob("*.*")) if target.is_dir() else []
                found.update(inside)
                waiting += [file for file in (target, *inside) if file.suffix == ".md"]
    return found


def links(page: Path) -> Iterator[Path]:
    for link in LINK.finditer(FENCE.sub("", page.read_text())):
        path = Path(os.path.normpath(page.parent / link[1]))
        if path.is_relative_to(ROOT):
            yield path


def shown(path: Path) -> str:
    """A file of the repository as a page."""
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        files = [file.name for file in sorted(path.glob("*.*"))]
        return f"# {name}\n\n" + "".join(f"- [{file}]({file})\n" for file in files)
    return f"# {name}\n\n`````{SHOWN[path.suffix]}\n{path.read_text().rstrip()}\n`````\n"


def beside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Change a page but for its blocks of code."""
    parts, end = [], 0
    for block in FENCE.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(markdown[end:])])


# --- notebooks ------------------------------------------------------------------------------------


def as_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as a page: its text, its code, and what that printed if it was executed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [_printed(output) for output in cell.get("outputs", [])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _printed(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""
