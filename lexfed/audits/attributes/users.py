"""Users whose gender and age are guessed from what they upload (`attributes`), beside the truth.

The attacker knows the attribute of one half of the users, drawn by chance, and is scored on the
other half. It looks at all that an upload moved, or at the output's bias alone: in a language model
it moves by how often each word came, and it is so short that little of the noise falls on it. The
first round (the model knows nothing yet) and the last one that was recorded are attacked apart: a
row says which.
"""

import time
from collections.abc import Mapping
from itertools import product

import numpy as np
import torch
from torch import Tensor

from lexfed.audits.attributes.inference import age_bands, features, figures, infer
from lexfed.audits.closed_form.attackers import BIASES
from lexfed.audits.scene import Findings, Scene
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, numpy_generator, root
from lexfed.corpus.population import Population
from lexfed.experiment.assembly import Assembly
from lexfed.wire import ClientId

ATTACK = "attributes"
WHOLE, BIAS = "knows half of the users", "knows half of the users, reads the bias"
DIMS = 1024  # numbers that an upload is projected to

Classes = Mapping[ClientId, int]  # of the users whose attribute the data tells


def attributes(scene: Scene, findings: Findings) -> None:
    config = scene.assembly.config
    seed = derive(root(config.seed), "attributes")
    truth = {name: classes_of(name, scene.assembly.population) for name in config.audit.attributes}
    rounds = sorted({upload.round for upload in scene.uploads})
    for number, attacker in product(dict.fromkeys([*rounds[:1], *rounds[-1:]]), (WHOLE, BIAS)):
        seen = {u.client: _seen(u.delta, attacker) for u in scene.uploads if u.round == number}
        sent = {client: features(delta, DIMS, seed) for client, delta in seen.items() if delta}
        for name, classes in truth.items() if sent else ():
            cell = findings.cell(name, attacker, round=number + 1)
            started = time.perf_counter()
            cell.figures += _guessed(sent, classes, seed)
            cell.seconds += time.perf_counter() - started


def check(assembly: Assembly) -> None:
    """What the data can't tell is refused before anybody trains."""
    config = assembly.config
    if ATTACK not in config.audit.attacks:
        return
    if config.entry.has("rows"):
        raise ConfigError(
            "audit.attacks: attributes are guessed from whole updates, and word vectors travel as "
            "rows"
        )
    for name in config.audit.attributes:
        classes_of(name, assembly.population)


def classes_of(name: str, people: Population) -> Classes:
    """The class of every user: names are classes as they stand, ages go by band. Who does not say
    is left out.
    """
    column = people.train.attributes.get(name)
    if column is None:
        known = ", ".join(people.train.attributes) or "none"
        raise DataError(
            f"the data does not tell the {name} of users (known: {known}); set audit.attributes "
            "or data.attributes"
        )
    values = {
        client: set(column.take(people.client(client).train.rows).to_pylist())
        for client in range(len(people))
    }
    if any(len(several) > 1 for several in values.values()):
        raise DataError(
            f"texts of one client differ in {name}: clients must be users, set data.partition = "
            "'user'"
        )
    told = {client: value for client, (value,) in values.items() if value is not None}
    if name == "age" and all(isinstance(value, int) for value in told.values()):
        told = dict(zip(told, age_bands(np.array(list(told.values()))).tolist(), strict=True))
    places = {value: place for place, value in enumerate(sorted(set(told.values())))}
    if len(places) < 2:
        raise DataError(f"there are not two kinds of users by {name}: there is nothing to guess")
    return {client: places[value] for client, value in told.items()}


def _seen(delta: Mapping[str, object], attacker: str) -> Params:
    """What this attacker looks at; nothing, if no bias of an output travels."""
    dense = {name: value for name, value in delta.items() if isinstance(value, Tensor)}
    return (
        dense
        if attacker == WHOLE
        else {name: value for name, value in dense.items() if name in BIASES}
    )


def _guessed(
    sent: Mapping[ClientId, Tensor], classes: Classes, seed: Seed
) -> list[dict[str, float]]:
    """Half of the users are known; figures of each of the others."""
    users = sorted(sent.keys() & classes.keys())
    if len(users) < 4:
        raise DataError(
            f"{len(users)} users who sent something and whose attribute is told are too few; "
            "raise audit.clients"
        )
    order = numpy_generator(derive(seed, "known")).permutation(len(users))
    x, y = (
        torch.stack([sent[user] for user in users])[order],
        torch.tensor([classes[user] for user in users])[order],
    )
    half = len(users) // 2
    scores = infer(x[:half], y[:half], x[half:], classes=max(classes.values()) + 1)
    return figures(scores, y[half:], y[:half])
