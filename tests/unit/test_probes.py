"""`lexfed audit --attack epsilon`: users of our own making, sent through a configuration's own rounds. What they show is below
what is printed where the mechanism does what its ledger says, and above it where it does not.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lexfed.audits import probes
from lexfed.audits.probes import Measured, Trial, measure, trial
from lexfed.core.errors import ConfigError
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from tests.conftest import ROOT, Lexfed
from tests.unit.test_auditing import audited, one, words

LEARNED = ROOT / "experiments" / "quick" / "learned.toml"
FEDAVG = """
method = "fedavg"
rounds = 2
[data]
name = "rotten_tomatoes"
clients = 10
limit = 200
[vocabulary]
vectors = "hashed:8"
size = 500
[model]
embedding = 8
hidden = 8
[cohort]
sampling = "everyone"
[privacy]
placement = "central"
noise = 2.0
clip = 0.5
delta = 1e-5
accountant = "rdp"
[audit]
probes = 1000
"""
CENTRAL = configuration.loads(FEDAVG)
LOCAL = ["privacy.placement=local", "privacy.noise=4.0", "rounds=1"]
POISSON = ["cohort.sampling=poisson", "cohort.size=5", "rounds=3", "audit.probes=2000"]
ADAPTIVE = ["privacy.quantile=0.5", "privacy.clip_lr=1.0"]
# a small model, of the paper's deployment: 10 million users, 20,000 a round
SMALL = ["data.clients=100", "data.unseen=2", "tokenizer.size=600", "language_model.width=16"]
SMALL += ["tokenizer_for_free.switch=[]", "audit.probes=6000", "privacy.epsilon=2.0"]


def tried(config: Config, seed: int) -> Trial:
    config = configuration.changed(config, [f"seed={seed}"])
    return trial(config, assemble(config).population)


def weakened(fair: Trial, noise: float) -> Trial:
    """A mechanism with less noise than its ledger is charged for."""
    options = replace(fair.parts.mechanism.options, noise=noise)
    mechanism = replace(fair.parts.mechanism, options=options)
    return replace(fair, parts=replace(fair.parts, mechanism=mechanism))


def both(config: Config, noise: float, seed: int = 0) -> tuple[Measured, Measured]:
    fair = tried(config, seed)
    return measure(fair), measure(weakened(fair, noise))


# --- good and broken -----------------------------------------------------------------------------


def test_what_probes_show_is_below_what_is_printed_and_above_it_with_a_tenth_of_the_noise() -> None:
    """Printed 3.2; shown 0.9 to 1.4, and 5.2 where the noise is a tenth."""
    fair, broken = both(CENTRAL, 0.2)
    assert fair.printed is not None
    assert 0.5 < fair.run.epsilon < fair.printed < 4
    assert broken.printed == fair.printed, "its ledger says the same"
    assert broken.run.epsilon > fair.printed


@pytest.mark.parametrize(
    ("settings", "noise", "least"),
    [(LOCAL, 0.4, 0.2), (POISSON, 0.0, 0.2), (ADAPTIVE, 0.2, 0.5)],
    ids=["local", "poisson", "adaptive"],
)
def test_so_it_is_wherever_noise_is_added_and_however_users_come(
    settings: list[str], noise: float, least: float
) -> None:
    """Printed 2.2, 2.4, 3.2; shown 0.5 to 0.8, 0.5 to 0.9, 1.0 to 1.4; broken 5.2, 3.0, 5.2."""
    fair, broken = both(configuration.changed(CENTRAL, settings), noise)
    assert fair.printed is not None
    assert least < fair.run.epsilon < fair.printed < broken.run.epsilon


def test_so_it_is_for_the_deployment_of_a_language_model() -> None:
    """2 of 1,000 users a round: of noise as it should be nothing is seen; without it 3.2 is, and 2.0 is printed."""
    fair, broken = both(configuration.load(LEARNED, SMALL), 0.0)
    assert fair.printed == pytest.approx(2.0, abs=0.01)
    assert fair.run.epsilon < fair.printed < broken.run.epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [[], LOCAL, POISSON, ADAPTIVE, ["privacy.randomness=system", "rounds=1"]],
    ids=["central", "local", "poisson", "adaptive", "system"],
)
def test_no_seed_shows_more_than_is_printed(settings: list[str]) -> None:
    """Ten runs: each is wrong with a chance of one in twenty at most, and far from it, as the bound is not tight."""
    config = configuration.changed(CENTRAL, settings)
    for seed in range(10):
        found = measure(tried(config, seed))
        assert found.printed is not None
        assert found.run.epsilon < found.printed


# --- methods of one's own -------------------------------------------------------------------------

MINE = """
from dataclasses import replace
import torch, lexfed
from lexfed.methods.fedavg import fedavg
from lexfed.learning.training_verbs import TRAIN
from lexfed.wire import Array, Form
from lexfed.wire.verbs import CLOCK
COUNT = lexfed.Verb("count", Form(meta=CLOCK), Form({"texts": Array()}))

