"""The command line. It imports what a command needs when the command runs: `--help` must answer at
once.
"""

import gc
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperArgument

from lexfed import __version__
from lexfed.core.errors import LexfedError
from lexfed.deployment import commands

if TYPE_CHECKING:
    from rich.console import Console

    from lexfed.corpus.text import Corpus
    from lexfed.records.rundir import RunDir


def _with_help(self: TyperArgument, *, help: str | None = None, **rest: Any) -> None:
    """From click 8.5 on, arguments lose the help that typer (0.20) gives them."""
    _typers_own(self, help=help, **rest)
    self.help = help


_typers_own, TyperArgument.__init__ = TyperArgument.__init__, _with_help  # type: ignore[method-assign]

app = typer.Typer(
    name="lexfed",
    help="Federated NLP in which the vocabulary is the subject.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,  # typer's own takes no shell's name, and guesses it from the terminal
)

COMPLETE = "_LEXFED_COMPLETE"  # what a shell's script sets

# What commands are told. Defaults stand with the commands.
_argument, _option = typer.Argument, typer.Option
Settings = Annotated[
    list[str] | None,
    _option("--set", metavar="KEY=VALUE", help="Override a key: data.alpha=0.1"),
]
Version = Annotated[
    bool,
    _option("--version", callback=lambda value: _version(value), is_eager=True,
            help="Print the version and exit."),
]  # fmt: skip
_shell = {"metavar": "bash|zsh|fish", "is_eager": True}
InstallCompletion = Annotated[
    str | None,
    _option("--install-completion", callback=lambda name: _completion(name, install=True),
            help="Install completion for this shell.", **_shell),
]  # fmt: skip
ShowCompletion = Annotated[
    str | None,
    _option("--show-completion", callback=lambda name: _completion(name, install=False),
            help="Print the script of this shell's completion.", **_shell),
]  # fmt: skip
DataName = Annotated[
    str, _argument(help="A name of `lexfed data list`, a file, a folder, or module:FUNCTION.")
]
_guess = "; default: a guess by its name."
DataText = Annotated[str | None, _option(help=f"The column of texts{_guess}")]
DataLabel = Annotated[str | None, _option(help=f"The column of labels{_guess}")]
DataUser = Annotated[str | None, _option(help=f"The column of who wrote a text{_guess}")]
DataSource = Annotated[str | None, _option(help=f"The column of where a text is from{_guess}")]
ConfigOrRun = Annotated[
    Path, _argument(help="A TOML file; with --resume, a run directory.", metavar="CONFIG.toml|RUN")
]
Target = Annotated[
    Path,
    _argument(help="A TOML file, a run, or a recorded wire.", metavar="CONFIG.toml|RUN|WIRE"),
]
PrivacyTarget = Annotated[
    Path, _argument(help="A TOML file, a run, or `plan`.", metavar="CONFIG.toml|RUN|plan")
]
AgreementConfig = Annotated[
    Path,
    _argument(help="A TOML file: its [data] and [agreement] tables.", metavar="CONFIG.toml"),
]
WordList = Annotated[Path, _argument(help="A word list, or a run.", metavar="FILE|RUN")]
RunPath = Annotated[Path, _argument(help="A run directory.", metavar="RUN")]
RunPaths = Annotated[list[Path], _argument(help="Run directories.", metavar="RUN RUN...")]
Out = Annotated[Path | None, _option(help="Where results go; default runs/NAME-TIME.")]
DemoOut = Annotated[Path | None, _option(help="Where results go; default runs/demo-TIME.")]
AuditOut = Annotated[
    Path | None, _option(metavar="DIR", help="Where results go; default runs/NAME-audit-TIME.")
]
ListOut = Annotated[Path | None, _option(metavar="FILE.json", help="Write the list there.")]
PageOut = Annotated[Path | None, _option(metavar="FILE.html", help="Also write a page.")]
ReportOut = Annotated[Path | None, _option(metavar="FILE.html", help="Default: RUN/report.html.")]
TextFile = Annotated[
    Path, _option("--in", metavar="FILE", help="Texts: a table, or a .txt with one a line.")
]
PredictionsOut = Annotated[
    Path | None, _option(metavar="FILE", help="A .csv or .jsonl; default: the terminal.")
]
OneClient = Annotated[str | None, _option(metavar="N|NAME", help="With this client's own model.")]
TextColumn = Annotated[
    str | None, _option(metavar="COLUMN", help="Of the texts; default: as in the run's data.")
]
AtHome = Annotated[
    bool, _option("--at-home", help="The texts are the client's own: its label shares count.")
]
OwnSite = Annotated[
    Path | None,
    _option(metavar="SITE", help="Of a run between organisations: with this one's own part."),
]
BeforeSwitch = Annotated[
    bool, _option("--before-switch", help="With the model from before the tokenizer was switched.")
]
ExportTo = Annotated[Path, _option("--to", metavar="DIR", help="A folder that is not there yet.")]
Workers = Annotated[
    int, _option(min=0, help="Worker processes; changes the time, never the result.")
]
Device = Annotated[
    str,
    _option(
        metavar="cuda[:N]|mps|cpu|auto",
        help="Where clients compute; auto: a GPU, if there is one.",
    ),
]
RayAddress = Annotated[
    str | None,
    _option("--ray", metavar="ADDRESS",
            help="Work on a Ray cluster: HOST:PORT, auto or local; the result is the same."),
]  # fmt: skip
Live = Annotated[bool, _option("--live", help="Show the run's page on loopback while it goes on.")]
Wire = Annotated[Path | None, _option(metavar="DIR", help="Keep every message, for an auditor.")]
From = Annotated[
    Path | None, _option("--from", metavar="RUN", help="Fork: start from a run's checkpoint.")
]
Resume = Annotated[bool, _option("--resume", help="Go on where the run stopped.")]
TensorBoard = Annotated[bool, _option("--tensorboard", help="Also write TensorBoard events.")]
Extend = Annotated[
    Path | None, _option(metavar="FILE.json", help="A list whose words keep their ids.")
]
Attacks = Annotated[list[str] | None, _option("--attack", metavar="NAME", help="Only this attack.")]
Truth = Annotated[
    Path | None, _option(metavar="CONFIG", help="Of a wire: what it was recorded with.")
]


