"""The command line. It imports what a command needs when the command runs: `--help` must answer at once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from lexfed import __version__
from lexfed.core.errors import LexfedError

if TYPE_CHECKING:
    from rich.console import Console

    from lexfed.run.rundir import RunDir

app = typer.Typer(
    name="lexfed",
    help="Federated NLP in which the vocabulary is the subject.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key: data.alpha=0.1")]


def main() -> None:
    """Errors of use are one line and exit code 2; Ctrl-C is 130."""
    try:
        code = app(standalone_mode=False)
    except LexfedError as error:
        _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except OSError as error:  # a full disk, a path that can't be written
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except (KeyboardInterrupt, click.exceptions.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    print(f"lexfed: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"lexfed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file; with --resume, a run directory.", metavar="CONFIG.toml|RUN")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; default runs/NAME-TIME.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; changes the time, never the result.")] = 0,
    record_wire: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep every message, for an auditor.")] = None,
    from_: Annotated[Path | None, typer.Option("--from", metavar="RUN", help="Fork: start from a run's checkpoint.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
) -> None:
    """Train as CONFIG says, and write a run directory."""
    if workers:
        from lexfed.runtime.forking import warm_up

        warm_up()
    from lexfed.core.errors import ConfigError
    from lexfed.run import launch

    how = launch.Manner(workers, record_wire, tensorboard)
    if resume:
        if out or from_:
            raise ConfigError("--resume goes on in the run's own directory: leave out --out and --from")
        directory = launch.resume(config, settings or [], how)
    else:
        directory = launch.start(config, settings or [], out, from_, how)
    _print_results([directory])


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where results go; default runs/demo-TIME.")] = None,
) -> None:
    """Twenty clients' film reviews, trained alone, together, and pooled: what does federation gain, and cost?"""
    import time

    from lexfed.runtime.forking import warm_up

    warm_up()
    from lexfed.run import launch
    from lexfed.run.rundir import refuse_existing

    folder = out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    refuse_existing(folder)
    runs = []
    for method in ("local_only", "fedavg", "centralised"):
        settings = [f"method={method}", f"name=demo-{method}"]
        runs.append(launch.start(_quick("fedavg"), settings, folder / method, None, launch.Manner(workers=2)))
    _print_results(runs)


def _quick(name: str) -> Path:
    """A shipped configuration: in the package when installed, in experiments/ in a checkout."""
    here = Path(__file__).parent
    installed = here / "quick" / f"{name}.toml"
    return installed if installed.exists() else here.parent / "experiments" / "quick" / f"{name}.toml"


