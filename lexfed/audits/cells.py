"""An audit: every cell of the `[audit]` table acted out or read from a wire, attacked, and written
down.
"""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

from lexfed.audits import probes, secure_view
from lexfed.audits import word_lists as agreement
from lexfed.audits.attributes import users
from lexfed.audits.closed_form import attacks as closed_form
from lexfed.audits.closed_form import exposure
from lexfed.audits.inversion import on_uploads as inversion
from lexfed.audits.membership import released, shadows
from lexfed.audits.scene import Attack, Findings, Scene, act, seen
from lexfed.audits.score import Cell
from lexfed.audits.transcript import check_origin, transcript
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.files import write_atomically
from lexfed.experiment import audit_options
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.config import Config
from lexfed.learning.defences import Defences

Rows = list[dict[str, Any]]
ABOUT = "about.json"  # beside audit.json: what was audited, when, and by which command

ATTACKS: Mapping[str, Attack] = {
    "rows": closed_form.rows,
    "span": closed_form.span,
    "norms": closed_form.norms,
    "sentences": closed_form.sentences,
    "labels": closed_form.labels,
    "inversion": inversion.inversion,
    "agreement": agreement.agreement,
    "canaries": exposure.exposed,
    users.ATTACK: users.attributes,
}
Study = Callable[[Mapping[str, Any], Assembly], Mapping[tuple[Any, ...], Cell]]
# not of uploads: all rounds are run, with whom and for what the study says. What can't be meant is
# refused by the first of the two
WHOLE: Mapping[str, tuple[Callable[[Assembly], None], Study]] = {
    "membership": (lambda assembly: shadows.check(assembly.config), released.membership),
    probes.ATTACK: (probes.check, probes.measured),
}


CONFIGURED = "as configured"  # no other defence than those of the [defences] table itself
# an answer, not a failure: clients that train alone send nothing that could be read
NO_UPLOAD = "no upload moves a parameter of the model: there is nothing to read"


@dataclass(frozen=True)
class Audited:
    """What was found, and what it is of."""

    rows: Rows
    about: Mapping[str, str]


def run(
    target: Path,
    settings: Sequence[str],
    attacks: Sequence[str],
    truth: Path | None,
    tell: Callable[[str], None],
) -> Audited:
    """The rows of a configuration, a run or a recorded wire."""
    if target.is_dir() and not (target / "config.toml").is_file():
        if truth is None:
            raise ConfigError(
                f"{target} is a recorded wire: to score guesses, say what it was recorded with: "
                "--truth CONFIG"
            )
        config = only(configuration.load(_config_file(truth), settings), attacks)
        return Audited(of_wire(target, config), about(target, config))
    config = only(configuration.load(_config_file(target), settings), attacks)
    return Audited(of_config(config, tell), about(target, config))


def about(target: Path, config: Config) -> dict[str, str]:
    """A table of leaks says nothing unless one knows of what, and since when."""
    data = config.data
    return {
        "audited": str(target),
        "name": config.name,
        "method": ", ".join(config.audit.methods or (config.entry.name,)),
        "data": f"{data.name}, by {data.partition}, {data.clients} clients",
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": shlex.join(["lexfed", *sys.argv[1:]]),
    }


def _config_file(path: Path) -> Path:
    return path / "config.toml" if path.is_dir() else path


def of_config(config: Config, tell: Callable[[str], None] = lambda line: None) -> Rows:
    """Every cell of the `[audit]` table; rows of one kind over all seeds together."""
    found: dict[tuple[Any, ...], Cell] = {}
    refused: ConfigError | DataError | None = None
    for about, cell in cells(config):
        name = (
            ", ".join(f"{key} {value}" for key, value in about.items() if value is not None)
            + f", seed {cell.seed}"
        )
        try:
            attacked = _prepared(about, cell)
        except ConfigError as error:  # a defence that this method can't have
            tell(f"left out: {name}: {error}")
            refused = error
            continue
        tell(name)
        try:
            cells_of_it = attacked()
        except DataError as error:  # what other cells found is not lost
            tell(f"nothing of: {name}: {error}")
            refused = error
            continue
        for key, one in cells_of_it.items():
            found.setdefault(key, Cell(one.about)).merge(one)
    rows = [cell.row() for cell in found.values()]
    _require_some(rows, refused)
    return rows + _not_asked_for(config)


def _require_some(rows: Rows, refused: ConfigError | DataError | None) -> None:
    if any(row["not_run"] in (None, NO_UPLOAD) for row in rows):
        return
    whys = dict.fromkeys(f"{row['attack']}: {row['not_run']}" for row in rows)
    raise refused or DataError(
        "there is nothing for these attacks to read"
        + (f" ({'; '.join(whys)})" if whys else ": see audit.attacks, vocabulary.vectors")
    )


def _not_asked_for(config: Config) -> Rows:
    """Attacks that take longer, and run when they are named; who names some knows that."""
    usual = audit_options.Audit().attacks
    if config.audit.attacks != usual:
        return []
    findings = Findings({}, config.seed)
    for name in get_args(audit_options.Attack):
        if name not in usual:
            findings.not_run(name, f"it takes longer, and runs when it is named: --attack {name}")
    return [cell.row() for cell in findings.cells.values()]


