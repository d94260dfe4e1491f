"""Is the epsilon that a configuration prints true? Probes, users of our own making, are sent
through its rounds, and what is released is asked which of them were there (`one_run`).

    probe i:  an update far longer than the clip, along one number of the model that is its alone
    central:  a fair coin says whether it is among the users. When it is asked, it answers
              score: what the released models say along its number, round by round; a round of
                     which it may have been part counts by its likelihood ratio
    local:    a fair coin says whether its update goes up or down
              score: what its own uploads say

The rounds, the handler, the mechanism, the sampler and the ledger are those of the configuration: a
probe's update stands in the place of the local one, inside the method's own handler
(`parts.layer`). A handler that trains otherwise is refused, as nothing would be tested. With
`privacy.noise_cohort` they are those of the deployment that its epsilon speaks of, else with more
users at the same sampling rate, if there are fewer than probes. All other users say nothing: an
attacker may know what they sent, and then it is as if they had not.

What is measured is a lower bound. One below the printed epsilon refutes nothing, and proves
nothing; one above it says that the promise is broken. Canaries are something else: phrases that are
planted in texts (`closed_form.phrases`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lexfed.audits.closed_form.attackers import PUBLIC_FILES
from lexfed.audits.one_run import SHARES, OneRun, Share, audit
from lexfed.audits.scene import Findings
from lexfed.audits.score import Cell
from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, numpy_generator, root
from lexfed.corpus.population import Client, Population
from lexfed.experiment import building
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly
from lexfed.experiment.config import Config
from lexfed.experiment.promised import promised
from lexfed.federation import (
    ClientState,
    Federation,
    Handler,
    Method,
    Replies,
    Requests,
    ServerState,
    plain,
)
from lexfed.learning.private_table import PrivatePart
from lexfed.learning.task import LocalUpdate, Trained
from lexfed.privacy.mechanism import deltas, dense
from lexfed.wire import ClientId, Message, Verb, below, echoing, unpack

ATTACK = "epsilon"
RELEASED = "every released model"
LONG = 100.0  # clips: what a probe would send, if nobody clipped it
LEAST_SPREAD = 1e-3  # in clips: no noise at all is taken for that much

NO_NOISE = (
    "there is no epsilon to measure: no noise is added (set privacy.placement and "
    "privacy.epsilon, or leave out --attack epsilon)"
)

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    run: OneRun
    printed: float | None  # None: nothing is promised


@dataclass(frozen=True)
class Trial:
    """What probes are sent through: a configuration for so many users, and what its method is built
    from.
    """

    config: Config
    people: Population
    parts: Any

    @property
    def expected(self) -> float:
        everyone = self.config.cohort.sampling == "everyone"
        return float(len(self.people) if everyone else self.config.cohort.size)

    @property
    def rate(self) -> float:
        return self.expected / len(self.people)


def check(assembly: Assembly) -> None:
    """Refused before anything is trained."""
    if assembly.promise is None:
        raise ConfigError(NO_NOISE)
    if assembly.config.privacy.placement == "distributed":
        raise ConfigError(
            "probes answer one by one, and noise in shares is within secure sums alone: measure "
            "the same noise with privacy.placement = 'central' and cohort.sampling = 'everyone'"
        )


def measured(about: Mapping[str, Any], assembly: Assembly) -> Mapping[tuple[Any, ...], Cell]:
    findings = Findings(about, assembly.config.seed)
    local = assembly.config.privacy.placement == "local"
    cell = findings.cell(ATTACK, PUBLIC_FILES.name if local else RELEASED)
    started = time.perf_counter()
    found = measure(trial(assembly.config, assembly.population))
    cell.seconds += time.perf_counter() - started
    cell.figures.append({"epsilon_measured": found.run.epsilon, "epsilon": found.printed})
    return findings.cells


def trial(config: Config, people: Population) -> Trial:
    """The deployment that the epsilon speaks of; without one, the same with enough users."""
    privacy, size = config.privacy, config.cohort.size
    users = len(people)
    if privacy.noise_cohort is not None and privacy.population is not None:
        size, users = round(privacy.noise_cohort), privacy.population
    times = -(-config.audit.probes // users)  # the sampling rate stays what it is
    crowded = configuration.changed(config, [f"cohort.size={size * times}"])
    crowd = _crowd(people, users * times)
    return Trial(crowded, crowd, crowded.entry.kind.parts(crowded, crowd, crowded.entry))


def _crowd(people: Population, users: int) -> Population:
    """The same clients, and as many more without a text."""
    more = max(0, users - len(people))
    last = np.full(more, people.starts[len(people)], dtype=np.int64)
    here = len(people) + 1
    starts = np.concatenate([people.starts[:here], last, people.starts[here:]])
    return replace(people, starts=starts)


def measure(tried: Trial) -> Measured:
    """One run of all rounds."""
    config = tried.config
    seed = derive(root(config.seed), "audit", ATTACK)
    probes = Probes(tried, seed)
    if not hasattr(tried.parts, "layer"):
        raise _out_of_reach(config)
    method = building.build(config, replace(tried.parts, layer=probes.layer))
    promise = promised(tried.parts.promise, config, method, tried.parts.people)
    if promise is None:
        raise ConfigError(NO_NOISE)
    federation, state = probes.federation(method), ServerState()
    for state in method.server(federation, derive(seed, "server"), ServerState()):
        probes.see(state)
    found = audit(probes.scores, probes.coins, promise.delta, shares=_shares(tried))
    return Measured(found, promise.statement(state.ledger).epsilon_this_run)


def _out_of_reach(config: Config) -> ConfigError:
    return ConfigError(
        f"probes can't be sent through method '{config.method}', so its epsilon is not tested: "
        "make its handler with trainer (lexfed.learning.training), or train by parts.layer"
    )


def _shares(tried: Trial) -> Sequence[Share]:
    """How many guesses are made, by the configuration alone. Who was never asked can't be told to
    be out: where few are asked, only those that stand out are guessed.
    """
    met = 1 - (1 - min(1.0, tried.rate)) ** tried.config.rounds
    if met > 0.9:
        return SHARES
    if tried.config.privacy.placement == "local":
        return [(met * into, met * out) for into, out in SHARES]
    return [(0.9 * met / 2, 0.0), (0.2 * met / 2, 0.0), SHARES[1]]


@dataclass
class Probes:
    """The probes of one run, and what was seen of them so far."""

    tried: Trial
    seed: Seed
    clip: float = 1.0  # of the round at hand, as users are told it
    before: Params = field(default_factory=dict)
    step: Numbers | None = None  # that the server made along each number, before the last
    rounds: int = 0
    made: int = 0  # updates of probes
    drawn: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scores: Numbers = np.zeros(len(self.coins))

    @property
    def local(self) -> bool:
        return self.tried.config.privacy.placement == "local"

    @cached_property
    def coins(self) -> npt.NDArray[np.bool_]:
        count = min(self.tried.config.audit.probes, len(self.tried.people))
        return numpy_generator(derive(self.seed, "coins")).random(count) < 0.5

    # --- what probes do

    def layer(self, update: LocalUpdate, task: Any, private: PrivatePart) -> LocalUpdate:
        """In the place of what a method does to its model."""
        return self.update

    def update(
        self, params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Trained:
        """One number of what is shared is moved, far."""
        self.made += 1
        name, place = self._place(below("model", message.arrays), client.id)
        moved = params[name].flatten().clone()
        up = not self.local or bool(self.coins[client.id])
        moved[place] += LONG * float(message.meta["clip"]) * (1 if up else -1)
        return Trained({**params, name: moved.reshape(params[name].shape)}, 0.0)

    def federation(self, method: Method) -> Federation:
        """Of all users, of whom only probes that are there answer. A probe has some user's texts:
        what it sends does not depend on them.
        """
        people = self.tried.people
        somebody = people.client(0)

        def ask(verb: Verb, requests: Requests) -> Replies:
            if verb.moves:
                return self._answers(verb, method.client[verb], somebody, requests)
            return iter(())

        return Federation(range(len(people)), ask, plain(ask))

    def _answers(
        self, verb: Verb, handler: Handler, somebody: Client, requests: Requests
    ) -> Iterator[tuple[ClientId, Message]]:
        for client, message in requests.items():
            self.clip = float(message.meta["clip"])
            if client >= len(self.coins) or not (self.local or self.coins[client]):
                continue
            made, secret = self.made, derive(self.seed, "probe", client)
            reply, _ = handler(message, replace(somebody, id=client, secret=secret), ClientState())
            if self.made == made:
                raise _out_of_reach(self.tried.config)
            if reply is None:
                continue
            if self.local:
                self._hear(client, reply)
            yield client, echoing(message, reply)

    # --- what is seen of them

    def _hear(self, client: ClientId, reply: Message) -> None:
        delta = {name: dense(value) for name, value in deltas(unpack(reply.arrays)).items()}
        name, place = self._place(delta, client)
        self.scores[client] += float(delta[name].flatten()[place]) / self.clip

    def see(self, state: ServerState) -> None:
        """A model is released: how it moved is the mean of updates with noise, times what the
        server's optimizer made of it; of momentum the part that is old is taken off again.
        """
        same = {n: v.shape for n, v in state.params.items()} == {
            n: v.shape for n, v in self.before.items()
        }
        if same and state.round > self.rounds and not self.local:
            server = self.tried.config.server
            step = (self._along(state.params) - self._along(self.before)) / server.lr
            kept = server.beta1 if server.optimizer == "momentum" else 0.0
            old = self.step if self.step is not None else np.zeros_like(step)
            self.scores += self._likelihood((step - kept * old) * self.tried.expected / self.clip)
            self.step = step
        elif not same:  # the first model, or one with another vocabulary
            self.step = None
        self.before, self.rounds = state.params, state.round

    def _likelihood(self, seen: Numbers) -> Numbers:
        """log P[seen | there] - log P[seen | not there], if who is there is asked by a coin, and
        noise is as large as most probes' numbers say.
        """
        spread = 1.4826 * float(np.median(np.abs(seen - np.median(seen))))
        asked = (seen - 0.5) / max(spread, LEAST_SPREAD) ** 2
        rate = min(1.0, self.tried.rate)
        return asked if rate == 1 else np.logaddexp(np.log1p(-rate), np.log(rate) + asked)

    def _along(self, params: Params) -> Numbers:
        """Each probe's own number."""
        whole = torch.cat([params[name].flatten() for name in sorted(params)])
        return whole[torch.from_numpy(self._numbers(params))].double().numpy()

    def _place(self, params: Params, client: ClientId) -> tuple[str, int]:
        place = int(self._numbers(params)[client])
        for name in sorted(params):  # clients and server may have them in another order
            if place < params[name].numel():
                return name, place
            place -= params[name].numel()
        raise ValueError("a number beyond the last")

    def _numbers(self, params: Params) -> npt.NDArray[np.int64]:
        """Which number of the model is whose: drawn again when its size changes."""
        size = sum(value.numel() for value in params.values())
        if size < len(self.coins):
            raise ConfigError(
                f"the model has {size} numbers for {len(self.coins)} probes: lower audit.probes"
            )
        if size not in self.drawn:
            rng = numpy_generator(derive(self.seed, "numbers", size))
            self.drawn[size] = rng.permutation(size)[: len(self.coins)]
        return self.drawn[size]