def bare(parts, options):
    \"\"\"The noise is forgotten.\"\"\"
    quiet = replace(parts.mechanism, options=replace(parts.mechanism.options, noise=0.0))
    handler = fedavg(replace(parts, mechanism=quiet)).client[TRAIN]
    return replace(fedavg(parts), client={**fedavg(parts).client, TRAIN: handler})

def count(message, client, state):
    return lexfed.Message({"texts": torch.tensor(float(len(client.train)))}), state

def counting(parts, options):
    method = fedavg(parts)
    return replace(method, client={**method.client, COUNT: count})

def apart(parts, options):
    \"\"\"A handler that nothing can be sent through.\"\"\"
    def handle(message, client, state):
        zeros = {name: torch.zeros_like(value) for name, value in message.arrays.items()}
        moved = {name.removeprefix("model/"): value for name, value in zeros.items()}
        bound = parts.mechanism.bound(moved, 1, 0.0, message, client.secret)
        return lexfed.Message(bound), state
    return replace(fedavg(parts), client={**fedavg(parts).client, TRAIN: handle})

BARE = lexfed.Entry("bare", lexfed.CLASSIFIER, bare)
COUNTING = lexfed.Entry("counting", lexfed.CLASSIFIER, counting)
APART = lexfed.Entry("apart", lexfed.CLASSIFIER, apart)
"""


def mine(tmp_path: Path, name: str, *settings: str) -> Config:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(FEDAVG)
    return configuration.load(tmp_path / "mine.toml", [f"method=mine:{name}", *settings])


def test_the_methods_own_handler_is_measured(tmp_path: Path) -> None:
    """Probes went through a handler of lexfed's, and one that adds no noise passed: shown 0.6,
    printed 2.2.
    """
    found = measure(tried(mine(tmp_path, "BARE", *LOCAL), 0))
    assert found.printed is not None
    assert found.run.epsilon > found.printed


def test_nothing_is_printed_where_the_run_promises_nothing(tmp_path: Path) -> None:
    """It printed 2.2 beside a run that said "No promise"."""
    config = mine(tmp_path, "COUNTING", "audit.probes=200", "rounds=1")
    assembly = assemble(config)
    assert assembly.promise is not None
    assert assembly.promise.taints
    assert measure(trial(config, assembly.population)).printed is None


def test_a_handler_that_probes_do_not_reach_is_not_said_to_be_tested(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="so its epsilon is not tested"):
        measure(tried(mine(tmp_path, "APART", "audit.probes=200"), 0))


@pytest.mark.parametrize("method", ["fedevocab", "lg_fedavg", "fedrecon", "fedprox"])
def test_every_method_of_lexfeds_is_reached(method: str) -> None:
    own = {"lg_fedavg": ["lg_fedavg.warm=1"]}.get(method, [])
    settings = [f"method={method}", "audit.probes=150", *own]
    fair, broken = both(configuration.changed(CENTRAL, settings), 0.0)
    assert broken.run.epsilon > fair.run.epsilon + 1


# --- how -----------------------------------------------------------------------------------------


def test_a_trial_has_the_rate_and_the_noise_of_what_is_promised() -> None:
    few = tried(configuration.changed(CENTRAL, POISSON), 0)
    assert (len(few.people), few.expected, few.rate) == (2000, 1000.0, 0.5), "more users, same rate"
    deployed = tried(configuration.load(LEARNED, SMALL), 0)
    assert (len(deployed.people), deployed.expected) == (10_000_000, 20_000.0)
    whole = tried(configuration.changed(CENTRAL, ["audit.probes=100"]), 0)
    assert (len(whole.people), whole.rate) == (100, 1.0)
    assert len(whole.people.seen_text) == len(tried(CENTRAL, 0).people.seen_text), "no text more"


def test_guesses_are_fixed_by_the_configuration() -> None:
    assert probes._shares(tried(CENTRAL, 0)) == probes.SHARES
    rare = probes._shares(tried(configuration.load(LEARNED, SMALL), 0))
    met = 1 - (1 - 0.002) ** 20
    assert rare[0] == (pytest.approx(0.9 * met / 2), 0.0), "of those who were asked half are there"


def test_momentum_is_taken_off_again() -> None:
    """The same probes, the same noise: the server's optimizer changes nothing in what they show."""
    plain = measure(tried(CENTRAL, 3)).run
    heavy = configuration.changed(CENTRAL, ["server.optimizer=momentum", "server.lr=0.3"])
    assert abs(measure(tried(heavy, 3)).run.right - plain.right) <= 2, "but for rounding"
    adam = configuration.changed(CENTRAL, ["server.optimizer=adam"])
    assert measure(tried(adam, 3)).run.epsilon < 3.2


