"""The pictures in README and docs: the demo's page and a run's report, as a browser shows them.

    make pictures        (or: python tools/pictures.py [--demo FOLDER])

Runs `lexfed demo`, unless a folder of one is given, opens its pages in chromium (LEXFED_BROWSER
names it) and writes docs/pictures/*.png. docs/pictures/made-of.json remembers what code they were
made with; a test says when that has changed since.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
MADE_OF = PICTURES / "made-of.json"
# name: the page in a demo's folder, width, height, scheme
SHOTS = {
    "demo": ("report.html", 1100, 900, "light"),
    "demo-phone": ("report.html", 390, 780, "dark"),
    "report": ("fedavg/report.html", 1100, 820, "light"),
}


def made_of() -> dict[str, str]:
    """What decides how pages look, by file."""
    package = ROOT / "lexfed"
    folders = (package / "report", package / "report" / "assets", package / "demo")
    files = sorted(p for folder in folders for p in folder.iterdir() if p.is_file())
    configured = sorted((ROOT / "experiments" / "quick" / "story").glob("*.toml"))
    return {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in (*files, *configured)
    }


def shoot(demo: Path) -> None:
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    browser_at = os.environ.get("LEXFED_BROWSER") or shutil.which("chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=browser_at, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        for name, (page, width, height, scheme) in SHOTS.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            tab = context.new_page()
            tab.goto((demo / page).resolve().as_uri())
            tab.wait_for_timeout(1500)  # until its charts are drawn
            tab.screenshot(path=PICTURES / f"{name}.png")
            context.close()
        browser.close()
    MADE_OF.write_text(json.dumps(made_of(), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=Path, help="the folder of a demo that was run")
    options = parser.parse_args()
    if options.demo is not None:
        shoot(options.demo)
        return
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "lexfed.cli", "demo", "--out", "demo"]
        # from there, so that pages name no folder of this machine
        subprocess.run(words, check=True, cwd=folder)
        shoot(Path(folder) / "demo")


if __name__ == "__main__":
    main()
