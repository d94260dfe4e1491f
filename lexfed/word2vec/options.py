"""The `[word2vec]` table, apart from what it configures: compiled code takes memory that other
methods can do without.
"""

from dataclasses import dataclass
from typing import Literal

from lexfed.core.errors import ConfigError
from lexfed.wire import Precision

Rule = Literal["in_turn", "add_rare", "mean", "row_mean", "row_cap", "row_adagrad"]


@dataclass(frozen=True)
class Word2Vec:
    """The `[word2vec]` table."""

    dimension: int = 200  # numbers of a word's vector
    window: int = 5  # words on either side of a centre that count as its contexts
    # what a pair's negatives count for together; in passes also how many a centre draws
    negatives: int = 5
    subsample: float = 1e-3  # frequent words are left out by chance; 0: none
    # what an organisation does in a round: a pass over its next stretch of text, or single
    # gradients
    mode: Literal["fedavg", "fedsgd"] = "fedavg"
    lr: float = 0.025  # of one pair; falls to a hundredth over the rounds
    epochs: float = 1.0  # fedavg: passes over each organisation's text, over all rounds together
    # after a share s of the rounds, s to this power of all training is done: above 1 the first
    # rounds are short, when much changes, and the last ones long
    pace: float = 1.0
    # fedavg: each negative that is drawn serves this many times, for neighbouring centres: fewer
    # rows are touched
    reuse: int = 4
    batch: int = 2048  # fedsgd: pairs
    shared: int = 64  # fedsgd: negatives that a batch shares
    steps: int = 100  # fedsgd: iterations a round
    # how the server moves a row: in_turn as if organisations had trained one after the other, each
    # direction as far as its steepness allows; add_rare adds what they say of rare words and
    # averages frequent ones, row_mean averages over those that moved it, mean over all (the
    # paper's); for fedsgd row_cap, row_adagrad or mean
    rule: Rule = "add_rare"
    cap: float = 200.0  # add_rare: a row that more pairs moved is no longer rare
    # in_turn, add_rare: a row moves at most so many times as far as the organisations moved it
    # (root mean square): that keeps training stable at any number of them
    reach: float = 4.0
    # pairs that moved a row count for so many at most; who claims more is not heard
    most_pairs: int = 1_000_000
    row_cap: float = 32.0  # row_cap: a row moves as if this many pairs had moved it, at most
    upload: Precision = "int8"  # what is sent, rounded up or down by chance, right in the mean
    # of each organisation's held-out text, the same for every model that is compared
    heldout_pairs: int = 20_000
    # also train everyone alone, and on all text in one place: in a simulation only
    baselines: bool = True
    queries: tuple[str, ...] = ("market", "bacteria", "money")  # words whose neighbours are shown
    # go on from the tables of an earlier federation (its artifacts/vectors.safetensors)
    start: str | None = None

    def __post_init__(self) -> None:
        if (
            min(self.dimension, self.window, self.negatives, self.reuse, self.heldout_pairs) < 1
            or min(self.batch, self.shared, self.steps, self.most_pairs) < 1
        ):
            raise ConfigError(
                "word2vec: dimension, window, negatives, reuse, batch, shared, steps, "
                "heldout_pairs, most_pairs: at least 1"
            )
        if (
            not min(self.lr, self.epochs, self.pace, self.cap, self.reach, self.row_cap) > 0
            or self.subsample < 0
        ):
            raise ConfigError(
                "word2vec: lr, epochs, pace, cap, reach and row_cap must be above 0, subsample at "
                "least 0"
            )
        if self.mode == "fedsgd" and self.rule in ("in_turn", "add_rare", "row_mean"):
            raise ConfigError(
                f"word2vec.rule = '{self.rule}' is for local passes (a batch moves a row by all "
                "its pairs at once); "
                "with mode = 'fedsgd' take 'row_cap', 'row_adagrad' or 'mean' (the paper's)"
            )
