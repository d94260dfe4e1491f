"""The pictures in README and docs show the pages as they are."""

import json
import re

from tests.conftest import ROOT
from tools.pictures import MADE_OF, PICTURES, SHOTS, made_of


def test_pictures_were_taken_of_the_pages_as_they_are() -> None:
    taken, now = json.loads(MADE_OF.read_text()), made_of()
    changed = sorted(name for name in {*taken, *now} if taken.get(name) != now.get(name))
    assert not changed, "`make pictures` takes them again"


def test_every_picture_is_shown_and_every_one_shown_is_there() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    shown = {
        (page.parent / link).resolve()
        for page in pages
        for link in re.findall(r"!\[[^]]*\]\(([^)]+\.png)\)", page.read_text())
    }
    taken = {PICTURES / f"{name}.png" for name in SHOTS}
    assert {path.resolve() for path in taken} == shown
    for path in taken:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 600_000
