"""What a message costs between organisations: the relay and its site process against a plain
ClientApp.

Three organisations on loopback with TLS and node keys train FedAvg; each round is one message to
each of them. Both ways run the same letters and the same handlers, turn and turn about, three
times. CPU seconds are those of the SuperNodes, the apps they start and the site processes, taken
from the kernel at the end of a run; what they take to start is measured in runs of few rounds and
subtracted.

    python benchmarks/flower_messages.py        writes flower_messages.json and flower_messages.md
"""

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from lexfed.corpus.loading import Columns
from lexfed.corpus.sources import load
from lexfed.deployment import attending, driving, key_making, processes, serving
from lexfed.runtime.correspondence import Times
from lexfed.runtime.flower import bundle
from lexfed.site import site_file

HERE = Path(__file__).parent
NAMES = ("north", "south", "west")
FEW, MANY = 1, 6  # rounds
REPEATS = 3
TICKS = os.sysconf("SC_CLK_TCK")
RELAY = bundle.RELAY
CONFIG = """
rounds = {rounds}
method = "fedavg"
[data]
labels = ["bad", "good"]
[vocabulary]
size = 5000
[model]
embedding = 32
hidden = 32
[cohort]
sampling = "everyone"
[train]
max_length = 40
[evaluation]
last = 1
"""


def prepare(folder: Path) -> None:
    corpus = load("rotten_tomatoes", Columns())
    texts, labels = list(corpus), corpus.labels.tolist()
    cards = [key_making.server(["127.0.0.1"], folder / "server")]
    for number, name in enumerate(NAMES):
        cards.append(key_making.new(name, folder / name))
        places = [(number * 500 + i) * 2753 % len(texts) for i in range(500)]
        with (folder / name / "texts.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            rows.writerows([texts[i], ("bad", "good")[labels[i]]] for i in places)
        attending.written_site(folder / name, "texts.csv", "fedavg")
    for name in (*NAMES, "server"):
        key_making.gather(cards, folder / name)


@contextmanager
def organisations(folder: Path, address: str, plain: bool) -> Iterator[Callable[[], list[int]]]:
    """Their processes: each a SuperNode, with a site process or without."""
    with ExitStack() as stack:
        sites: list[int] = []
        keepers: list[attending.Keeper] = []
        for name in NAMES:
            mine = site_file.load(folder / name / "site.toml")
            node = attending.node_of(mine, address, processes.free_port())
            keeper = Plain(node, folder / name) if plain else attending.Keeper(node, lambda _: None)
            keepers.append(keeper)
            stack.callback(keeper.end)
            if not plain:
                own = (sys.executable, "-m", "lexfed", "client", str(folder / name), "--no-node")
                site = processes.Command(own, node.home)
                log = folder / name / "client.log"
                sites.append(stack.enter_context(processes.running(site, log)).pid)

        def pids() -> list[int]:
            """Now: a SuperNode that came too early ends, and is started again."""
            for keeper in keepers:
                keeper.look()
            return [*sites, *(p.pid for keeper in keepers for p in keeper.processes)]

        yield pids


class Plain(attending.Keeper):
    """SuperNodes that are told where the texts lie, in place of the socket."""

    def __init__(self, node: processes.Node, site: Path) -> None:
        told = replace(node, socket=site)
        super().__init__(told, lambda _: None)


def family(pids: list[int]) -> set[int]:
    """These processes and all below them."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()[1:]]
    found = set(pids)
    for _ in range(6):
        found |= {pid for pid, parent in pairs if parent in found}
    return found


def cpu(pids: list[int]) -> float:
    """Of these processes and all below them, the ended ones too."""
    ticks = 0
    for pid in family(pids):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children that ended
    return ticks / TICKS


def shared_memory(pids: list[int]) -> float:
    """Bytes (PSS): what several share counts once."""
    kilobytes = 0
    for pid in family(pids):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return 1024.0 * kilobytes


def measured(folder: Path, rounds: int, plain: bool) -> dict[str, float]:
    """One run: CPU seconds of the organisations, and seconds a round."""
    (folder / "fed.toml").write_text(CONFIG.format(rounds=rounds))
    config = driving.deployed(folder / "fed.toml", [], len(NAMES))
    run = folder / f"run-{time.monotonic_ns()}"
    driving.prepared(config, folder / "server", run, Times(poll=0.1))
    place = serving.Place(port=processes.free_port())
    shipped = folder / "plain" / RELAY.name
    shipped.parent.mkdir(exist_ok=True)
    shutil.copy(HERE / "plain_client_app.py", shipped)
    bundle.RELAY = shipped if plain else RELAY
    spent: list[float] = []
    server: list[float] = []
    memory: list[float] = []
    with organisations(folder, place.own_address, plain) as pids:

        def look(state: str) -> None:
            now = pids()
            spent.append(cpu(now))
            server.append(cpu([os.getpid()]) - spent[-1])
            memory.append(shared_memory(now) / len(NAMES))

        began = cpu([os.getpid()]) - cpu(pids())
        serving.serve(run, place, lambda line: None, look)
        spent.append(cpu(pids()))
    records = serving.RunDir(run).records()
    seconds = [record["seconds"] for record in records]
    return {
        "cpu": spent[-1],
        "server_cpu": server[-1] - began,
        "memory": max(memory),
        "seconds": statistics.median(seconds),
    }


def main() -> None:
    results: dict[str, list[dict[str, float]]] = {"relay": [], "plain": []}
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        for repeat in range(REPEATS):
            for way in results:
                few = measured(Path(place), FEW, way == "plain")
                many = measured(Path(place), MANY, way == "plain")
                messages = (MANY - FEW) * len(NAMES)
                row = {
                    "cpu_per_message": (many["cpu"] - few["cpu"]) / messages,
                    "server_cpu_per_message": (many["server_cpu"] - few["server_cpu"]) / messages,
                    "cpu_to_start": few["cpu"],
                    "memory": many["memory"] / 1e6,
                    "seconds_per_round": many["seconds"],
                }
                results[way].append(row)
                print(way, repeat, row, flush=True)
    (HERE / "flower_messages.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "flower_messages.md").write_text(page(results))


def page(results: dict[str, list[dict[str, float]]]) -> str:
    heads = {
        "cpu_per_message": "organisation's CPU s per message",
        "server_cpu_per_message": "server's CPU s per message (SuperLink and ServerApp)",
        "memory": "MB of an organisation's processes (PSS, the most)",
        "seconds_per_round": "seconds per round (3 nodes)",
        "cpu_to_start": "CPU s to start, first round, score (3 organisations)",
    }
    lines = [
        "# What a message costs between organisations",
        "",
        "Three organisations on loopback, TLS and node keys, FedAvg with a small BiLSTM, one",
        f"message to each a round. Median of {len(results['relay'])} runs (least to most), turn "
        "and turn about, two cores. Repeat: `python benchmarks/flower_messages.py`.",
        "",
        "| | " + " | ".join(heads.values()) + " |",
        "|---|" + "---|" * len(heads),
    ]
    names = {"relay": "relay and site process", "plain": "plain ClientApp"}
    for way, rows in results.items():
        cells = []
        for key in heads:
            values = [row[key] for row in rows]
            cells.append(
                f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
            )
        lines.append(f"| {names[way]} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "A plain ClientApp loads torch, lexfed and the texts anew for every message. The relay",
        "loads Flower's app interface, and the site process is there already. Most of a round's",
        "wall time is Flower's: SuperNodes look for messages every three seconds, and start a",
        "process for each. `--isolation process` does not spare that start in Flower 1.41: its",
        "`flwr-clientapp` takes a token for one message and ends with it.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
