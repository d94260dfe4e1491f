"""A real federation on this machine: `make federation`.

Three organisations with film reviews of their own, each with a site process and a SuperNode, and a
server with a SuperLink, all with keys and TLS, on loopback. They train; one of them is killed in
the middle and comes back. It takes about three minutes, prints what happened, and leaves no
process behind. Everything is done with the commands that an organisation would type.

    python tools/federation.py [FOLDER]      default: a new folder below runs/
"""

import csv
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from lexfed.corpus.loading import Columns
from lexfed.corpus.sources import load
from lexfed.deployment.processes import free_port

NAMES = ("north", "south", "west")
TEXTS = 600  # of each organisation
ROUNDS = 6
CONFIG = f"""\
# What the three agreed on. Each keeps its words and its word table; the rest of the model travels.
name = "federation"
rounds = {ROUNDS}
method = "fedevocab"

[data]
labels = ["bad", "good"]        # the server sees no text, so it is told what the classes are called

[model]
embedding = 32
hidden = 32

[cohort]
sampling = "everyone"

[train]
optimizer = "adam"
lr = 5e-3
epochs = 2
max_length = 40

[fedevocab]
vocabulary = "own"
"""
LEXFED = (sys.executable, "-m", "lexfed")


def main(folder: Path) -> int:
    folder.mkdir(parents=True)
    began = time.monotonic()
    port = str(free_port())
    prepare(folder)
    with ExitStack() as stack:
        sites = {name: started(folder, name, port, stack) for name in NAMES}
        words = ("server", "federation.toml", "--keys", "server", "--out", "run", "--port", port)
        tell(shlex.join(("lexfed", *words)))
        server = subprocess.Popen((*LEXFED, *words, "--grace", "10"), cwd=folder, text=True,
                                  stdout=subprocess.PIPE)  # fmt: skip
        stack.callback(end, server)
        threading.Thread(target=narrated, args=(server,), daemon=True).start()
        wait_for_rounds(folder, 2, server)
        tell("south is killed (SIGKILL), as if its machine had lost power")
        sites["south"].kill()
        wait_for_rounds(folder, 3, server)
        tell("south is started again: its words, its table and its account are where they were")
        sites["south"] = started(folder, "south", port, stack)
        code = server.wait()
        time.sleep(1)
    tell(f"ended with exit code {code} after {time.monotonic() - began:.0f} seconds")
    summed_up(folder)
    return code or left_behind(folder)


def tell(sentence: str) -> None:
    print(f"-- {sentence}", flush=True)


def lexfed(folder: Path, *words: str) -> str:
    """A command that is done at once."""
    print(f"   $ lexfed {shlex.join(words)}", flush=True)
    done = subprocess.run((*LEXFED, *words), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr or done.stdout)
    return done.stdout


def prepare(folder: Path) -> None:
    tell("each makes its keys; the cards go to everybody")
    corpus = load("rotten_tomatoes", Columns())
    texts, labels = list(corpus), corpus.labels.tolist()
    for number, name in enumerate(NAMES):
        lexfed(folder, "keys", "new", name, "--out", name)
        places = [(number * TEXTS + i) * 2753 % len(texts) for i in range(TEXTS)]
        with (folder / name / "texts.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            rows.writerows([texts[i], ("bad", "good")[labels[i]]] for i in places)
        (folder / name / "texts.csv").chmod(0o600)
        lexfed(folder, "client", name, "--init", "texts.csv", "--method", "fedevocab")
    lexfed(folder, "keys", "server", "127.0.0.1", "--out", "server")
    cards = [f"{name}/{name}.card.json" for name in (*NAMES, "server")]
    for name in (*NAMES, "server"):
        said = lexfed(folder, "keys", "gather", *cards, "--out", name)
    print(f"   {said.splitlines()[-1]}")
    (folder / "federation.toml").write_text(CONFIG)


def started(folder: Path, name: str, port: str, stack: ExitStack) -> "subprocess.Popen[bytes]":
    words = ("client", name, "--superlink", f"127.0.0.1:{port}")
    tell(f"{name}: {shlex.join(('lexfed', *words))}")
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen((*LEXFED, *words), cwd=folder, stdout=log, stderr=log)
    stack.callback(end, process)
    return process


def end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def narrated(server: "subprocess.Popen[str]") -> None:
    for line in server.stdout or ():
        if not line.startswith("  FLWR"):
            print(f"   server: {line.rstrip()}", flush=True)


def wait_for_rounds(folder: Path, rounds: int, server: "subprocess.Popen[str]") -> None:
    path = folder / "run/rounds.jsonl"
    while server.poll() is None:
        if path.exists() and len(path.read_text().splitlines()) >= rounds:
            return
        time.sleep(0.2)


def summed_up(folder: Path) -> None:
    for line in lexfed(folder, "server", "status", "run").splitlines():
        print(f"   {line}")
    for name in NAMES:
        lines = (folder / name / "site.log").read_text().splitlines()
        sent = [line for line in lines if " sent to the server" in line]
        tell(f"{name}/site.log says {len(sent)} times what was sent; the last time:")
        print(f"   {sent[-1]}")


def left_behind(folder: Path) -> int:
    """Processes that still speak of the folder: there must be none."""
    words = ["ps", "-ww", "-eo", "pid,args"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True)
    ours = [line for line in listed.stdout.splitlines() if str(folder.resolve()) in line]
    ours = [line for line in ours if "tools/federation.py" not in line]
    tell(f"processes left behind: {len(ours)}")
    return 1 if ours else 0


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(f"runs/federation-{int(time.time())}")
    sys.exit(main(place))
