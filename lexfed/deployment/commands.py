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
    from lexfed.deployment.choosing import Prepare
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
Insecure = Annotated[
    bool, _option("--insecure", help="No TLS, no node keys: for tests on one machine.", hidden=True)
]
SuperLink = Annotated[str, _option(metavar="HOST:PORT", help="Where the server is.")]
StatusRun = Annotated[Path | None, _argument(metavar="[RUN]", help="Of `status`.")]
Out = Annotated[Path | None, _option(help="Where results go; default runs/NAME-TIME.")]
Resume = Annotated[bool, _option("--resume", help="Go on where the run stopped.")]
Host = Annotated[str, _option(help="Where the SuperLink listens; 0.0.0.0: everywhere.")]
Port = Annotated[int, _option(help="And at which port.")]
Patience = Annotated[float, _option(help="Seconds to wait for an answer.")]
Grace = Annotated[float, _option(help="Seconds to wait for who is away.")]
StartWith = Annotated[int, _option(help="Begin when so many are there; 0: all.")]
KeysFolder = Annotated[Path, _option("--keys", metavar="DIR", help="The server's keys.")]


@keys.command("new")
def new(
    name: Annotated[str, _argument(help="Of the organisation.")],
    out: Folder = Path("."),
    common: Annotated[
        bool, _option("--common", help="Also the secret that all organisations share.")
    ] = False,
) -> None:
    """An organisation's keys, and its card for the others."""
    from lexfed.deployment import key_making

    card = key_making.new(name, out, common)
    print(f"keys are in {out}; give {card} to the server and to every other organisation")
    if common:
        print(f"pass {out / 'common.key'} on to the other organisations, never to the server")


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
    host: Host = "127.0.0.1",
    port: Port = 9092,
    patience: Patience = 600.0,
    grace: Grace = 30.0,
    start_with: StartWith = 0,
    choose: Choose = None,
    check: Check_ = False,
    print_: Print_ = False,
    insecure: Insecure = False,
) -> None:
    """Run a method between organisations, on Flower: the server's side."""
    from lexfed.deployment import checks, driving, serving
    from lexfed.records import rundir
    from lexfed.runtime.correspondence import Times

    if target == "status":
        print("\n".join(serving.status_lines(run or _latest())))
        return
    place, times = serving.Place(host, port, insecure), Times(patience, grace)
    if resume:
        _serve(Path(target), place, print_)
        return
    clients, given = len(driving.checked_roster(keys).clients), list(settings or ())
    config = driving.deployed(Path(target), given, clients)
    directory = out or rundir.default_path(config)
    prepare = partial(_prepared, keys, times, start_with)
    if check:
        _report(checks.of_server(config, keys, place))
    elif choose:
        _choose(Path(target), given, choose, clients, directory, prepare, place)
    else:
        prepare(config, directory)
        _serve(directory, place, print_)


def _prepared(keys: Path, times: "Times", start_with: int, config: "Config", run: Path) -> "RunDir":
    from lexfed.deployment import driving

    return driving.prepared(config, keys, run, times, start_with)


def _serve(directory: Path, place: "Place", print_: bool) -> None:
    from lexfed.deployment import serving

    commands = serving.commands(directory, place)
    if print_:
        for command in commands:
            print(command)
        return
    say, show = _lines()
    say(f"the run is {directory}; what goes on: lexfed server status {directory}")
    for command in commands:
        say(f"  {command}")
    serving.serve(directory, place, say, show)
    say(f"finished: {directory / 'report.html'}")


def _choose(
    path: Path,
    settings: list[str],
    choices: list[str],
    clients: int,
    out: Path,
    prepare: "Prepare",
    place: "Place",
) -> None:
    from lexfed.deployment import choosing, serving

    found = choosing.candidates(path, settings, choices, clients)
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