data = typer.Typer(help="What can be loaded here, and from where.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("list")
def data_list() -> None:
    """The data sets that have a name."""
    from rich.table import Table

    from lexfed.corpus.catalogue import CATALOGUE, where

    table = Table("name", "from", "what it is", box=None, pad_edge=False, header_style="bold")
    for name, entry in CATALOGUE.items():
        table.add_row(name, where(name), entry.about)
    _console().print(table)


@data.command("show")
def data_show(name: Annotated[str, typer.Argument(help="A name of `lexfed data list`, or a file.")]) -> None:
    """Sizes, classes, users and sources of a data set."""
    from rich.table import Table

    from lexfed.corpus.catalogue import load
    from lexfed.corpus.describe import describe

    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in describe(load(name)).items():
        table.add_row(key, value)
    _console().print(table)


vocab = typer.Typer(help="Vocabulary work alone.", no_args_is_help=True)
app.add_typer(vocab, name="vocab")


@vocab.command("agree")
def vocab_agree(
    config: Annotated[Path, typer.Argument(help="A TOML file: its [data] and [agreement] tables.", metavar="CONFIG.toml")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the list there.")] = None,
    extend: Annotated[Path | None, typer.Option(metavar="FILE.json", help="A list whose words keep their ids.")] = None,
) -> None:
    """Agree on a word list without training, and say what each organisation would reveal."""
    from lexfed.experiment.config import load
    from lexfed.report import revealed as report
    from lexfed.run import agreement_alone as agreeing

    agreeing.refuse_existing(out)
    setup = load(config, settings or [])
    outcome = agreeing.run(setup, agreeing.read(extend) if extend else None)
    if out is not None:
        agreeing.write(out, outcome.vocabulary)
    console = _console()
    for title, rows in report.sections(outcome.vocabulary, outcome.revealed, setup.agreement):
        console.print(title, soft_wrap=True, highlight=False)
        _print_table(rows, report.COLUMNS)
        console.print()
    for line in report.remarks(outcome.revealed, setup.agreement, outcome.state.ledger):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


@vocab.command("inspect")
def vocab_inspect(path: Annotated[Path, typer.Argument(help="A word list, or a run.", metavar="FILE|RUN")]) -> None:
    """Size, version, most frequent and rarest words of a vocabulary."""
    from rich.table import Table
    from rich.text import Text

    from lexfed.report.revealed import inspect
    from lexfed.run import agreement_alone as agreeing

    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in inspect(agreeing.read(path)).items():
        table.add_row(key, Text(value))  # as it is: a word may look like markup
    _console().print(table, highlight=False)


@app.command()
def audit(
    target: Annotated[Path, typer.Argument(help="A TOML file, a run, or a recorded wire.", metavar="CONFIG.toml|RUN|WIRE")],
    settings: Settings = None,
    attack: Annotated[list[str] | None, typer.Option("--attack", metavar="NAME", help="Only this attack.")] = None,
    truth: Annotated[Path | None, typer.Option(metavar="CONFIG", help="Of a wire: what it was recorded with.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where results go; default runs/NAME-audit-TIME.")] = None,
) -> None:
    """Attack uploads as a curious server could, and say what they give away."""
    import time
    from functools import partial

    from lexfed.audit import cells as auditing
    from lexfed.report import audit_page as page
    from lexfed.run.rundir import refuse_existing

    console = _console()
    if out is not None:  # before the work, not after it
        refuse_existing(out)
    tell = partial(console.print, highlight=False, soft_wrap=True)
    rows, name = auditing.run(target, settings or [], attack or [], truth, tell)
    folder = out or Path("runs") / f"{name}-audit-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    auditing.write(folder, rows)
    console.print()
    for title, heads, cells in page.sections(rows):
        console.print(title, highlight=False)
        _print_cells(heads, cells)
        console.print()
    for line in page.threats(rows):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(f"results: {folder / 'audit.json'}  (open {page.write(folder, rows)})", soft_wrap=True, highlight=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Default: RUN/report.html.")] = None,
) -> None:
    """Write a run's page again."""
    from lexfed.report import page
    from lexfed.run.rundir import RunDir

    _console().print(f"report: {page.write(RunDir(run), out)}", soft_wrap=True, highlight=False)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.", metavar="RUN RUN...")],
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write a page.")] = None,
) -> None:
    """Runs side by side: accuracy, bytes, seconds."""
    from lexfed.core.figures import shown
    from lexfed.report import compare as comparing
    from lexfed.run.rundir import RunDir

    directories = [RunDir(path) for path in runs]
    columns = comparing.known(directories, shown("s"))
    _print_table(comparing.rows(directories, columns), ("run", *columns))
    if out is not None:
        _console().print(f"page: {comparing.write(directories, out)}", soft_wrap=True, highlight=False)


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _print_results(runs: "list[RunDir]") -> None:
    from lexfed.core.figures import shown
    from lexfed.report import compare

    keys = compare.known(runs, shown("r"))
    console = _console()
    console.print()
    _print_table([row[1:] for row in compare.rows(runs, keys)], keys)
    console.print()
    for directory in runs:
        console.print(f"results: {directory.path}  (open {directory.report})", soft_wrap=True, highlight=False)


def _print_table(rows: list[list[str]], keys: tuple[str, ...]) -> None:
    from lexfed.core.figures import LABELS

    _print_cells([LABELS.get(key, key) for key in keys], rows)


def _print_cells(heads: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    _console().print(table)


if __name__ == "__main__":
    main()
