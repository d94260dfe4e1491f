"""An audit: uploads as a configuration makes them, read by attackers who see messages and public files, then scored."""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexfed import config as configuration
from lexfed.assembly import Assembly, assemble
from lexfed.audit import attackers, score
from lexfed.audit.attackers import PUBLIC_FILES, Attacker, Public
from lexfed.audit.score import Cell
from lexfed.audit.transcript import Recorded, transcript
from lexfed.audit.uploads import Upload, uploads
from lexfed.config import Config
from lexfed.corpus.population import Client, Population
from lexfed.errors import ConfigError, DataError
from lexfed.federation import Federation, Requests, ServerState, plain
from lexfed.files import write_atomically
from lexfed.methods.defences import Defences
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.seeds import derive, numpy_generator, root, torch_generator
from lexfed.vocabulary import vectors
from lexfed.vocabulary.rotation import rotation
from lexfed.vocabulary.word import words
from lexfed.wire import ClientId, Message, Verb

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Scene:
    """What is attacked, and the truth it is scored with."""

    about: Mapping[str, Any]
    assembly: Assembly
    uploads: Sequence[Upload]
    everyone: Population  # with all their texts: the sentences that are not the client's come from here


def run(
    target: Path, settings: Sequence[str], attacks: Sequence[str], truth: Path | None, tell: Callable[[str], None]
) -> tuple[Rows, str]:
    """The rows of a configuration, a run or a recorded wire, and its name."""
    if target.is_dir() and not (target / "config.toml").is_file():
        if truth is None:
            raise ConfigError(
                f"{target} is a recorded wire: to score guesses, say what it was recorded with: --truth CONFIG"
            )
        config = only(configuration.load(_config_file(truth), settings), attacks)
        return of_wire(target, config), config.name
    config = only(configuration.load(_config_file(target), settings), attacks)
    return of_config(config, tell), config.name


def _config_file(path: Path) -> Path:
    return path / "config.toml" if path.is_dir() else path


def of_config(config: Config, tell: Callable[[str], None] = lambda line: None) -> Rows:
    """Every cell of the `[audit]` table; rows of one kind over all seeds together."""
    found: dict[tuple[Any, ...], Cell] = {}
    refused: ConfigError | None = None
    for about, cell in cells(config):
        name = ", ".join(f"{key} {value}" for key, value in about.items() if value is not None) + f", seed {cell.seed}"
        try:
            assembly = assemble(cell)
        except ConfigError as error:  # a defence that this method can't have
            tell(f"left out: {name}: {error}")
            refused = error
            continue
        tell(name)
        for key, one in attack(act(about, assembly)).items():
            _merge(found.setdefault(key, Cell(one.about)), one)
    if not found and refused is not None:
        raise refused
    return [cell.row() for cell in found.values()]


def of_wire(wire: Path, truth: Config) -> Rows:
    """A recorded wire; the configuration it was made with says what is true."""
    assembly = assemble(truth)
    scene = Scene(_about(truth, "as recorded", None), assembly, list(uploads(transcript(wire))), assembly.population)
    if not scene.uploads:
        raise DataError(f"{wire} holds no upload that moves a parameter: there is nothing to read")
    return [cell.row() for cell in attack(scene).values()]


def cells(config: Config) -> Iterator[tuple[dict[str, Any], Config]]:
    options = config.audit
    for method, defence, sentences, optimizer, batch, seed in product(
        options.methods or (config.method,),
        options.defences,
        options.sentences or (None,),
        options.optimizers or (config.train.optimizer,),
        options.batches or (config.train.batch,),
        options.seeds or (config.seed,),
    ):
        wanted = [f"method={method}", f"train.optimizer={optimizer}", f"train.batch={batch}", f"seed={seed}"]
        wanted += [f"rounds={options.rounds}", f"cohort.size={options.clients}"]
        wanted += [] if defence == "none" else [setting.strip() for setting in defence.split(";")]
        cell = configuration.loads(configuration.to_toml(config), wanted)
        yield _about(cell, defence, sentences), cell


