"""How good word vectors are, and what an organisation gains by joining.

The primary figure is the loss on fixed held-out pairs with fixed negatives, the same for every
model that is compared. The yardsticks (everyone alone, and all text in one place) come from the
same kernels, the same text in the same rounds and the same learning rates; they need everybody's
text, so only a simulation has them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lexfed.agreement import word_list
from lexfed.agreement.protocol import REFUSED, refused_of
from lexfed.core.errors import DataError
from lexfed.core.seeds import derive, numpy_generator
from lexfed.corpus import wordsim
from lexfed.corpus.population import Population
from lexfed.federation import ClientState, Federation, ServerState, clock
from lexfed.metrics import embeddings
from lexfed.models.skipgram import INPUT, OUTPUT, Ints, Text, Unigrams, unigrams
from lexfed.privacy.mechanism import dense
from lexfed.vocabulary import export
from lexfed.vocabulary.shards import joined
from lexfed.vocabulary.word import Vocabulary
from lexfed.wire import Message
from lexfed.word2vec.options import Word2Vec
from lexfed.word2vec.passes import Moment, Pairs, heldout_pairs, sgd_in_place, stretch
from lexfed.word2vec.replica import PUBLIC, VOCABULARY, Readings, Replicas, Tables, first_tables
from lexfed.word2vec.row_rules import VERSION as NOW
from lexfed.word2vec.vector_verbs import EVALUATE, VERSION
from lexfed.word2vec.versions import rows_message

Figures = dict[str, Any]
Heldout = tuple[float, float]  # a summed loss, and of how many pairs
SHOWN = 8  # neighbours
LIKENESS = ("wordsim353", "simlex999", "analogies")

# the server's own look at its tables
PAIRS = 4096
# training that comes back by itself has been seen at 1.6 times the untrained loss; what does not
# come back was at 3.3 when it was first noticed
MARGIN = 3.0
WORST = 30.0  # that one pair counts for: whoever spoils the row of one word ends no run


@dataclass(frozen=True)
class VectorStudy:
    options: Word2Vec
    population: Population
    rounds: int
    replicas: Replicas
    readings: Readings

    def score(self, federation: Federation, state: ServerState, last: bool) -> Figures:
        own = (
            [self._together(federation, state)]
            if federation.sums_only
            else self._heldout(federation, state)
        )
        vocabulary = word_list.from_bytes(state.blobs[VOCABULARY])
        figures: Figures = {
            "heldout_loss": _mean([figure for figure in own if figure is not None]),
            # all output rows are zero
            "untrained_heldout_loss": (1 + self.options.negatives) * math.log(2),
            "vocabulary_size": len(vocabulary),
            **word_figures(vocabulary, {INPUT: state.params[INPUT].numpy()}, analogies=last),
        }
        if last and not self.population.here:  # what joining gains, only a simulation knows
            if REFUSED in state.blobs:
                figures["agreement_refused"] = asdict(refused_of(state))
        elif last:
            tables = {name: table.numpy() for name, table in state.params.items()}
            begun = self.replicas.first(state.blobs[VOCABULARY])
            joining = Joining(self.options, self.population, self.rounds, self.readings, begun)
            figures |= joining.figures(
                tables, [None] * len(federation.clients) if federation.sums_only else own
            )
            if REFUSED in state.blobs:  # an older run did not count
                figures["agreement_refused"] = asdict(refused_of(state))
        return figures

    def due(self, state: ServerState) -> bool:
        return False

    def artifacts(self, state: ServerState, folder: Path) -> None:
        write_artifacts(state, folder)

    def summary(self, records: Sequence[Mapping[str, Any]]) -> Figures:
        return {}

    def _heldout(self, federation: Federation, state: ServerState) -> list[Heldout | None]:
        """Each organisation's summed loss on its own held-out text, and of how many pairs; None: it
        does not say.

        Who took part in the last round lacks the rows of one version. Who lacks more says so, and
        is sent more.
        """
        message = rows_message(state, 1, max(0, int(state.mechanism_state[NOW]) - 1))
        replies = dict(federation.ask(EVALUATE, dict.fromkeys(federation.clients, message)))
        behind = {
            client: int(reply.meta["version"])
            for client, reply in replies.items()
            if "version" in reply.meta
        }
        again = {held: self._since(state, held) for held in sorted(set(behind.values()))}
        replies |= dict(
            federation.ask(EVALUATE, {client: again[held] for client, held in behind.items()})
        )
        said = (replies[c].arrays if c in replies else {} for c in federation.clients)
        return [
            (float(figures["heldout_loss"]), float(figures["pairs"])) if len(figures) == 2 else None
            for figures in said
        ]

    def _together(self, federation: Federation, state: ServerState) -> Heldout | None:
        """Of sums alone: what all organisations lose between them."""
        now = clock(state, ask=1)
        hello = replace(now, meta={**now.meta, "version": int(state.mechanism_state[NOW])})
        held = {
            client: int(reply.meta["version"])
            for client, reply in federation.ask(VERSION, dict.fromkeys(federation.clients, hello))
        }
        messages = {version: self._since(state, version) for version in sorted(set(held.values()))}
        asked = {client: messages[version] for client, version in held.items()}
        total = federation.total(EVALUATE, asked).update
        if not total:
            return None
        return float(dense(total["heldout_loss"])), float(dense(total["pairs"]))

    def _since(self, state: ServerState, held: int) -> Message:
        message = rows_message(state, 1, max(held, 0))
        return (
            message if held >= 0 else replace(message, blobs={VOCABULARY: state.blobs[VOCABULARY]})
        )


@dataclass(frozen=True)
class Joining:
    """What joining gains: everyone alone, and all text in one place, beside the federation. Only a
    simulation has it.
    """

    options: Word2Vec
    population: Population
    rounds: int
    readings: Readings
    begun: ClientState  # what a client holds before the first round

    @property
    def vocabulary(self) -> Vocabulary:
        return self.readings.vocabulary(self.begun)

    def figures(self, federated: Tables, heldout: Sequence[Heldout | None]) -> Figures:
        figures: Figures = {"neighbours": {}, "single_source_words": self._single_source()}
        models = {"federated": federated}
        own: list[Figures] = [
            {"heldout_loss": None, "pairs": 0}
            if said is None
            else {"heldout_loss": _mean([said]), "pairs": int(said[1])}
            for said in heldout
        ]
        if self.options.baselines:
            figures |= self._yardsticks(models, own)
        figures["organisations"] = own
        known = [query for query in self.options.queries if query in self.vocabulary.ids]
        figures["neighbours"] = {query: self._near(query, models) for query in known}
        return figures

    def _near(self, query: str, models: Mapping[str, Tables]) -> dict[str, list[str]]:
        ids, tokens = self.vocabulary.ids, self.vocabulary.tokens
        return {
            name: [
                word for word, _ in embeddings.neighbours(ids, tokens, tables[INPUT], query, SHOWN)
            ]
            for name, tables in models.items()
        }

    def _yardsticks(self, models: dict[str, Tables], own: list[Figures]) -> Figures:
        """Train everyone alone, and all together; adds to `own` what each would have had without
        the others.
        """
        clients = [self.population.client(number) for number in range(len(self.population))]
        held = [
            heldout_pairs(self.readings, self.begun, client, self.options) for client in clients
        ]

        def alone(number: int) -> float | None:
            """Its figures are kept, its tables are not: but for the first one's, whose neighbours
            are shown.
            """
            tables = self._trained([number])
            own[number]["alone_heldout_loss"] = _common([held[number]], tables)
            if number == 0:
                models["alone"] = tables
            return _common(held, tables)

        with ThreadPoolExecutor(2) as pool:
            everywhere = list(pool.map(alone, range(len(clients))))
        models["centralised"] = central = self._trained(range(len(clients)))
        for number, pairs in enumerate(held):
            own[number]["centralised_heldout_loss"] = _common([pairs], central)
        likeness = word_figures(self.vocabulary, central, analogies=True)
        return {
            "centralised_heldout_loss": _common(held, central),
            "alone_heldout_loss": min((a for a in everywhere if a is not None), default=None),
            "neighbour_overlap": self._overlap(models),
            **{f"centralised_{name}": likeness.get(name) for name in LIKENESS},
        }

    def _trained(self, numbers: Sequence[int]) -> Tables:
        """The tables after all rounds, if these clients' texts lay in one place."""
        frequencies = self._frequencies(numbers)
        tables = {
            n: t.numpy()
            for n, t in first_tables(len(self.vocabulary), self.options.dimension).items()
        }
        clients = [self.population.client(number) for number in numbers]
        for number in range(self.rounds):
            moment = Moment(number, self.rounds, self.options.pace)
            parts = [self._stretch(client, moment) for client in clients]
            seed = derive(clients[0].secret, "together" if len(clients) > 1 else "alone", number)
            sgd_in_place(tables, joined(parts, seed), frequencies, self.options, moment, seed)
        return tables

    def _frequencies(self, numbers: Sequence[int]) -> Unigrams:
        """By the counts of the vocabulary; where none were shared, by those of the text that lies
        here.
        """
        counts = np.array(self.vocabulary.counts, dtype=np.int64)
        return unigrams(
            counts if counts.sum() else self._counts()[list(numbers)].sum(0), self.options.subsample
        )

    def _stretch(self, client: Any, moment: Moment) -> Text:
        text = self.readings.text(self.begun, client, "train", client.train)
        return stretch(text, self.options.epochs, moment, client.secret)

    def _overlap(self, models: Mapping[str, Tables]) -> Figures:
        """Neighbours shared with the centralised model, for words of which one organisation has
        nine tenths.
        """
        counts = self._counts()
        shares = counts / np.maximum(counts.sum(0), 1)
        rows = np.flatnonzero((shares.max(0) >= 0.9) & (counts.sum(0) >= 20))[:300]
        # the words of the organisation whose model alone is at hand
        first = rows[shares[0, rows] >= 0.9]
        central = models["centralised"][INPUT]
        return {
            "federated": embeddings.overlap(models["federated"][INPUT], central, rows),
            "alone": embeddings.overlap(models["alone"][INPUT], central, first),
            "words": len(rows),
            "words_alone": len(first),
        }

    def _counts(self) -> Any:  # (clients, V)
        size = len(self.vocabulary)
        clients = (self.population.client(number) for number in range(len(self.population)))
        texts = (
            self.readings.text(self.begun, client, "train", client.train) for client in clients
        )
        return np.stack([np.bincount(text.tokens, minlength=size) for text in texts])

    def _single_source(self) -> int:
        """Words of the agreed list that one organisation alone has in its text: the others learn
        that somebody has them.
        """
        return int(((self._counts() > 0).sum(0) == 1).sum())


