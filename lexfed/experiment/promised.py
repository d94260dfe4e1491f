"""What a method and its data do to a promise: what a client is, and what is told without noise."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lexfed.corpus.catalogue import CATALOGUE
from lexfed.corpus.population import Population
from lexfed.experiment.config import Config, own_names
from lexfed.federation import Method
from lexfed.privacy.planning import of_delta
from lexfed.privacy.promise import Promise
from lexfed.wire import Form


def promised(
    promise: Promise | None, config: Config, method: Method, people: Population
) -> Promise | None:
    """The promise with its unit, and without an epsilon where something takes that away."""
    if promise is None:
        return None
    user = config.data.partition == "user"
    reasons = [
        *_unpaid(method), *(_together(config) if user else _spread(config, people)),
        *_classes(config, people), *_delta(config, people),
    ]  # fmt: skip
    notes = (*promise.notes, *_unchecked(config))
    return replace(promise.tainted(*reasons), unit="user" if user else "client", notes=notes)


def _unchecked(config: Config) -> Iterator[str]:
    """Things of the user's own: lexfed can't look into them."""
    for name in own_names(config):
        what = "asks users for nothing else" if name == config.method else "tells nothing of users"
        yield f"'{name}', which lexfed can't check, {what}"


def _unpaid(method: Method) -> Iterator[str]:
    """What users are asked for, and nobody pays for. (Figures are the experimenter's, and a
    deployment has none. A reply that holds nothing tells nothing.)
    """
    for verb in method.client:
        if verb.kind != "figures" and not verb.charged and verb.up != Form():
            yield f"the method asks users for '{verb.name}', which no noise covers"


def _together(config: Config) -> Iterator[str]:
    """Where nothing is held out, only who takes part is drawn from all, by names and not by
    texts.
    """
    data = config.data
    if data.splits == "together" and (data.test or data.validation or data.limit is not None):
        yield (
            "who trains on what was decided from all users' texts together (data.splits = "
            "'together')"
        )


def _spread(config: Config, people: Population) -> Iterator[str]:
    """A client is bounded; a user who sits at several is not."""
    text = people.seen_text
    if text.users is None:
        return
    owners = np.repeat(np.arange(len(people)), np.diff(people.starts[: len(people) + 1]))
    users = text.users.take(text.rows).to_pylist()
    places: dict[str, set[int]] = {}
    for user, owner in zip(users, owners.tolist(), strict=True):
        if user is not None:
            places.setdefault(user, set()).add(owner)
    most = max(map(len, places.values()), default=0)
    if most > 1:
        yield (
            f"the texts of one user lie with up to {most} clients (data.partition = "
            f"'{config.data.partition}'), and noise covers one client: set data.partition = 'user'"
        )


def _classes(config: Config, people: Population) -> Iterator[str]:
    """How many classes there are and what they are called is in the model for all to see."""
    data, named = config.data, people.train.label_names is not None
    known = data.name in CATALOGUE or bool(data.labels) or (data.classes is not None and not named)
    if config.entry.kind.labels and not known:
        yield (
            "the classes were read from the users' texts and are told as they are: state their "
            "names with data.labels" + ("" if named else ", or their number with data.classes")
        )


def _delta(config: Config, people: Population) -> Iterator[str]:
    count = max(len(people), config.privacy.population or 0)
    yield from (f"privacy.{flaw}" for flaw in of_delta(config.privacy.delta, count))
