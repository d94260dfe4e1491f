"""The pages of runs, comparisons and audits in a browser, at desktop and phone width, light and
dark.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lexfed import cli
from tests.browser.conftest import SCREENS, Open, Opened, working_in
from tests.conftest import BAD, GOOD, ROOT
from tests.unit.test_contrast import contrast

QUICK = ROOT / "experiments" / "quick"
SCRIPT = "<script>alert(1)</script>"
PAGES = ("classifier", "vectors", "language", "compare", "audit")


def lexfed(*words: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["lexfed", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    assert not exit_.value.code, words


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Small runs of every kind, on texts, labels and sources that would be scripts."""
    folder = tmp_path_factory.mktemp("pages")
    rows = [
        {"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {SCRIPT} {i}",
         "label": (f"bad {SCRIPT}", "good <b>")[i % 2], "source": f"{SCRIPT} {i % 3}"}
        for i in range(120)
    ]  # fmt: skip
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own = ("data.name=texts.jsonl", "data.limit=none", "data.partition=source", "data.clients=3",
           "vocabulary.corpus=clients", "rounds=4", "cohort.size=2", "evaluation.every=1",
           "defences.minimum_words=1000")  # fmt: skip
    words = ("data.limit=600", "data.clients=4", "rounds=3", "word2vec.dimension=10",
             "agreement.minimum=3", "evaluation.every=1")  # fmt: skip
    language = ("data.clients=60", "data.unseen=10", "rounds=4", "tokenizer_for_free.switch=[2]",
                "tokenizer_for_free.sample_words=2000", "language_model.width=16",
                "evaluation.samples=2", "privacy.noise=1.0", "privacy.epsilon=none",
                "evaluation.every=1")  # fmt: skip
    audit = ("audit.sentences=[2]", "audit.clients=2", "data.clients=6", "data.limit=1600",
             "audit.examples=1")  # fmt: skip
    with working_in(folder):
        lexfed("run", QUICK / "fedavg.toml", "--out", "one", *sets(*own))
        lexfed("run", QUICK / "fedavg.toml", "--out", "two", *sets(*own, "method=fedprox"))
        lexfed("compare", "one", "two", "--out", "compare.html")
        lexfed("run", QUICK / "agreed.toml", "--out", "vectors", *sets(*words))
        lexfed("run", QUICK / "learned.toml", "--out", "language", *sets(*language))
        lexfed("audit", QUICK / "audit.toml", "--out", "audit", *sets(*audit))
    return {
        "classifier": folder / "one/report.html",
        "vectors": folder / "vectors/report.html",
        "language": folder / "language/report.html",
        "compare": folder / "compare.html",
        "audit": folder / "audit/audit.html",
    }


def check_drawn(one: Opened) -> int:
    """Every chart has marks of some size; how many there are."""
    charts = one.page.locator("figure[data-chart]")
    for chart in charts.all():
        svg = chart.locator("svg")
        title = chart.locator("h3").inner_text()
        assert svg.count() == 1, title
        size = svg.bounding_box()
        assert size is not None, title
        assert size["width"] > 200, title
        assert size["height"] > 60, title
        marks = svg.locator(".mark-symbol path, .mark-line path, .mark-rect path, .mark-rule line")
        assert marks.count() > 0, title
        assert "NaN" not in svg.inner_html(), title
    return charts.count()


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_drawn_and_asks_for_nothing(
    name: str, screen: str, pages: Mapping[str, Path], opened: Open
) -> None:
    one = opened(pages[name], screen)
    assert one.said == [], "nothing on the console"
    assert one.asked == [pages[name].resolve().as_uri()], "no request leaves the page"
    assert one.page.get_attribute("html", "data-drawn") == "yes"
    assert check_drawn(one) >= 2
    width = SCREENS[screen][0]
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width, "no sideways scroll"


def test_tabs_open_by_mouse_and_keyboard(pages: Mapping[str, Path], opened: Open) -> None:
    page = opened(pages["classifier"]).page
    tabs, panels = page.get_by_role("tab"), page.locator(".tab")
    assert tabs.count() == panels.count() >= 3

    def is_open(number: int) -> None:
        shown = [panel.is_visible() for panel in panels.all()]
        assert shown == [n == number for n in range(len(shown))]
        states = [tab.get_attribute("aria-selected") for tab in tabs.all()]
        assert states == ["true" if n == number else "false" for n in range(len(shown))]

    is_open(0)
    for number in range(tabs.count()):
        tabs.nth(number).click()
        is_open(number)
    page.keyboard.press("Home")
    is_open(0)
    page.keyboard.press("ArrowRight")
    is_open(1)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    is_open(tabs.count() - 1)


FOCUS = """() => {
  const e = document.activeElement, s = getComputedStyle(e), box = e.getBoundingClientRect();
  return { tag: e.tagName, role: e.getAttribute("role"), inside: e.closest(".tab")?.id ?? null,
    name: (e.getAttribute("aria-label") || e.textContent || "").trim().slice(0, 60),
    told: Boolean(e.getAttribute("aria-label")) || ["BUTTON", "SUMMARY", "A"].includes(e.tagName),
    ring: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2,
    number: [...document.querySelectorAll("*")].indexOf(e),
    seen: box.bottom > 0 && box.top < innerHeight && box.width > 0 };
}"""
REACHABLE = """() => [...document.querySelectorAll("a[href], button, summary, [tabindex]")]
  .filter((e) => e.tabIndex >= 0 && e.checkVisibility({ visibilityProperty: true }))
  .map((e) => [...document.querySelectorAll("*")].indexOf(e))"""