def _mean(heldout: Sequence[Heldout]) -> float | None:
    """Of a pair; None: there is nothing to score."""
    pairs = sum(pairs for _, pairs in heldout)
    return sum(loss for loss, _ in heldout) / pairs if pairs else None


def _common(held: Sequence[Pairs], tables: Tables) -> float | None:
    return _mean([(pairs.loss(tables), len(pairs.centres)) for pairs in held])


def word_figures(vocabulary: Vocabulary, tables: Tables, analogies: bool) -> Figures:
    """Spearman's rho with human judgement, and how many of the pairs are known; the lists are
    public.
    """
    figures: Figures = {}
    try:
        for name in ("wordsim353", "simlex999"):
            score = embeddings.similarity(vocabulary.ids, tables[INPUT], wordsim.pairs(name))
            figures |= {name: score.spearman, f"{name}_found": score.found / score.pairs}
        if analogies:
            right = embeddings.analogies(vocabulary.ids, tables[INPUT], wordsim.analogies())
            figures |= {"analogies": right.accuracy, "analogies_asked": right.asked}
    except DataError:  # the lists are not installed
        figures |= {"wordsim353": None, "simlex999": None}
    return figures


def write_artifacts(state: ServerState, folder: Path) -> None:
    """Vectors in the formats people use; and both tables with their counts, from which training can
    go on.
    """
    if not state.params:
        return
    vocabulary, vectors = word_list.from_bytes(state.blobs[VOCABULARY]), state.params[INPUT]
    export.write_tables(
        folder / "vectors.safetensors", vocabulary, {n: state.params[n] for n in (INPUT, OUTPUT)}
    )
    changed = export.write_word2vec(folder / "vectors.txt", vocabulary, vectors, binary=False)
    export.write_word2vec(folder / "vectors.bin", vocabulary, vectors, binary=True)
    export.write_projector(folder / "projector", vocabulary, vectors)
    (folder / "vocabulary.json").write_bytes(state.blobs[VOCABULARY])
    if changed:
        (folder / "escaped.txt").write_text("".join(f"{word!r}\n" for word in changed))


