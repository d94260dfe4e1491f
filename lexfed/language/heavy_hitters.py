"""Frequent words from users under differential privacy: rivals of a sampled tokenizer, with a
budget of their own.

    cms     every user sends three words, each a noisy row of a sketch (local DP); the server asks
            the sketch about the words of a public dictionary             [vocabulary/sketch.py]
    triehh  letter by letter, a sample of users votes for prefixes
            (central DP)                                                  [vocabulary/trie.py]

The words that are found, weighted by their estimated counts, are what the tokenizer is learned
from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch

from lexfed.core.errors import ConfigError
from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.corpus.population import Client
from lexfed.federation import (
    Answer,
    ClientState,
    Federation,
    Handler,
    ServerState,
    clock,
    fork_of,
    of_fork,
)
from lexfed.privacy.accounting import Pure, Release
from lexfed.privacy.mechanism import dense
from lexfed.vocabulary import learned, trie
from lexfed.vocabulary import sketch as count_sketch
from lexfed.vocabulary.learned import Learned, TokenizerOptions
from lexfed.vocabulary.sketch import Accumulated, Reports, Sketch
from lexfed.wire import Array, Blob, Form, Message, Verb
from lexfed.wire.verbs import CLOCK, FORK, LARGEST, WHOLE

# noisy rows of a sketch of a user's words; or votes for the prefixes of words
SKETCH = Verb(
    "sketch",
    down=Form(meta=(*CLOCK, FORK, "words", "last_row", "bytes"), blobs=("words",)),
    up=Form(
        {
            "rows": Array(WHOLE, ("words",), low=0, most="last_row"),
            "bits": Array((torch.uint8,), ("words", "bytes")),
        },
        needs=(("rows", "bits"),),
    ),
    kind="list",
    charged=True,
)
# the same reports, added up by the client: where sums are secure, the server gets no report
SKETCH_SUM = Verb(
    "sketch-sum",
    down=Form(meta=(*CLOCK, FORK, "words", "hashes", "width"), blobs=("words",)),
    up=Form(
        {
            "signs": Array((torch.int64,), ("hashes", "width"), low=-LARGEST, most="words"),
            "reports": Array((torch.int64,), ("hashes",), low=0, most="words"),
        },
        needs=(("signs", "reports"),),
    ),
    charged=True,
)
VOTE = Verb(
    "vote",
    down=Form(meta=(*CLOCK, "level"), blobs=("words",)),
    up=Form(blobs={"vote": Blob(text=True, most="level")}),
    kind="list",
    charged=True,
)


# what the ledger calls a release
SKETCHED = "some words of a user, each randomised by the user"
VOTED = "words that many users voted for"
# and which of them pays for the answer to which verb: a sketch's price buys no vote
PAID_AS: Mapping[Verb, str] = {SKETCH: SKETCHED, SKETCH_SUM: SKETCHED, VOTE: VOTED}


@dataclass(frozen=True)
class HeavyHitters:
    """The `[heavy_hitters]` table."""

    # a count-mean sketch with local privacy, or TrieHH with central privacy
    by: Literal["cms", "triehh"] = "cms"
    epsilon: float = 8.0  # of a user, or of each word
    epsilon_of: Literal["user", "word"] = "word"  # what epsilon is counted for
    delta: float = 1e-6  # triehh
    words: int = 3  # cms: words that a user sends
    hashes: int = 64  # cms: rows of the sketch
    width: int = 1024  # cms: their length
    length: int = 10  # triehh: letters of a word at most

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1 or min(self.words, self.length) < 1:
            raise ConfigError(
                "heavy_hitters.epsilon, words and length must be above 0, delta between 0 and 1"
            )

    @property
    def sketch(self) -> Sketch:
        each = count_sketch.per_word_epsilon(self.epsilon, self.words, self.epsilon_of)
        return Sketch(each, self.hashes, self.width)


def handlers(options: HeavyHitters, texts: TokenizerOptions) -> Mapping[Verb, Handler]:
    """Of the verbs that this configuration uses: a client that is asked for another has none."""
    if texts.start != "heavy_hitters":
        return {}
    return _sketching(options, texts) if options.by == "cms" else _voting(texts)


def _sketching(options: HeavyHitters, texts: TokenizerOptions) -> Mapping[Verb, Handler]:
    def reports(message: Message, client: Client) -> Reports:
        # other candidates get other flips: two reports with the same ones would undo them
        about = blake2b(message.blobs["words"], digest_size=16).hexdigest()
        clock = int(message.meta["step"]), int(message.meta["ask"])
        seed = derive(client.secret, "sketch", *clock, about, *of_fork(message))
        known = _known(message.blobs["words"])
        chosen = count_sketch.choose_words(
            words_of(client, texts), known, options.words, derive(seed, "choose")
        )
        return count_sketch.encode(options.sketch, chosen, derive(seed, "flip"))

    def sketch(message: Message, client: Client, state: ClientState) -> Answer:
        own = reports(message, client)
        arrays = {"rows": torch.from_numpy(own.rows), "bits": torch.from_numpy(own.bits)}
        return Message(arrays), state

    def sketch_sum(message: Message, client: Client, state: ClientState) -> Answer:
        own = count_sketch.add(count_sketch.empty(options.sketch), reports(message, client))
        arrays = {"signs": torch.from_numpy(own.signs), "reports": torch.from_numpy(own.reports)}
        return Message(arrays), state

    return {SKETCH: sketch, SKETCH_SUM: sketch_sum}


def _voting(texts: TokenizerOptions) -> Mapping[Verb, Handler]:
    def vote(message: Message, client: Client, state: ClientState) -> Answer:
        prefixes = message.blobs["words"].decode().split("\n")
        # one word for the whole vote: the seed does not know the level
        choice = trie.vote(
            words_of(client, texts),
            prefixes,
            int(message.meta["level"]),
            derive(client.secret, "vote"),
        )
        return Message(blobs={"vote": choice.encode()} if choice else {}), state

    return {VOTE: vote}


@lru_cache(maxsize=1)  # all clients are sent the same
def _known(words: bytes) -> frozenset[str]:
    return frozenset(words.decode().split("\n"))


def words_of(client: Client, texts: TokenizerOptions) -> list[str]:
    return [word for text in learned.texts_of(client.train, texts) for word in text]


def cost(options: HeavyHitters, users: int, group: str) -> Release:
    """What finding the words of so many users costs each of them."""
    if options.by == "cms":
        pure = Pure(options.sketch.epsilon * options.words)
        return Release("user", pure, group=group, what=SKETCHED, against="everybody")
    law = _law(options, users)
    return Release("user", Pure(law.epsilon), 1, law.delta, group, VOTED)


def found_words(
    federation: Federation,
    state: ServerState,
    options: HeavyHitters,
    texts: TokenizerOptions,
    seed: Seed,
) -> Learned:
    """The tokenizer of the words that were found."""
    find = partial(_by_sketch, dictionary(texts)) if options.by == "cms" else _by_votes
    counts = find(federation, state, options, seed)
    return learned.learn_from_counts(counts, texts.kind, texts.size, "heavy hitters")


def dictionary(texts: TokenizerOptions) -> list[str]:
    """The candidates: every word of the public text, most frequent first."""
    counts: dict[str, int] = {}
    for words in learned.public_text(texts):
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))


def _by_sketch(
    candidates: list[str],
    federation: Federation,
    state: ServerState,
    options: HeavyHitters,
    seed: Seed,
) -> Mapping[str, int]:
    sketch = options.sketch
    words = "\n".join(candidates).encode()
    told = {**clock(state, ask=0).meta, **fork_of(state), "words": options.words}
    collect = _summed_reports if federation.sums_only else _single_reports
    found = collect(federation, sketch, Message(meta=told, blobs={"words": words}))
    return count_sketch.histogram(found, sketch, candidates)


def _single_reports(federation: Federation, sketch: Sketch, now: Message) -> Accumulated:
    shape = {"last_row": sketch.hashes - 1, "bytes": sketch.width // 8}
    message, total = replace(now, meta={**now.meta, **shape}), count_sketch.empty(sketch)
    for _, reply in federation.ask(SKETCH, dict.fromkeys(federation.clients, message)):
        rows, bits = reply.arrays["rows"].numpy(), reply.arrays["bits"].numpy()
        total = count_sketch.add(total, Reports(rows.astype(np.int64), bits))
    return total


def _summed_reports(federation: Federation, sketch: Sketch, now: Message) -> Accumulated:
    shape = {"hashes": sketch.hashes, "width": sketch.width}
    message = replace(now, meta={**now.meta, **shape})
    total = federation.total(SKETCH_SUM, dict.fromkeys(federation.clients, message)).update
    if not total:  # too few stayed, and nothing was opened
        return count_sketch.empty(sketch)
    return Accumulated(dense(total["signs"]).numpy(), dense(total["reports"]).numpy())


def _law(options: HeavyHitters, users: int) -> trie.Parameters:
    return trie.parameters(options.epsilon, options.delta, users, options.length)


def _by_votes(
    federation: Federation, state: ServerState, options: HeavyHitters, seed: Seed
) -> Mapping[str, int]:
    law = _law(options, len(federation.clients))
    prefixes: Mapping[str, int] = {"": 0}
    # all of weight 1: the theorem covers which words are found, not how many voted for them
    words: dict[str, int] = {}
    for level in range(1, options.length + 1):
        rng = numpy_generator(derive(seed, "voters", level))
        voters = rng.choice(len(federation.clients), law.sample, replace=False)
        at = clock(state, ask=level)
        message = Message(
            meta={**at.meta, "level": level}, blobs={"words": "\n".join(prefixes).encode()}
        )
        asked = dict.fromkeys((federation.clients[int(place)] for place in voters), message)
        votes = [
            reply.blobs.get("vote", b"").decode() or None
            for _, reply in federation.ask(VOTE, asked)
        ]
        prefixes = trie.grow(prefixes, votes, law.theta)
        words |= {prefix[:-1]: 1 for prefix in prefixes if prefix.endswith(trie.END)}
        prefixes = {
            prefix: number for prefix, number in prefixes.items() if not prefix.endswith(trie.END)
        }
        if not prefixes:
            break
    return words