def _prepared(
    about: Mapping[str, Any], cell: Config
) -> Callable[[], Mapping[tuple[Any, ...], Cell]]:
    """What is to be done for a cell; what can't be meant is refused here, before anything is
    trained.
    """
    assembly = assemble(cell)
    users.check(assembly)
    for name, (check, study) in WHOLE.items():
        if name in cell.audit.attacks:
            check(assembly)
            return partial(study, about, assembly)
    return lambda: attack(act(about, assembly))


def of_wire(wire: Path, truth: Config) -> Rows:
    """A recorded wire; the configuration it was made with says what is true."""
    for name in WHOLE:
        if name in truth.audit.attacks:
            raise ConfigError(
                f"{name} is not read from a wire: models are trained for it; audit the "
                "configuration instead"
            )
    check_origin(wire, configuration.same_messages(truth))
    assembly = assemble(truth)
    messages = list(transcript(wire, secure_view.verbs(assembly)))
    scenes = seen(_about(truth, "as recorded", None), assembly, messages)
    found = [upload.client for scene in scenes for upload in scene.uploads]
    if not found:
        raise DataError(f"{wire} holds no upload that moves a parameter: there is nothing to read")
    if max(found) >= len(assembly.population):
        raise DataError(
            f"{wire} was not recorded with this configuration: it has {len(assembly.population)} "
            "clients"
        )
    rows = [cell.row() for cell in attack(scenes).values()]
    _require_some(rows, None)
    return rows


def cells(config: Config) -> Iterator[tuple[dict[str, Any], Config]]:
    """Uploads are attacked in their first rounds; released models after all rounds, with all that
    clients have.
    """
    options = config.audit
    on_uploads = [name for name in options.attacks if name not in WHOLE]
    if on_uploads:
        first = [f"cohort.size={_asked(config)}", f"audit.attacks={on_uploads}"]
        # rounds stay what they are: noise is made for all of them. But word vectors share one pass
        # out among their rounds
        if config.entry.has("rows") or config.rounds < options.rounds:
            first.append(f"rounds={options.rounds}")
        yield from _cells(config, options.sentences or (None,), first)
    for name in WHOLE:
        if name in options.attacks:
            yield from _cells(config, (None,), [f"audit.attacks={[name]}"])


def _asked(config: Config) -> int:
    """As many as the table says, or all there are; of several groups of users, of one."""
    groups = getattr(config.options, "groups", 1)
    return min(config.audit.clients, max(1, config.data.clients // groups))


def _cells(
    config: Config, texts: Sequence[int | None], settings: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Config]]:
    options = config.audit
    for method, defence, sentences, optimizer, batch, seed in product(
        options.methods or (config.method,),
        options.defences,
        texts,
        options.optimizers or (config.train.optimizer,),
        options.batches or (config.train.batch,),
        options.seeds or (config.seed,),
    ):
        wanted = [
            f"method={method}",
            f"train.optimizer={optimizer}",
            f"train.batch={batch}",
            f"seed={seed}",
        ]
        wanted += settings
        wanted += [] if defence == "none" else [setting.strip() for setting in defence.split(";")]
        cell = configuration.changed(config, wanted)
        own = defence == "none" and config.defences != Defences()
        yield _about(cell, CONFIGURED if own else defence, sentences), cell


def _about(config: Config, defence: str, sentences: int | None) -> dict[str, Any]:
    train = config.train
    about = {
        "method": config.entry.name,
        "defence": defence,
        "batch": train.batch,
        "sentences": sentences,
    }
    return {**about, "optimizer": train.optimizer}


def attack(scenes: Sequence[Scene]) -> Mapping[tuple[Any, ...], Cell]:
    """Every attack that the configuration names, on every upload."""
    cells: dict[tuple[Any, ...], Cell] = {}
    for scene in scenes:
        cells |= _attacked(scene)
    return cells


def _attacked(scene: Scene) -> Mapping[tuple[Any, ...], Cell]:
    findings = Findings(scene.about, scene.assembly.config.seed)
    for name in scene.assembly.config.audit.attacks:
        before = set(findings.cells)
        ATTACKS[name](scene, findings)
        for key in findings.cells.keys() - before:
            if findings.cells[key].is_empty:
                del findings.cells[key]
        if findings.cells.keys() == before:
            findings.not_run(name, NO_UPLOAD)
    return findings.cells


def write(out: Path, audited: Audited) -> None:
    for name, content in (("audit.json", audited.rows), (ABOUT, dict(audited.about))):
        write_atomically(out / name, (json.dumps(content, indent=1) + "\n").encode())


def only(config: Config, names: Sequence[str]) -> Config:
    """The configuration with these attacks alone."""
    for name in names:
        if name not in get_args(audit_options.Attack):
            raise ConfigError(
                f"there is no attack '{name}'; known: {', '.join(get_args(audit_options.Attack))}"
            )
    return configuration.changed(config, [f"audit.attacks={list(names)}"]) if names else config
