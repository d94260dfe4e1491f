"""`lexfed keys`, `lexfed server`, `lexfed client`: the command line between organisations. What a
command needs is imported when it runs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lexfed.deployment.checks import Check
    from lexfed.deployment.choosing import Candidate, Prepare
    from lexfed.deployment.processes import Command
    from lexfed.deployment.serving import Place
    from lexfed.experiment.config import Config
    from lexfed.records.rundir import RunDir
    from lexfed.runtime.correspondence import Times

_argument, _option = typer.Argument, typer.Option
keys = typer.Typer(help="Keys of a server and of organisations.", no_args_is_help=True)

Folder = Annotated[Path, _option("--out", metavar="DIR", help="Where the keys go.")]
Target = Annotated[
    str, _argument(metavar="CONFIG.toml|RUN|status", help="A TOML file; a run; or `status RUN`.")
]
Settings = Annotated[
    list[str] | None,
    _option("--set", metavar="KEY=VALUE", help="Override a key: rounds=20"),
]
Choose = Annotated[
    list[str] | None,
    _option("--choose", metavar="KEY=V,V", help="Try these values, and say which is best."),
]
Check_ = Annotated[bool, _option("--check", help="Say what is missing, and start nothing.")]
Print_ = Annotated[bool, _option("--print", help="Print Flower's own commands, and start nothing.")]
Prepare_ = Annotated[bool, _option("--prepare", help="Make the run, and start nothing.")]
Insecure = Annotated[
    bool, _option("--insecure", help="No TLS, no node keys: for tests on one machine.", hidden=True)
]
SuperLink = Annotated[str, _option(metavar="HOST:PORT", help="Where the server is.")]
StatusRun = Annotated[Path | None, _argument(metavar="[RUN]", help="Of `status`.")]
Out = Annotated[Path | None, _option(help="Where results go; default runs/NAME-TIME.")]
Resume = Annotated[bool, _option("--resume", help="Go on where the run stopped.")]
Host = Annotated[
    str | None, _option(help="Where the SuperLink listens; 0.0.0.0: everywhere; default: here.")
]
Port = Annotated[int | None, _option(help="And at which port; default 9092.")]
Patience = Annotated[float, _option(help="Seconds to wait for an answer.")]
Grace = Annotated[float, _option(help="Seconds to wait for who is away.")]
StartWith = Annotated[int, _option(help="Begin when so many are there; 0: all.")]
KeysFolder = Annotated[Path, _option("--keys", metavar="DIR", help="The server's keys.")]


@keys.command("new")
def new(
    name: Annotated[str, _argument(help="Of the organisation.")],
    out: Folder = Path("."),
) -> None:
    """An organisation's keys, and its card for the others."""
    from lexfed.deployment import key_making

    card = key_making.new(name, out)
    print(f"keys are in {out}; give {card} to the server and to every other organisation")


@keys.command("common")
def common(out: Folder = Path(".")) -> None:
    """The secret that all organisations share, for one of them to make."""
    from lexfed.deployment import key_making

    print(f"pass {key_making.common_secret(out)} on to the other organisations, into the folder")
    print("of their site.toml, and never to the server; then start the site processes again")


@keys.command("server")
def server_keys(
    host: Annotated[list[str], _argument(help="Names or addresses that clients will use.")],
    out: Folder = Path("."),
) -> None:
    """A server's keys and certificate, and its card for the organisations."""
    from lexfed.deployment import key_making

    print(f"keys are in {out}; give {key_making.server(host, out)} to every organisation")


@keys.command("gather")
def gather(
    cards: Annotated[list[Path], _argument(help="The server's card, and every organisation's.")],
    out: Folder = Path("."),
) -> None:
    """Who is who: peers.json, out of everybody's cards."""
    from lexfed.deployment import key_making

    found = key_making.gather(cards, out)
    for number, name in enumerate(found.names):
        print(f"client {number}: {name}")
    print(f"{len(found.names)} organisations; if one is missing, gather again with its card")
    print(
        f"fingerprint {found.fingerprint}: read it to the others, by telephone; all have the same"
    )


def server(
    target: Target,
    run: StatusRun = None,
    keys: KeysFolder = Path("."),
    out: Out = None,
    resume: Resume = False,
    settings: Settings = None,
    host: Host = None,
    port: Port = None,
    patience: Patience = 600.0,
    grace: Grace = 30.0,
    start_with: StartWith = 0,
    choose: Choose = None,
    check: Check_ = False,
    print_: Print_ = False,
    prepare: Prepare_ = False,
    insecure: Insecure = False,
) -> None:
    """Run a method between organisations, on Flower: the server's side."""
    from lexfed.deployment import serving
    from lexfed.runtime.correspondence import Times

    if target == "status":
        print("\n".join(serving.status_lines(run or _latest())))
    elif resume:
        _resume(Path(target), host, port, insecure, print_)
    else:
        place = serving.Place(host or "127.0.0.1", port or 9092, insecure)
        make = partial(_prepared, keys, Times(patience, grace), start_with, place)
        only = "check" if check else "print" if print_ else "prepare" if prepare else ""
        _start(Path(target), list(settings or ()), keys, out, choose or [], make, place, only)


