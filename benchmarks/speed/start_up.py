"""What `lexfed run` spends before its first round, on a small corpus, beyond `import torch`.

    python start_up.py FOLDER

CPU seconds of the process, by its own clock: of `lexfed run` until its server's program begins,
until its first round is over, and until it has ended, report and all; and of `import torch` alone.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CLIENTS, TEXTS = 10, 40
TORCH = "import time, torch; print(time.process_time())"


def write(folder: Path) -> Path:
    """A small corpus with two classes, and what to do with it."""
    folder.mkdir(parents=True, exist_ok=True)
    draws, words = random.Random(0), [f"word{number}" for number in range(300)]
    with (folder / "texts.jsonl").open("w") as file:
        for number in range(CLIENTS * TEXTS):
            said = [*draws.choices(words, k=12), ("bad", "good")[number % 2]]
            row = {"text": " ".join(said), "label": number % 2}
            file.write(json.dumps(row) + "\n")
    path = json.dumps(str((folder / "texts.jsonl").resolve()))
    (folder / "small.toml").write_text(
        f"""name = "small"
rounds = 2
method = "start_clock:METHOD"
[data]
name = {path}
clients = {CLIENTS}
partition = "iid"
[vocabulary]
corpus = {path}
size = 300
[model]
embedding = 16
hidden = 16
[cohort]
size = 4
[train]
optimizer = "sgd"
lr = 0.5
"""
    )
    return folder / "small.toml"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parent.parent), str(HERE)))}


def run(config: Path, out: Path) -> dict[str, object]:
    """One run; what its clock said."""
    command = [sys.executable, "-m", "lexfed.cli", "run", str(config), "--out", str(out)]
    said: dict[str, object] = {}
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            if line.startswith("{"):
                said |= json.loads(line)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
    return {**said, "whole_cpu_s": usage.ru_utime + usage.ru_stime}


def import_torch() -> float:
    words = [sys.executable, "-c", TORCH]
    return float(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    folder = Path(sys.argv[1])
    out = folder / "run"
    seen = run(write(folder), out)
    seen.pop("modules")
    torch_s = import_torch()
    beyond = {
        name.replace("cpu_s", "beyond_torch_s"): float(str(value)) - torch_s
        for name, value in seen.items()
    }
    print(json.dumps({"runner": "lexfed run", "import_torch_s": torch_s, **seen, **beyond}))


if __name__ == "__main__":
    main()