def _about(config: Config, defence: str, sentences: int | None) -> dict[str, Any]:
    train = config.train
    about = {"method": config.method, "defence": defence, "batch": train.batch, "sentences": sentences}
    return {**about, "optimizer": train.optimizer}


def act(about: Mapping[str, Any], assembly: Assembly) -> Scene:
    """Run the first rounds for real, and keep what crossed the wire."""
    torch.set_num_threads(1)
    config = assembly.config
    everyone, sentences = assembly.population, about["sentences"]
    if sentences is not None:
        assembly = replace(assembly, population=everyone.trimmed(sentences))
    heard: list[Recorded] = []
    with tempfile.TemporaryDirectory() as folder:
        federation = listened(simulate(Site(assembly, Store(Path(folder)))), heard)
        server = assembly.method.server(federation, derive(root(config.seed), "server"), ServerState())
        for state in server:
            if state.round >= config.audit.rounds:
                break
    return Scene(about, assembly, list(uploads(heard))[: config.audit.clients * config.audit.rounds], everyone)


def listened(federation: Federation, heard: list[Recorded]) -> Federation:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, reply in federation.ask(verb, requests):
            meta = requests[client].meta
            down = Recorded(int(meta["round"]), int(meta["step"]), int(meta["ask"]), client, "down", verb, requests[client])
            heard.extend((down, replace(down, direction="up", message=reply)))
            yield client, reply

    return Federation(federation.clients, ask, plain(ask))


def attack(scene: Scene) -> dict[tuple[Any, ...], Cell]:
    """Every attack that the configuration names, on every upload."""
    config, found = scene.assembly.config, dict[tuple[Any, ...], Cell]()
    public = public_files(scene)

    def cell(name: str, attacker: str) -> Cell:
        about = {"attack": name, "attacker": attacker, **scene.about}
        one = found.setdefault(tuple(about.values()), Cell(about))
        one.seeds.add(config.seed)
        return one

    for upload in scene.uploads:
        client = scene.assembly.population.client(upload.client)
        if "rows" in config.audit.attacks:
            _timed(cell("rows", PUBLIC_FILES.name), partial(_rows, upload, client, scene, public))
        if "labels" in config.audit.attacks:
            _labels(cell("labels", PUBLIC_FILES.name), upload, client, scene.everyone.classes)
        if public.vectors is None:
            continue
        for attacker in (PUBLIC_FILES, *_adaptive(config, client, public)):
            if "span" in config.audit.attacks:
                _timed(cell("span", attacker.name), partial(_span, upload, client, public, attacker))
            if "sentences" in config.audit.attacks and attacker is PUBLIC_FILES:
                _timed(cell("sentences", attacker.name), partial(_sentences, upload, client, scene, public))
        if "norms" in config.audit.attacks and config.defences.rotation != "none":
            _timed(cell("norms", "isolated vectors"), partial(_norms, client, config.defences, public))
    return found


def public_files(scene: Scene) -> Public:
    config = scene.assembly.config
    tokens = tuple(scene.assembly.tokenizer.vocabulary.tokens)
    if not config.vocabulary.vectors:
        return Public(tokens=tokens)
    table = vectors.load(config.vocabulary.vectors).head(config.audit.candidates)
    return Public(table.words, torch.from_numpy(np.asarray(table.vectors[:], dtype=np.float32)), tokens)


def _timed(cell: Cell, work: Callable[[], Mapping[str, float | None] | None]) -> None:
    started = time.perf_counter()
    figures = work()
    cell.seconds += time.perf_counter() - started
    if figures is None:
        cell.nothing += 1
    else:
        cell.figures.append(figures)


def _rows(upload: Upload, client: Client, scene: Scene, public: Public) -> Mapping[str, float | None] | None:
    ranking = attackers.moved_words(upload)
    if ranking is None:
        return None
    encoder = scene.assembly.tokenizer
    limit = scene.assembly.config.train.max_length
    truth = {token for text in client.train for token in encoder.encode(text)[:limit]}
    return score.words(ranking, truth, torch.arange(len(public.tokens)), public.tokens)


