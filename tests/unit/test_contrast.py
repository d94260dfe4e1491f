"""Reports can be read by eyes that need contrast (WCAG 2.2 AA), in light, in dark and on paper:
computed from the style itself.
"""

import re

import pytest

from lexfed.report.frame import ASSETS

CSS = (ASSETS / "page.css").read_text()
LIGHT, DARK, PAPER = (
    dict(re.findall(r"--(\w+):\s*(#[0-9a-f]{6})", block))
    for block in re.findall(r":root \{(.*?)\}", CSS, re.S)
)
SCHEMES = {"light": LIGHT, "dark": DARK, "paper": PAPER}
TEXT = [  # what is written, and what it stands on, as the rules below say it
    ("ink", "paper"), ("soft", "paper"), ("ink", "faint"), ("ink", "leak"),
]  # fmt: skip


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def mixed(one: str, other: str, share: float) -> str:
    """CSS's color-mix(in srgb, one share, other)."""
    parts = [(int(one[n : n + 2], 16), int(other[n : n + 2], 16)) for n in (1, 3, 5)]
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in parts)


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # their own example
    assert mixed("#000000", "#ffffff", 0.5) == "#808080"


def test_every_scheme_says_every_colour() -> None:
    used = set(re.findall(r"var\(--(\w+)\)", CSS)) - {"v"}  # --v: how dark a cell of a matrix is
    assert all(scheme.keys() >= used for scheme in SCHEMES.values())
    assert LIGHT.keys() == DARK.keys() == PAPER.keys()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_has_four_and_a_half_to_one(scheme: str) -> None:
    colours = SCHEMES[scheme]
    for ink, ground in TEXT:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    (most,) = re.findall(r"calc\(var\(--v\) \* (\d+)%\)", CSS)  # of a matrix: the largest value
    for value in (0.0, 0.5, 1.0):
        cell = mixed(colours["heat"], colours["paper"], value * int(most) / 100)
        assert contrast(colours["ink"], cell) >= 4.5, value


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lines_points_and_the_ring_of_focus_have_three_to_one(scheme: str) -> None:
    colours = SCHEMES[scheme]
    (ring,) = re.findall(r":focus-visible \{ outline: 3px solid var\(--(\w+)\)", CSS)
    for name in (ring, *(f"c{n}" for n in range(1, 9))):
        assert contrast(colours[name], colours["paper"]) >= 3, name


def test_no_rule_writes_text_in_a_colour_of_its_own() -> None:
    """So that the pairs above are all there are."""
    rules = re.sub(r":root \{.*?\}", "", CSS, flags=re.S)
    said = re.findall(r"(?<![-\w])color:\s*([^;}\s]+)", rules)
    assert set(said) <= {"var(--ink)", "var(--soft)", "inherit"}, said
    grounds = re.findall(r"background:\s*([^;}]+?)\s*[;}]", rules)
    plain = {"none", "var(--paper)", "var(--faint)", "var(--leak)"}
    assert [g for g in grounds if g not in plain and "color-mix" not in g] == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_mark_that_shines_through_keeps_three_to_one(scheme: str) -> None:
    sources = [path.read_text() for path in sorted(ASSETS.parent.glob("*charts.py"))]
    shares = {
        float(found) for text in sources for found in re.findall(r'"opacity": ([\d.]+)', text)
    }
    assert len(shares) >= 2
    colours = SCHEMES[scheme]
    for name in (f"c{n}" for n in range(1, 9)):
        for share in shares:
            seen = mixed(colours[name], colours["paper"], share)
            assert contrast(seen, colours["paper"]) >= 3, (name, share)
