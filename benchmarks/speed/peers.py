"""The peers' own environments, made on the first call, and how a runner is started in one."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import watching

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TORCH = "torch==2.13.0"
# an environment, and what is installed in it
PEERS = {
    "pfl": (TORCH, "pfl==0.6.0"),
    "flower": (TORCH, "flwr[simulation]==1.41.0"),
    "plots": ("vl-convert-python==1.9.0.post1",),
}
SHOWN = {  # versions on the page
    "lexfed": ("torch", "numpy"),
    "pfl": ("pfl", "torch"),
    "flower": ("flwr", "ray", "torch"),
}


@dataclass(frozen=True)
class Environments:
    """Pythons by the peer's name; lexfed's is ours."""

    folder: Path
    scratch: Path

    def python(self, peer: str) -> str:
        """Installed once: a file beside it says what is in it."""
        if peer == "lexfed":
            return sys.executable
        home = self.folder.resolve() / peer
        python, ready = home / "bin" / "python", home / "ready.json"
        wanted = json.dumps(PEERS[peer])
        if not (ready.exists() and ready.read_text() == wanted):
            print(f"installing {', '.join(PEERS[peer])} in {home}", flush=True)
            if not python.exists():
                subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            words = [str(python), "-m", "pip", "install", "--quiet", *PEERS[peer]]
            subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
            ready.write_text(wanted)
        return str(python)

    def variables(self, peer: str) -> dict[str, str]:
        """Nobody phones home, and nobody finds another's modules."""
        path = os.pathsep.join(map(str, (ROOT, HERE) if peer == "lexfed" else (HERE,)))
        return {
            **os.environ,
            "PYTHONPATH": path,
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": str(self.scratch / "flwr"),
        }

    def run(
        self, peer: str, words: Sequence[object], every: float | None = None
    ) -> watching.Watched:
        """A script of this folder, or `-m` and a module."""
        command = [self.python(peer), *map(str, words)]
        return watching.watch(command, self.variables(peer), every)

    def versions(self, peer: str) -> dict[str, str]:
        names = ", ".join(f"{name!r}: version({name!r})" for name in SHOWN[peer])
        code = (
            f"import json; from importlib.metadata import version; print(json.dumps({{{names}}}))"
        )
        return dict(json.loads(self.run(peer, ["-c", code]).lines[-1].text))


def said(seen: watching.Watched) -> dict[str, float]:
    """A runner's own figures: its last line of JSON."""
    lines = [line.text for line in seen.lines if line.text.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else {}
