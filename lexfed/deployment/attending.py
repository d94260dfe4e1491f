"""`lexfed client`: an organisation's site process, and the SuperNode beside it.

The site process owns the texts and answers; the SuperNode carries letters. They may run as
different users: then it is `lexfed client --no-node` for the one, `lexfed node` for the other.
"""

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lexfed.core.errors import ConfigError
from lexfed.core.files import only_one
from lexfed.core.memory import give_back
from lexfed.deployment import processes
from lexfed.deployment.processes import Node
from lexfed.site import site_log
from lexfed.site.desk import Desk, Open, joined
from lexfed.site.doorway import door
from lexfed.site.site_file import SiteFile

Say = Callable[[str], None]
AGAIN = 3.0  # seconds before a SuperNode that died is started again


def node_of(mine: SiteFile, address: str, port: int, insecure: bool = False) -> Node:
    return Node(mine.folder / mine.door.node, address, mine.socket, port, insecure)


def attend(
    mine: SiteFile,
    node: Node | None,
    say: Say,
    show: Say = lambda line: None,
    open_with: Open = joined,
) -> None:
    """Until somebody ends this process. `node`: its SuperNode; None: that is started elsewhere."""
    if node is not None and mine.door.user:
        raise ConfigError(
            "door.user names another user for the SuperNode: start that one as this user with "
            "`lexfed node`, and the site process with --no-node"
        )
    give_back()
    torch.set_num_threads(1)  # bits must not depend on how many cores there are
    log = site_log.opened(mine.folder / "site.log")
    desk = Desk(mine, log, open_with)
    stop = _until_told()
    with ExitStack() as stack:
        # two would keep one book behind each other's back
        busy = f"{mine.folder} is in use: another lexfed client runs here"
        stack.enter_context(only_one(mine.folder / "site.lock", busy))
        opening = door(mine.socket, mine.door.users(), desk.answer, log.info, desk.admits)
        stack.enter_context(opening)
        log.info(f"the site process of client {mine.me} is there")
        say(f"client {mine.me} of {len(mine.peers)}: the site process listens at {mine.socket}")
        keeper = Keeper(node, say)
        stack.callback(keeper.end)
        while not stop.wait(0.5):
            keeper.look()
            show(desk.at)
    log.info("the site process ended")
    for handler in log.handlers:
        handler.close()


def carry(node: Node, say: Say) -> None:
    """`lexfed node`: the SuperNode alone, until somebody ends it."""
    stop, keeper = _until_told(), Keeper(node, say)
    try:
        while not stop.wait(0.5):
            keeper.look()
    finally:
        keeper.end()


def _until_told() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


@dataclass
class Keeper:
    """A SuperNode for as long as this process is there; one that dies is started again."""

    node: Node | None
    say: Say
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    not_before: float = 0.0
    _open: ExitStack = field(default_factory=ExitStack)

    def look(self) -> None:
        if self.node is None:
            return
        log = self.node.home / "supernode.log"
        if any(process.poll() is not None for process in self.processes):
            self.say(f"the SuperNode ended; see {log}. It is started again.")
            self.end()
            self.not_before = time.monotonic() + AGAIN
        if not self.processes and time.monotonic() >= self.not_before:
            self.node.prepare()
            self.processes = [
                self._open.enter_context(processes.running(command, log))
                for command in self.node.commands()
            ]
            self.say("the SuperNode started")

    def end(self) -> None:
        self._open.close()
        self.processes = []


def written_site(folder: Path, data: str, method: str) -> Path:
    """A `site.toml` to begin with."""
    path = folder / "site.toml"
    text = SITE.format(data=data, method=method)
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("x") as file:
        file.write(text)
    return path


SITE = """\
# What this organisation says of itself. Nothing in it is sent to anybody.

[data]
name = "{data}"             # its texts: a parquet, csv or jsonl file with text and label columns
test = 0.2                      # the share of them that is held out, to be scored on

[files]
# its copies of public files, by the names that the server gives them
# "vectors.txt" = "/srv/lexfed/vectors.txt"

[policy]                        # what is allowed, whatever a server asks for
methods = ["{method}"]
clients = 3                     # nothing is sent to a federation of fewer
secure_sums = false             # true: only sums that hide each one's part
exchanges = 10000               # requests that are answered at all
# epsilon = 8.0                 # over this site's lifetime

[door]
# user = "lexfed-relay"         # who the SuperNode runs as, if not the site's own user
"""