def test_every_probe_has_a_number_of_its_own_wherever_it_lies() -> None:
    crowd = tried(CENTRAL, 0)
    some = probes.Probes(crowd, b"0" * 32)
    params = crowd.parts.task.init(b"1" * 32)
    places = {some._place(params, client) for client in range(len(some.coins))}
    assert len(places) == len(some.coins) == 1000
    assert {name for name, _ in places} >= {n for n, v in params.items() if v.numel() > 10}
    assert np.array_equal(some._numbers(params), probes.Probes(crowd, b"0" * 32)._numbers(params))


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "private.toml"
    path.write_text(FEDAVG)
    return path


def test_the_command_prints_both(config: Path, lexfed: Lexfed) -> None:
    rows = audited(lexfed, config, "--attack", "epsilon")
    row = one(rows, attack="epsilon")
    assert row["attacker"] == "every released model"
    assert 0 < row["epsilon_measured"] < row["epsilon"] < 4
    line = f"epsilon measured at least {row['epsilon_measured']:.2f} (95 %), printed at most {row['epsilon']:.2f}"
    assert line in Path("audit/audit.html").read_text()
    assert "broken" not in Path("audit/audit.html").read_text()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["privacy.placement=none"], "no epsilon to measure"),
        (["audit.probes=20"], "at least 100"),
        (["audit.probes=200000"], "lower audit.probes"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    settings: list[str], line: str, config: Path, lexfed: Lexfed
) -> None:
    result = lexfed("audit", config, "--attack", "epsilon", *words(*settings), "--out", "audit")
    assert result.returncode == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("audit").exists()


def test_a_promise_that_is_broken_is_called_so() -> None:
    from lexfed.audits.score import KEYS
    from lexfed.report.audit_page import epsilons

    row = dict.fromkeys(KEYS) | {"method": "fedavg", "defence": "none", "epsilon": 2.0}
    assert list(epsilons([row])) == []
    (line,) = epsilons([row | {"epsilon_measured": 3.0}])
    assert (
        line
        == "epsilon measured at least 3.00 (95 %), printed at most 2.00: the promise is broken (fedavg, none)"
    )