def _start(
    path: Path,
    settings: list[str],
    keys: Path,
    out: Path | None,
    choose: list[str],
    make: "Prepare",
    place: "Place",
    only: str,
) -> None:
    """A new run; or `only` a look at what it would be."""
    from lexfed.deployment import checks, choosing, driving, serving
    from lexfed.records import rundir

    clients = len(driving.checked_roster(keys).clients)
    config = driving.deployed(path, settings, clients)
    directory = out or rundir.default_path(config)
    if only == "check":
        _report(checks.of_server(config, keys, place))
    elif only == "print":
        _print(serving.commands(directory, keys, place))
    elif choose:
        found = choosing.candidates(path, settings, choose, clients)
        _choose(found, directory, make, place)
    else:
        make(config, directory)
        print(f"the run is {directory}; what goes on: lexfed server status {directory}")
        print("Flower's own commands for the same: --print")
        if only != "prepare":
            _serve(directory, place)


def _resume(
    run: Path, host: str | None, port: int | None, insecure: bool, only_print: bool
) -> None:
    """Where it listened before, if nothing else is said."""
    from lexfed.deployment import driving, serving

    about = driving.read_deployment(run)
    place = serving.Place(host or about.host, port or about.port, insecure)
    if only_print:
        _print(serving.commands(run, Path(about.keys), place))
    else:
        _serve(run, place)


def _print(commands: "list[Command]") -> None:
    for command in commands:
        print(command)


def _prepared(
    keys: Path, times: "Times", start_with: int, place: "Place", config: "Config", run: Path
) -> "RunDir":
    from lexfed.deployment import driving

    address = (place.host, place.port)
    return driving.prepared(config, keys, run, times, start_with, address)


def _serve(directory: Path, place: "Place") -> None:
    from lexfed.core.figures import LABELS, human
    from lexfed.deployment import serving

    say, show = _lines()
    done = serving.serve(directory, place, say, show)
    for key in ("global_accuracy", "word_perplexity", "heldout_loss"):
        if done.summary().get(key) is not None:
            say(f"{LABELS[key]}: {human(key, done.summary()[key])}")
    say(f"finished: {directory / 'report.html'}")


def _choose(found: "list[Candidate]", out: Path, prepare: "Prepare", place: "Place") -> None:
    from lexfed.deployment import choosing, serving

    say, show = _lines()
    choosing.choose(found, out, prepare, lambda run: serving.serve(run, place, say, show), say)
    say(f"the best values are in {out / choosing.CHOSEN}")


def client(
    folder: Annotated[Path, _argument(metavar="SITE", help="A folder with site.toml and keys.")],
    superlink: SuperLink = "127.0.0.1:9092",
    init: Annotated[
        str | None, _option("--init", metavar="DATA", help="Write a site.toml for these texts.")
    ] = None,
    method: Annotated[str, _option(help="With --init: the method that is allowed.")] = "fedavg",
    node: Annotated[bool, _option("--node/--no-node", help="Start a SuperNode as well.")] = True,
    node_port: Annotated[int, _option(help="Of the SuperNode, on loopback; 0: any.")] = 0,
    check: Check_ = False,
    print_: Print_ = False,
    insecure: Insecure = False,
) -> None:
    """Take part with an organisation's own texts: the site process, and its SuperNode."""
    from lexfed.deployment import attending, checks, processes
    from lexfed.site import site_file

    path = folder if folder.suffix == ".toml" else folder / "site.toml"
    if init is not None:
        print(f"wrote {attending.written_site(path.parent, init, method)}; read it, and change it")
        return
    if check:
        _report(checks.of_client(path, superlink, insecure))
        return
    mine = site_file.load(path)
    port = node_port or processes.free_port()
    carrier = attending.node_of(mine, superlink, port, insecure)
    if print_:
        for command in carrier.commands():
            print(command)
        return
    say, show = _lines()
    for command in carrier.commands() if node else ():
        say(f"  {command}")
    if not node:
        say(f"start the SuperNode with: lexfed node FOLDER --socket {mine.socket} --superlink ...")
    attending.attend(mine, carrier if node else None, say, show)


def node(
    folder: Annotated[Path, _argument(metavar="FOLDER", help="With `node` and ca.crt.")],
    socket: Annotated[Path, _option(help="Of the site process.")],
    superlink: SuperLink = "127.0.0.1:9092",
    port: Annotated[int, _option(help="Of the SuperNode, on loopback; 0: any.")] = 0,
    print_: Print_ = False,
) -> None:
    """The SuperNode of an organisation alone, as a user who has none of its texts."""
    from lexfed.deployment import attending, processes

    carrier = processes.Node(folder.resolve(), superlink, socket, port or processes.free_port())
    for command in carrier.commands():
        print(f"  {command}", flush=True)
    if not print_:
        attending.carry(carrier, _lines()[0])


def _report(found: "list[Check]") -> None:
    for check in found:
        print(f"{'ok     ' if check.good else 'MISSING'}  {check.sentence}")
    if not all(check.good for check in found):
        raise typer.Exit(2)


def _latest() -> Path:
    """The newest run between organisations below runs/."""
    from lexfed.core.errors import ConfigError
    from lexfed.records.rundir import DEPLOYMENT

    found = sorted(Path("runs").glob(f"*/{DEPLOYMENT}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigError("there is no run between organisations below runs/; name one")
    return found[-1].parent


def _lines() -> tuple[Callable[[str], None], Callable[[str], None]]:
    """Lines for good, and one that is written over, where there is a terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    status = console.status("") if console.is_terminal else None
    if status is not None:
        status.start()

    def show(line: str) -> None:
        if status is not None:
            status.update(line)

    return console.print, show
