"""A real browser that opens real pages. `make test-browser` installs both and says where the browser
is (LEXFED_BROWSER); other test runs do not look here.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

collect_ignore_glob = [] if os.environ.get("LEXFED_BROWSER") else ["test_*.py"]

SCREENS = {
    "desktop, light": (1280, 900, "light"),
    "desktop, dark": (1280, 900, "dark"),
    "phone, light": (390, 844, "light"),
    "phone, dark": (390, 844, "dark"),
}


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(
            executable_path=os.environ["LEXFED_BROWSER"],
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield found
        found.close()


@dataclass
class Opened:
    """A page, and all that it said and asked for."""

    page: "Page"
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: "Browser") -> Iterator[Open]:
    """Open a file on a screen, and wait until it is drawn."""
    contexts = []

    def open_(path: Path, screen: str = "desktop, light", scripts: bool = True) -> Opened:
        width, height, scheme = SCREENS[screen]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            java_script_enabled=scripts,
        )
        contexts.append(context)
        one = Opened(context.new_page())
        one.page.on("console", lambda message: one.said.append(f"{message.type}: {message.text}"))
        one.page.on("pageerror", lambda error: one.said.append(f"error: {error}"))
        one.page.on("dialog", lambda dialog: one.said.append(f"dialog: {dialog.message}"))
        one.page.on("request", lambda request: one.asked.append(request.url))
        one.page.goto(path.resolve().as_uri())
        if scripts:
            one.page.wait_for_selector("html[data-drawn]", state="attached", timeout=30_000)
        return one

    yield open_
    for context in contexts:
        context.close()


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