@pytest.mark.parametrize("name", PAGES)
def test_all_can_be_reached_by_keyboard_and_is_seen_where_it_is(
    name: str, pages: Mapping[str, Path], opened: Open
) -> None:
    """Tab goes through whatever can be opened or scrolled, with a ring around it, on the screen,
    and with a name that a screen reader can tell; then it leaves the page: nobody is trapped.
    """
    page = opened(pages[name]).page
    for summary in page.locator("summary").all():  # what is folded hides tables that scroll
        summary.evaluate("e => { e.parentElement.open = true }")
    wanted, reached = page.evaluate(REACHABLE), []
    for _ in range(len(wanted)):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS)
        assert focus["ring"], focus
        assert focus["seen"], focus
        assert focus["name"], focus
        assert focus["told"], "what only scrolls has a label"
        reached.append(focus["number"])
    assert sorted(reached) == sorted(wanted)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement === document.body"), "and out of the page"


def test_every_chart_is_read_with_keys_alone(pages: Mapping[str, Path], opened: Open) -> None:
    """Tab to the tabs, an arrow to the next one, Tab to its first chart's numbers, Enter."""
    page = opened(pages["classifier"]).page
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUS)["role"] == "tab"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    inside = page.evaluate(FOCUS)
    assert inside["inside"] == "tab-1", "the panel that is open"
    while inside["tag"] != "SUMMARY":
        page.keyboard.press("Tab")
        inside = page.evaluate(FOCUS)
        assert inside["tag"] != "BODY", "there is a chart on the tab"
    for shown in (True, False):
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.parentElement.open") is shown
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.parentElement.open") is True


@pytest.mark.parametrize("screen", ["desktop, light", "phone, dark"])
def test_a_point_tells_its_numbers(screen: str, pages: Mapping[str, Path], opened: Open) -> None:
    page = opened(pages["classifier"], screen).page
    figure = page.locator("figure", has_text="Accuracy by round")
    figure.locator(".mark-symbol.role-mark path").first.hover(force=True)
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for(timeout=5_000)
    told = tip.inner_text()
    assert "round" in told
    assert "%" in told


def test_numbers_stand_below_each_chart(pages: Mapping[str, Path], opened: Open) -> None:
    page = opened(pages["vectors"]).page
    figure = page.locator("figure[data-chart]").first
    assert not figure.locator("table").is_visible()
    figure.locator("summary").focus()
    page.keyboard.press("Enter")
    assert figure.locator("table").is_visible()
    assert figure.locator("tbody tr").count() >= 3


def test_a_script_in_a_corpus_shows_as_text(pages: Mapping[str, Path], opened: Open) -> None:
    one = opened(pages["classifier"])
    one.page.get_by_role("tab", name="Clients").click()
    assert SCRIPT in one.page.locator("main").inner_text()
    assert f"bad {SCRIPT}" in one.page.locator("svg text").all_text_contents(), "in a legend"
    assert one.said == [], "no dialog was opened"


def test_no_other_script_runs_and_no_request_is_let_out(
    pages: Mapping[str, Path], opened: Open
) -> None:
    """Should escaping ever fail."""
    one = opened(pages["audit"])
    ran = one.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
        " document.body.append(s); return window.bad === undefined }"
    )
    assert ran is True
    let_out = one.page.evaluate(
        "() => fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => String(error))"
    )
    assert let_out != "sent"
    assert any("Content Security Policy" in line for line in one.said)


def test_paper_shows_everything_in_dark_ink(pages: Mapping[str, Path], opened: Open) -> None:
    page = opened(pages["language"], "phone, dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert all(panel.is_visible() for panel in page.locator(".tab").all())
    assert not page.get_by_role("tablist").is_visible()
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(0, 0, 0)"


def test_without_scripts_all_can_be_read(pages: Mapping[str, Path], opened: Open) -> None:
    page = opened(pages["classifier"], scripts=False).page
    assert all(panel.is_visible() for panel in page.locator(".tab").all())
    assert page.locator("details table").count() >= 4


@pytest.mark.parametrize("screen", ["desktop, light", "desktop, dark"])
def test_colours_can_be_told_from_the_paper(
    screen: str, pages: Mapping[str, Path], opened: Open
) -> None:
    """WCAG 2.2: 4.5 to 1 for text, 3 to 1 for lines and points."""
    page = opened(pages["audit"], screen).page
    colours = page.evaluate(
        "() => { const s = getComputedStyle(document.documentElement); const o = {};"
        " for (const n of ['paper', 'ink', 'soft', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8',"
        " 'leak']) o[n] = s.getPropertyValue('--' + n).trim(); return o }"
    )
    paper = colours["paper"]
    assert min(contrast(colours[name], paper) for name in ("ink", "soft")) >= 4.5
    assert contrast(colours["ink"], colours["leak"]) >= 4.5
    assert min(contrast(colours[f"c{n}"], paper) for n in range(1, 9)) >= 3


def test_the_embedded_script_is_what_its_package_makes() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/charts.py", "--check"], check=False)
    assert done.returncode == 0
