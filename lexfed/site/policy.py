"""What an organisation allows, whatever a server asks for: the `[policy]` table of `site.toml`."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from lexfed.core.errors import ConfigError, PrivacyError
from lexfed.experiment.assembly import Assembly
from lexfed.experiment.config import Config
from lexfed.secure.secure_options import Secure
from lexfed.wire import Message, Verb


class RefusedError(PrivacyError):
    """The site does not do this. The sentence goes to the server: it holds nothing of the texts."""


@dataclass(frozen=True)
class Policy:
    """The `[policy]` table: a request that it does not allow is refused, and logged."""

    # which methods may be imported and run, such as ["fedevocab"]; one's own as module:NAME
    methods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # pretrained models and models of one's own that may be loaded
    # which verbs are answered; default: all that these methods have
    verbs: tuple[str, ...] = ()
    # which arrays may leave, as patterns ("delta/*"); default: all that a verb allows
    arrays: tuple[str, ...] = ()
    clients: int = 2  # nothing is sent to a federation, or in a cohort, of fewer
    secure_sums: bool = False  # only sums that hide each one's part
    # of words in an agreement on a word list: "veiled", none that this site alone holds is spelt,
    # whatever the terms say; "open": as the terms say
    words: Literal["veiled", "open"] = "veiled"
    # whose noise counts: "any", or "own", which this site adds itself (local or distributed)
    noise: Literal["any", "own"] = "any"
    epsilon: float | None = None  # for this site's lifetime, over all federations; default: none
    delta: float = 1e-6
    figures: bool = True  # whether requests for scores are answered
    exchanges: int = 10_000  # requests that are answered, over this site's lifetime
    longest: int = 1 << 28  # bytes of one answer
    numbers: int = 1 << 28  # in one answer
    bytes: int = 1 << 40  # of all answers, over this site's lifetime

    def __post_init__(self) -> None:
        if not self.methods:
            raise ConfigError("policy.methods names no method: say which may be run here")
        if min(self.clients, self.exchanges, self.longest, self.numbers, self.bytes) < 1:
            raise ConfigError("policy.clients, exchanges, longest, numbers and bytes: at least 1")
        if self.noise == "own" and self.epsilon is None:
            raise ConfigError(
                "policy.noise = 'own' needs policy.epsilon: it says how much is enough"
            )
        if self.epsilon is not None and not self.epsilon > 0:
            raise ConfigError("policy.epsilon must be above 0")
        if not 0 < self.delta < 1:
            raise ConfigError("policy.delta is between 0 and 1")


def check_terms(policy: Policy, config: Config) -> None:
    """Whether this site takes part in such a federation."""
    _check_crowd(policy, config)
    if config.entry.has("word list") and policy.words == "veiled" and not _is_veiled(config):
        raise RefusedError("the agreement would spell words of this site alone (policy.words)")
    if policy.noise == "own" and config.privacy.placement not in ("local", "distributed"):
        raise RefusedError("this site counts only noise that it adds itself (policy.noise)")


def _check_crowd(policy: Policy, config: Config) -> None:
    """Among how many this site's part is."""
    cohort = config.cohort
    smallest = config.data.clients
    if cohort.sampling != "everyone" and not config.entry.has("alone"):
        smallest = min(smallest, cohort.size)
    if config.secure.sums:  # whatever cohort the server draws, and whoever it says has left
        smallest = min(smallest, config.secure.stay(config.secure.least))
    if smallest < policy.clients:
        raise RefusedError(
            f"a cohort of {smallest} is below this site's least of {policy.clients} "
            "(policy.clients)"
        )
    if policy.secure_sums and not config.secure.sums:
        raise RefusedError("this site takes part in secure sums only (policy.secure_sums)")
    if config.secure.sums and config.secure.sparse_above < Secure.sparse_above:
        raise RefusedError("secure.sparse_above is below what this site takes for large")


def _is_veiled(config: Config) -> bool:
    """Whether no word is spelt that one organisation alone holds."""
    agreement = config.agreement
    hidden = agreement.hashed and agreement.holders >= 2 and agreement.counts != "exact"
    return agreement.trust == "nobody" or (hidden and agreement.rule in ("summed", "intersection"))


def needs_common_secret(config: Config) -> bool:
    """Whether organisations must share what the server lacks."""
    hashes = config.agreement.hashed and config.agreement.trust == "server"
    defences = config.defences
    return (config.entry.has("word list") and hashes) or (
        config.entry.has("own words")
        and (defences.rotation == "shared" or defences.private_layers == "first")
    )


def check_promise(policy: Policy, assembly: Assembly) -> None:
    """Under an epsilon of its own, a site takes part only where a promise can be kept."""
    if policy.epsilon is None:
        return
    promise = assembly.promise
    if promise is None or promise.taints:
        why = "no noise is added" if promise is None else promise.taints[0]
        raise RefusedError(f"this site has an epsilon to keep, and nothing is promised: {why}")


def check_verb(policy: Policy, verb: Verb) -> None:
    base = verb.name.rpartition("-")[0] if verb.phase else verb.name
    if policy.verbs and base not in policy.verbs:
        raise RefusedError(f"'{verb.name}' is not among the verbs of this site (policy.verbs)")
    noisy = policy.epsilon is not None or policy.noise == "own"  # no noise of ours covers a score
    if verb.kind == "figures" and (noisy or not policy.figures):
        raise RefusedError("this site gives no scores (policy.figures, policy.epsilon, noise)")


def check_reply(policy: Policy, verb: Verb, reply: Message, size: int) -> None:
    """The last look at what leaves. What a verb allows, and that nothing private is in it, was
    looked at before.
    """
    if size > policy.longest:
        raise RefusedError("an answer of more bytes than policy.longest")
    if sum(array.numel() for array in reply.arrays.values()) > policy.numbers:
        raise RefusedError("an answer of more numbers than policy.numbers")
    for name in reply.arrays if policy.arrays else ():
        if not any(fnmatchcase(name, pattern) for pattern in policy.arrays):
            raise RefusedError(f"the array '{name}' is not among those that leave (policy.arrays)")