def main() -> None:
    """Errors of use are one line and exit code 2; Ctrl-C is 130."""
    try:
        if COMPLETE in os.environ:  # a shell asks for completions
            from typer.completion import completion_init  # type: ignore[attr-defined]

            completion_init()
        code = app(prog_name="lexfed", standalone_mode=False)
    except LexfedError as error:
        _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:  # click (8.5) and typer both make the same suggestion
        _fail(re.sub(r"( Did you mean [^?]+\?)\1+", r"\1", error.format_message()))
    except OSError as error:  # a full disk, a path that can't be written
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except (KeyboardInterrupt, click.exceptions.Abort):
        sys.exit(130)
    except Exception as error:  # a fault in lexfed, or in a method of the user's own
        _crash(error)
    gc.freeze()  # what torch has made is not looked through once more: half a second
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    print(f"lexfed: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _crash(error: Exception) -> None:
    """The traceback, from the user's own code on, or from the command; then one line that names the
    place.
    """
    import traceback

    from lexfed.core.importing import is_users, place_of

    trace, users = error.__traceback__, []
    start = trace
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("click", "typer"):
            start = trace.tb_next
        elif is_users(trace.tb_frame.f_code.co_filename):
            users.append(trace)
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(users[0] if users else start))
    line = getattr(error, "line", f"{type(error).__name__}{place_of(error)}: {error}")
    print(f"lexfed: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(1)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"lexfed {__version__}")
        raise typer.Exit


SHELLS = ("bash", "zsh", "fish")


def _completion(shell: str | None, install: bool) -> None:
    if shell is None:
        return
    if shell not in SHELLS:
        raise click.BadParameter(f"'{shell}' is not one of {', '.join(SHELLS)}")
    from typer import completion as typers

    if install:
        name, path = typers.install(shell, "lexfed", COMPLETE)  # type: ignore[attr-defined]
        typer.echo(f"{name} completion installed in {path}; open a new terminal")
    else:
        script = typers.get_completion_script  # type: ignore[attr-defined]
        typer.echo(script(prog_name="lexfed", complete_var=COMPLETE, shell=shell))
    raise typer.Exit


@app.callback()
def _options(
    version: Version = False,
    install_completion: InstallCompletion = None,
    show_completion: ShowCompletion = None,
) -> None:
    pass


@app.command()
def run(
    config: ConfigOrRun,
    settings: Settings = None,
    out: Out = None,
    workers: Workers = 0,
    device: Device = "cpu",
    record_wire: Wire = None,
    from_: From = None,
    resume: Resume = False,
    tensorboard: TensorBoard = False,
    ray: RayAddress = None,
    live: Live = False,
) -> None:
    """Train as CONFIG says, and write a run directory."""
    if workers:
        from lexfed.runtime.forking import warm_up

        warm_up()
    gc.disable()  # modules are there to stay: to look through them while they load is for nothing
    from lexfed.core.errors import ConfigError
    from lexfed.runs import launch

    gc.freeze()
    gc.enable()
    manner = launch.Manner(workers, record_wire, tensorboard, device=device, ray=ray, live=live)
    if resume:
        if out or from_:
            raise ConfigError(
                "--resume goes on in the run's own directory: leave out --out and --from"
            )
        directory = launch.resume(config, settings or [], manner)
    else:
        directory = launch.start(config, settings or [], out, from_, manner)
    _print_results([directory])


@app.command()
def demo(out: DemoOut = None) -> None:
    """What uploads give away, and three answers: private, agreed and learned vocabularies."""
    import time

    from lexfed.runtime.forking import warm_up

    warm_up()
    from lexfed.demo import story, story_page

    folder = out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    told = story.play(folder, _quick("story"), 2, tell)
    _print_results(list(told.compared))
    tell(f"the story: open {story_page.write(told)}")


def _quick(name: str) -> Path:
    """Shipped configurations: in the package when installed, in experiments/ in a checkout."""
    here = Path(__file__).parent
    installed = here / "quick" / name
    return installed if installed.exists() else here.parent / "experiments" / "quick" / name


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
def data_show(
    name: DataName,
    text: DataText = None,
    label: DataLabel = None,
    user: DataUser = None,
    source: DataSource = None,
) -> None:
    """Sizes, classes, users and sources of a data set."""
    _described(name, text, label, user, source)


@data.command("check")
def data_check(
    name: DataName,
    text: DataText = None,
    label: DataLabel = None,
    user: DataUser = None,
    source: DataSource = None,
) -> None:
    """What may go wrong with a data set: no text is shown."""
    from lexfed.corpus import checking
    from lexfed.experiment.starting import Told, of_few_words

    corpus = _described(name, text, label, user, source)
    told = Told(text, label, user, source)
    remarks = [*checking.of_texts(corpus), *of_few_words(name, told)]
    if corpus.label_column is None:
        remarks.append(
            "no column of labels was found: a classifier needs one, name it with --label"
        )
    for remark in remarks or ["nothing looks wrong"]:
        _console().print(f"note: {remark}", soft_wrap=True, highlight=False, markup=False)


def _described(name: str, *told: str | None) -> "Corpus":
    from rich.table import Table
    from rich.text import Text

    from lexfed.core.importing import look_in
    from lexfed.corpus.describe import describe
    from lexfed.corpus.sources import load
    from lexfed.experiment.starting import Told, columns

    look_in(Path())  # a function of one's own
    found = columns(name, Told(*told))
    corpus = load(name, found)
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in describe(corpus, found).items():
        table.add_row(key, Text(value))  # as it is: a name may look like markup
    _console().print(table)
    return corpus


@app.command()
def init(
    question: Annotated[str, _argument(help="private, agreed, learned or audit.")],
    name: Annotated[str | None, _option("--data", metavar="FILE", help="Your texts.")] = None,
    out: Annotated[
        Path | None, _option(metavar="FILE.toml", help="Default: QUESTION.toml.")
    ] = None,
    text: DataText = None,
    label: DataLabel = None,
    user: DataUser = None,
    source: DataSource = None,
) -> None:
    """Look at the data, and write a commented configuration to start from."""
    from typing import get_args

    from lexfed.core.errors import ConfigError, nearest
    from lexfed.core.files import require_folder, write_atomically
    from lexfed.experiment import starting

    if question not in get_args(starting.Question):
        known = nearest(question, get_args(starting.Question))
        raise ConfigError(f"'{question}' is none of private, agreed, learned, audit; {known}")
    told = starting.Told(text, label, user, source)
    seen = starting.look(name or starting.EMBEDDED[question], told)  # type: ignore[index]
    path = out or Path(f"{question}.toml")
    require_folder(path)
    if path.exists():
        raise ConfigError(f"{path} exists already; choose another --out")
    content = starting.write(question, seen)  # type: ignore[arg-type]
    write_atomically(path, content.encode())
    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    for note in starting.notes(content):
        tell(note.replace("\n# ", " "))
    then = "audit" if question == "audit" else "run"
    tell(f"wrote {path}; next: lexfed {then} {path}")


vocab = typer.Typer(help="Vocabulary work alone.", no_args_is_help=True)
app.add_typer(vocab, name="vocab")


@vocab.command("agree")
def vocab_agree(
    config: AgreementConfig,
    settings: Settings = None,
    out: ListOut = None,
    extend: Extend = None,
) -> None:
    """Agree on a word list without training, and say what each organisation revealed."""
    from lexfed.agreement.protocol import refused_of
    from lexfed.experiment.config import load
    from lexfed.report import revealed as report
    from lexfed.runs import agreement_alone as agreeing

    if out is not None:
        agreeing.check_target(out)
    setup = load(config, settings or [], method="federated_word2vec")
    outcome = agreeing.run(setup, agreeing.read(extend) if extend else None)
    if out is not None:
        agreeing.write(out, outcome.vocabulary)
    console = _console()
    for title, rows in report.sections(outcome.vocabulary, outcome.revealed, setup.agreement):
        console.print(title, soft_wrap=True, highlight=False)
        _print_table(rows, report.COLUMNS)
        console.print()
    refused = refused_of(outcome.state)
    for line in report.remarks(outcome.revealed, setup.agreement, outcome.state.ledger, refused):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


@vocab.command("preview")
def vocab_preview(config: AgreementConfig, settings: Settings = None) -> None:
    """What each organisation would reveal if it took part, from its own text; nothing is sent."""
    from lexfed.experiment.config import load
    from lexfed.report import revealed as report
    from lexfed.runs import agreement_alone as agreeing

    setup = load(config, settings or [], method="federated_word2vec")
    seen = agreeing.foresee(setup)
    _print_table(report.foreseen(seen.previews, seen.names), report.FORESEEN)
    for line in report.outlook(seen.previews, setup.agreement, seen.public):
        _console().print(line, soft_wrap=True, highlight=False, markup=False)


@vocab.command("inspect")
def vocab_inspect(path: WordList) -> None:
    """Size, version, most frequent and rarest words of a vocabulary."""
    from rich.table import Table
    from rich.text import Text

    from lexfed.report.revealed import inspect
    from lexfed.runs import agreement_alone as agreeing

    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in inspect(agreeing.read(path)).items():
        table.add_row(key, Text(value))  # as it is: a word may look like markup
    _console().print(table, highlight=False)


@app.command()
def audit(
    target: Target,
    settings: Settings = None,
    attack: Attacks = None,
    truth: Truth = None,
    out: AuditOut = None,
) -> None:
    """Attack uploads as a curious server could, and say what they give away."""
    import time

    from lexfed.audits import cells as auditing
    from lexfed.records.rundir import refuse_existing
    from lexfed.report import audit_page as page

    console = _console()
    if out is not None:  # before the work, not after it
        refuse_existing(out)
    tell = partial(console.print, highlight=False, soft_wrap=True)
    found = auditing.run(target, settings or [], attack or [], truth, tell)
    rows, name = found.rows, found.about["name"]
    folder = out or Path("runs") / f"{name}-audit-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True, exist_ok=out is not None)
    auditing.write(folder, found)
    console.print()
    for line in page.headline(found.about):
        tell(line, markup=False)
    console.print()
    for title, heads, cells in page.sections(rows):
        console.print(title, highlight=False)
        _print_cells(heads, cells)
        console.print()
    for line in page.threats(rows):
        tell(line)
    tell(f"results: {folder / 'audit.json'}  (open {page.write(folder, rows, found.about)})")


@app.command()
def privacy(
    target: PrivacyTarget,
    settings: Settings = None,
    epsilon: Annotated[float, _option(help="plan: the epsilon to be promised.")] = 2.0,
    delta: Annotated[
        float | None,
        _option(help="plan: the chance that it fails; default: a tenth of one in all users."),
    ] = None,
    population: Annotated[float, _option(help="plan: users.")] = 1e6,
    cohort: Annotated[float, _option(help="plan: users of a round, in the mean.")] = 1000.0,
    rounds: Annotated[int, _option(help="plan: rounds.")] = 500,
    clip: Annotated[float, _option(help="plan: the longest update.")] = 0.5,
    parameters: Annotated[float, _option(help="plan: numbers of the model.")] = 1e6,
) -> None:
    """The account of a run or a configuration; `plan` says what noise a promise would take."""
    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    if str(target) == "plan":
        _plan(epsilon, delta, population, cohort, rounds, clip, parameters)
        return
    from lexfed.privacy.promise import NOTHING
    from lexfed.runs import account

    found = account.of(target, settings or [])
    tell(f"{found.title}\n")
    _print_cells(account.HEADS, [list(row) for row in found.rows])
    tell("")
    tell(found.statement.sentence if found.statement else NOTHING)
    for note in found.statement.notes if found.statement else ():
        tell(f"It holds if {note}.")
    if found.advice:
        tell("\nWhat would make it stronger:")
    for line in found.advice:
        tell(f"- {line}")


def _plan(
    epsilon: float,
    delta: float | None,
    population: float,
    cohort: float,
    rounds: int,
    clip: float,
    parameters: float,
) -> None:
    from lexfed.privacy import planning

    tell, users = partial(_console().print, highlight=False, soft_wrap=True), int(population)
    chosen = planning.sound_delta(max(1, users)) if delta is None else delta
    plan = planning.Plan(epsilon, users, cohort, rounds, chosen, clip, int(parameters))
    tell(plan.title)
    for flaw in planning.of_delta(plan.delta, plan.population):
        tell(f"note: {flaw}\n")
    _print_cells(planning.HEADS, planning.table(plan))
    tell(plan.hint)


@app.command()
def predict(
    run: RunPath,
    file: TextFile,
    out: PredictionsOut = None,
    client: OneClient = None,
    text: TextColumn = None,
    at_home: AtHome = False,
    site: OwnSite = None,
) -> None:
    """Labels for new texts, and how likely each label is."""
    from lexfed.use import predicting
    from lexfed.use.opening import directory_of

    predicting.check(directory_of(run), client, at_home, site)
    if out is not None:
        predicting.check_target(out)
    texts = predicting.texts_in(file, directory_of(run), text)
    found = predicting.predict(run, texts, client, at_home, site)
    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    if out is None:
        rows = enumerate(found.rows(), start=1)
        _print_cells(
            ["row", "label", "probability"],
            [[str(n), str(row["label"]), f"{row['probability']:.3f}"] for n, row in rows],
        )
        tell("")
    else:
        predicting.write(out, found)
        tell(f"results: {out}")
    tell(f"model: {found.whose}")


@app.command()
def generate(
    run: RunPath,
    words: Annotated[int, _option(help="Words of a text at most.")] = 50,
    texts: Annotated[int, _option(help="How many texts.")] = 5,
    temperature: Annotated[float, _option(help="Below 1: likely words more often.")] = 1.0,
    prompt: Annotated[str, _option(metavar="TEXT", help="What every text begins with.")] = "",
    seed: Annotated[int, _option(help="Another seed writes other texts.")] = 0,
    before_switch: BeforeSwitch = False,
) -> None:
    """Texts that a language model writes."""
    from lexfed.use import generating
    from lexfed.use.opening import directory_of

    wish = generating.Wish(words, texts, temperature, prompt, seed, before_switch)
    written = generating.generate(run, wish)
    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    for text in written:
        tell(f"{text}\n")
    if generating.may_quote(directory_of(run)):
        tell("note: nothing is promised to those it learned from: this model may quote its users")


@app.command()
def export(run: RunPath, to: ExportTo, client: OneClient = None, site: OwnSite = None) -> None:
    """Write a folder that other programs open (transformers, gensim, plain torch), with a card."""
    from lexfed.use import exporting

    content = exporting.export(run, to, client, site)
    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    tell(content.told or content.what)
    tell(f"results: {to}  (read {to / exporting.CARD})")


@app.command()
def report(run: RunPath, out: ReportOut = None) -> None:
    """Write a run's page again."""
    from lexfed.core.files import require_folder
    from lexfed.records.rundir import RunDir
    from lexfed.report import page

    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    if out is not None:
        require_folder(out)
    written, state = page.write(RunDir(run), out), RunDir(run).unfinished()
    tell(f"report: {written}" + (f"  ({state})" if state else ""))


@app.command()
def compare(runs: RunPaths, out: PageOut = None) -> None:
    """Runs side by side: accuracy, bytes, seconds."""
    from lexfed.core.figures import shown
    from lexfed.core.files import require_folder
    from lexfed.records.rundir import RunDir
    from lexfed.report import compare as comparing

    if out is not None:
        require_folder(out)
    directories = [RunDir(path) for path in runs]
    columns = comparing.known(directories, shown("s"))
    _print_table(comparing.rows(directories, columns), ("run", *columns))
    tell = partial(_console().print, highlight=False, soft_wrap=True, markup=False)
    if unlike := comparing.unlike(directories):
        tell(f"note: {unlike}")
    if out is not None:
        tell(f"page: {comparing.write(directories, out)}")


def _console(width: int | None = None) -> "Console":
    from rich.console import Console

    return Console(width=width)


def _print_results(runs: "list[RunDir]") -> None:
    from lexfed.core.figures import shown
    from lexfed.report import compare

    keys = compare.known(runs, shown("r"))
    console = _console()
    console.print()
    _print_table([row[1:] for row in compare.rows(runs, keys)], keys)
    console.print()
    for directory in runs:
        console.print(
            f"results: {directory.path}  (open {directory.report})", soft_wrap=True, highlight=False
        )


def _print_table(rows: list[list[str]], keys: tuple[str, ...]) -> None:
    from lexfed.core.figures import LABELS

    _print_cells([LABELS.get(key, key) for key in keys], rows)


def _print_cells(heads: list[str], rows: list[list[str]]) -> None:
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    console = _console()
    # a table that is wider than the screen is wrapped by the terminal: no number is cut
    wide = console.options.update(width=10_000)
    width = max(console.width, Measurement.get(console, wide, table).maximum)
    _console(width).print(table)


if __name__ == "__main__":
    main()


# --- between organisations ------------------------------------------------------------------------

app.command("server")(commands.server)
app.command("client")(commands.client)
app.command("node")(commands.node)
app.add_typer(commands.keys, name="keys")