# --- whether vectors are worse than none: by the server's own eyes, so that no claim can end a run


def worse_than_none(options: Word2Vec) -> Callable[[ServerState], str | None]:
    """Why training from this state on is of no use; None: it is."""
    untrained = options.negatives * math.log(2)
    other = " or word2vec.reach, or set word2vec.rule = 'row_mean'"
    remedy = f"lower word2vec.lr{other if options.rule in ('in_turn', 'add_rare') else ''}"

    def why(state: ServerState) -> str | None:
        if not state.params:
            return None
        loss = options.negatives * chance_loss(state)
        if loss <= MARGIN * untrained:
            return None
        return (
            "word vectors are worse than untrained ones (loss of words that meet by chance "
            f"{loss:.1f}, untrained {untrained:.2f}): {remedy}"
        )

    return why


def chance_loss(state: ServerState) -> float:
    """Of a negative, in the mean over fixed pairs of words, drawn as negatives are; untrained
    log 2.
    """
    centres, others = _pairs(state.blobs[VOCABULARY])
    v, u = state.params[INPUT].numpy()[centres], state.params[OUTPUT].numpy()[others]
    dots = np.einsum("nd,nd->n", v, u, dtype=np.float64)
    return float(np.minimum(np.logaddexp(0.0, dots), WORST).mean())


@lru_cache(maxsize=1)
def _pairs(vocabulary: bytes) -> tuple[Ints, Ints]:
    counts = np.array(word_list.from_bytes(vocabulary).counts, dtype=np.float64)
    weight = np.maximum(counts, 1) ** 0.75
    rng = numpy_generator(derive(PUBLIC, "health"))
    drawn = rng.choice(len(weight), (2, PAIRS), p=weight / weight.sum()).astype(np.int32)
    return drawn[0], drawn[1]
