"""A wheel, installed in an empty environment, works from an empty folder: the demo, predictions
from one of its runs, an audit.
"""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from lexfed import __version__

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def call(*words: object, cwd: Path) -> str:
    done = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def lexfed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--quiet")
    call(*pip, "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("lexfed-*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    call(python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel, cwd=folder)
    return folder / "env" / "bin" / "lexfed"


def test_a_wheel_needs_no_checkout(lexfed: Path, tmp_path: Path) -> None:
    assert call(lexfed, "--version", cwd=tmp_path).strip() == f"lexfed {__version__}"
    told = call(lexfed, "demo", "--out", "demo", cwd=tmp_path)
    page = tmp_path / "demo" / "report.html"
    assert str(page.relative_to(tmp_path)) in told
    assert page.stat().st_size > 100_000
    (tmp_path / "new.txt").write_text("a wonderful film\na dull waste of time\n")
    run = tmp_path / "demo" / "fedavg"
    labels = call(lexfed, "predict", run, "--in", "new.txt", cwd=tmp_path)
    assert len(labels.splitlines()) >= 2
    audited = call(lexfed, "audit", "demo/leak.toml", "--out", "audit", cwd=tmp_path)
    assert "audit" in audited
    assert list((tmp_path / "audit").glob("*.html"))
