"""How a language model is scored: on users who never train, in figures that do not depend on the
tokenizer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from lexfed.core.files import OPEN, OWNER_ONLY, write_atomically
from lexfed.core.seeds import derive
from lexfed.corpus.population import Population
from lexfed.federation import Federation, ServerState, request
from lexfed.language.language_task import OWN, TOKENIZER, tokenizer_of, with_tokenizer
from lexfed.learning.evaluation import Evaluation
from lexfed.learning.training_verbs import EVALUATE_LANGUAGE
from lexfed.metrics.perplexity import (
    TextScore,
    equal_size,
    figures,
    pooled_figures,
    unigram_kld,
)
from lexfed.privacy.mechanism import dense
from lexfed.vocabulary.export import tokenizer_files
from lexfed.vocabulary.learned import TokenizerOptions, texts_of
from lexfed.wire import Message, encode

SWITCH = "switch@"
# of one record: what stands beside the summary's own figures, before and after a switch
FIGURES = (
    "word_perplexity",
    "word_accuracy",
    "tokens_per_word",
    "oov_rate",
    "unigram_kld",
    "worst_tenth_perplexity",
)


@dataclass(frozen=True)
class LanguageStudy:
    texts: TokenizerOptions
    people: Population
    evaluation: Evaluation
    switches: tuple[int, ...]  # rounds after which the tokenizer changes
    # so much of a tokenizer's text counts for its distance to the users': of all rows of a table
    # equally much
    words: int

    def score(self, federation: Federation, state: ServerState, last: bool) -> Mapping[str, Any]:
        """At the end all test users; on the way a few, always the same."""
        users = self._asked
        asked = users if last else users[: self.evaluation.clients]
        if federation.sums_only:
            return self._together(federation, state, asked, last)
        scores = self.users(federation, state, asked)
        # in order: two runs can be paired
        by_user = {"users": [[round(score.nll, 3), score.words] for score in scores]}
        return {
            **(figures(scores) if any(score.words for score in scores) else {}),
            "test_users": len(scores),
            **self._tokenizer(state, last),
            **(by_user if last else {}),
        }

    @property
    def _asked(self) -> range:
        """Users who never train; where each has its texts at home, all of them, on what they held
        out.
        """
        train = range(len(self.people))
        return range(len(train), len(train) + self.people.unseen) if self.people.here else train

    @property
    def _split(self) -> str:
        return "test" if self.people.here else OWN

    def _tokenizer(self, state: ServerState, last: bool) -> dict[str, Any]:
        switches = {"tokenizer_switches": sum(name.startswith(SWITCH) for name in state.done)}
        if not last:
            return switches
        own = tokenizer_of(state)
        distance = self._distance(own.words) if own.words and self.people.here else None
        size = len(own.tokenizer.tokens)
        return {**switches, "vocabulary_size": size, "unigram_kld": distance}

    def _together(
        self, federation: Federation, state: ServerState, users: Sequence[int], last: bool
    ) -> dict[str, Any]:
        """Of sums alone: nothing is known of single users, the worst tenth included."""
        message = with_tokenizer(request(state, ask=1, split=self._split), state)
        total = federation.total(EVALUATE_LANGUAGE, dict.fromkeys(users, message))
        sums = {name: dense(value) for name, value in total.update.items()}
        whole = _read(Message(sums)) if sums else TextScore()
        return {
            **(pooled_figures(whole) if whole.words else {}),
            "test_users": total.clients,
            **self._tokenizer(state, last),
        }

    def due(self, state: ServerState) -> bool:
        """Right before and right after a switch."""
        return state.round in self.switches

    def artifacts(self, state: ServerState, folder: Path) -> None:
        write_atomically(folder / "model.safetensors", encode(Message(state.params)))
        if TOKENIZER in state.blobs:
            own = tokenizer_of(state).tokenizer
            # an oracle's holds the users' words as they are
            mode = OWNER_ONLY if self.texts.start == "oracle" else OPEN
            for name, data in tokenizer_files(own, self.texts.lowercase).items():
                write_atomically(folder / name, data, mode)

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return switch_figures(records)

    def users(
        self, federation: Federation, state: ServerState, users: Sequence[int]
    ) -> list[TextScore]:
        message = with_tokenizer(request(state, ask=1, split=self._split), state)
        replies = dict(federation.ask(EVALUATE_LANGUAGE, dict.fromkeys(users, message)))
        return [_read(replies[user]) for user in users if user in replies]

    def _distance(self, words: Mapping[str, int]) -> float:
        """The KL divergence depends on how long the text is: equally much of each is compared."""
        length = min(self.words, sum(words.values()))
        return unigram_kld(self.unigrams, equal_size(words, length, derive(b"", "kld")))

    @cached_property
    def unigrams(self) -> Mapping[str, int]:
        """Of the users that train. Only an experiment can know them."""
        counts: Counter[str] = Counter()
        for client in range(len(self.people)):
            for text in texts_of(self.people.client(client).train, self.texts):
                counts.update(text)
        return counts


def _read(reply: Message) -> TextScore:
    values = {name: float(value) for name, value in reply.arrays.items()}
    counts = {name: int(value) for name, value in values.items() if name != "nll"}
    return TextScore(nll=values["nll"], **counts)


def switch_figures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the last switch did: the figures right before it and right after."""
    scored = [record for record in records if record["metrics"]]
    for before, after in reversed(list(pairwise(scored))):
        if after["metrics"]["tokenizer_switches"] > before["metrics"]["tokenizer_switches"]:
            return {"before_switch": _part(before), "after_switch": _part(after)}
    return {}


def _part(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"round": record["round"], **{key: record["metrics"].get(key) for key in FIGURES}}