def _span(upload: Upload, client: Client, public: Public, attacker: Attacker) -> Mapping[str, float | None] | None:
    found, truth = attackers.spectrum(upload), _true_words(client, public)
    if found is None or not truth:
        return None
    return score.words(attackers.spanned_words(found, public, attacker), truth, public.prior, public.words)


def _norms(client: Client, defences: Defences, public: Public) -> Mapping[str, float | None] | None:
    truth = sorted(_true_words(client, public))
    if not truth or public.vectors is None:
        return None
    own = public.vectors[truth]
    turned = torch.nn.functional.normalize(own) if defences.normalise else own  # a rotation leaves lengths as they are
    theirs = torch.nn.functional.normalize(public.vectors) if defences.normalise else public.vectors
    guess = attackers.matched_by_norm(turned, theirs)
    right = float((guess == torch.tensor(truth)).float().mean())
    return {"precision": right, "recall": right, "f1": right, "recall_at_n": right}


def _sentences(upload: Upload, client: Client, scene: Scene, public: Public) -> Mapping[str, float | None] | None:
    found = attackers.spectrum(upload)
    if found is None:
        return None
    own = [ids for text in client.train if (ids := _ids(text, public))]
    others = [ids for text in _others(client, scene) if (ids := _ids(text, public))]
    if not own or not others:
        return None
    scores = attackers.sentence_scores(found, [*own, *others], public, PUBLIC_FILES)
    return score.membership(scores[: len(own)], scores[len(own) :])


def _others(client: Client, scene: Scene) -> Iterator[str]:
    """Sentences of other clients, of each class as large a share as among the client's own."""
    people, wanted = scene.everyone, scene.assembly.config.audit.others
    start, end = people.starts[client.id], people.starts[client.id + 1]
    outside = np.concatenate([np.arange(start), np.arange(end, people.starts[-1])])
    pool, rng = people.train.take(outside), numpy_generator(derive(root(scene.assembly.config.seed), "others", client.id))
    labels, own = pool.labels, client.train.labels
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[: round(wanted * float((own == label).mean()))]
        for label in np.unique(own)
    ]
    known = set(client.train)
    return (text for text in pool.take(np.concatenate(chosen)) if text not in known)


def _labels(cell: Cell, upload: Upload, client: Client, classes: int) -> None:
    scores = attackers.label_scores(upload)
    if scores is None:
        cell.nothing += 1
        return
    truth = np.bincount(client.train.labels, minlength=classes) / len(client.train)
    length = float(scores.sub(scores.mean()).abs().max()) or 1.0  # uploads differ in length, labels do not
    centred = (scores - scores.mean()) / length
    cell.pairs += list(zip(centred.tolist(), truth.tolist(), strict=True))
    cell.figures.append({})


def _adaptive(config: Config, client: Client, public: Public) -> Iterator[Attacker]:
    """Attackers who know that vectors are turned, and have something to undo it with."""
    key = config.defences.key(client)
    if key is None or public.vectors is None:
        return
    turn: Tensor = rotation(key, public.vectors.shape[1])
    generator = torch_generator(derive(root(config.seed), "known words", client.id))
    for share in (0.5, 1.0):
        yield attackers.knows_words(share, public.vectors, turn, generator)
    yield attackers.colluder(turn)


def _true_words(client: Client, public: Public) -> set[int]:
    return {token for text in client.train for token in _ids(text, public)}


def _ids(text: str, public: Public) -> list[int]:
    return [public.places[word] for word in words(text) if word in public.places]


def _merge(into: Cell, one: Cell) -> None:
    into.figures += one.figures
    into.pairs += one.pairs
    into.nothing += one.nothing
    into.seeds |= one.seeds
    into.seconds += one.seconds


def write(out: Path, rows: Rows) -> Path:
    path = out / "audit.json"
    write_atomically(path, (json.dumps(rows, indent=1) + "\n").encode())
    return path


def only(config: Config, names: Sequence[str]) -> Config:
    """The configuration with these attacks alone."""
    known: Iterable[str] = ("rows", "span", "norms", "sentences", "labels")
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no attack '{name}'; known: {', '.join(known)}")
    return configuration.loads(configuration.to_toml(config), [f"audit.attacks={list(names)}"]) if names else config
