"""What a user should know before a run begins, and after it has ended, one sentence each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexfed.core.figures import curve_of
from lexfed.corpus import checking
from lexfed.corpus.text import Corpus
from lexfed.experiment.assembly import Assembly
from lexfed.learning.defences import readable
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.word import WordTokenizer, count_words

LOOKED_AT = 2_000  # texts that are read for a hint: a run must not wait for it
CLIENTS_LOOKED_AT = 50
LEARNED = 0.01  # of the loss: word vectors that gained less have learned nothing


def before(assembly: Assembly) -> Iterator[str]:
    people = assembly.population
    whole = len(people.train.texts) if people.whole is None else people.whole
    yield from checking.of_blanks(people.train)
    config = assembly.config
    yield from checking.of_clients(people, config.data, whole, labelled=config.entry.kind.labels)
    yield from of_uploads(assembly)
    some = list(_first(people.seen_text))
    yield from checking.of_scripts(some)
    yield from _of_words(assembly, some)


def of_uploads(assembly: Assembly) -> Iterator[str]:
    """Clients of few words: the report repeats it, because it is read by others too."""
    yield from _of_silent(assembly)
    yield from _of_readable(assembly)


def _of_silent(assembly: Assembly) -> Iterator[str]:
    """Who will send nothing, because it has too few words."""
    least, people = assembly.config.defences.minimum_words, assembly.population
    if not least:
        return
    some = range(min(len(people), CLIENTS_LOOKED_AT))
    few = sum(len(count_words(people.client(client).train)) < least for client in some)
    if few:
        yield (
            f"{few} of {len(some)} clients have fewer than {least} different words and send "
            "nothing (defences.minimum_words)"
        )


def _of_readable(assembly: Assembly) -> Iterator[str]:
    """Who counts on a rotation, and has clients that it does not shelter."""
    config = assembly.config
    alone = config.privacy.placement == "none" and not config.secure.sums
    if config.defences.rotation == "none" or not alone:
        return
    least = config.defences.minimum_words
    if few := readable(assembly.population, config.model.embedding, least):
        yield few


def _first(corpus: Corpus) -> Iterator[str]:
    for text, _ in zip(corpus, range(LOOKED_AT), strict=False):
        yield text


def _of_words(assembly: Assembly, texts: Sequence[str]) -> Iterator[str]:
    """How much of the text the common word list covers."""
    tokenizer = assembly.tokenizer
    if not isinstance(tokenizer, WordTokenizer):
        return
    known = tokenizer.vocabulary.ids
    found = [word in known for text in texts for word in words(text)]
    coverage = sum(found) / max(1, len(found))
    if coverage < 0.9:
        yield (
            f"the word list knows {100 * coverage:.0f} % of the words of these texts; the rest is "
            "read as one unknown word"
        )


def after(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    held = summary.get("held_back") or {"held": 0, "uploads": 0}
    if held["held"] > 0.5 * held["uploads"]:
        yield (
            f"{held['held']} of {held['uploads']} uploads were held back, so little or nothing was "
            "learned: lower defences.minimum_words or raise self_audit.limit, or bring clients "
            "with more text"
        )
        return
    accuracy, majority = summary.get("global_accuracy"), summary.get("test_majority_accuracy")
    if accuracy is not None and majority is not None and accuracy <= majority:
        yield (
            f"accuracy {100 * accuracy:.1f} % is no better than always saying the most frequent "
            f"class of the test set ({100 * majority:.1f} %): train longer, or change train.lr"
        )
    yield from _of_curve(records)
    yield from _of_vectors(summary.get("heldout_loss"), summary.get("untrained_heldout_loss"))


def _of_vectors(loss: float | None, untrained: float | None) -> Iterator[str]:
    """Word vectors as they began, or worse. Few words and few passes leave them where they were."""
    if loss is None or untrained is None or loss < (1 - LEARNED) * untrained:
        return
    worse = loss >= untrained
    yield (
        f"the loss on held-out text ({loss:.3f}) is {'no' if worse else 'hardly'} better than "
        f"untrained vectors' ({untrained:.3f}): "
        f"{'lower word2vec.lr' if worse else 'raise word2vec.epochs'}, or bring more text"
    )


def _of_curve(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Overfitting: the loss falls on, and the accuracy has fallen from its best."""
    scored = [
        (r["round"], curve_of(r)["global_accuracy"], r["loss"])
        for r in records
        if curve_of(r).get("global_accuracy") is not None and r["loss"] is not None
    ]
    if len(scored) < 4:
        return
    best = max(scored, key=lambda row: row[1])
    last = scored[-1]
    if best[1] - last[1] > 0.02 and last[2] < best[2]:
        yield (
            f"accuracy was {100 * best[1]:.1f} % at round {best[0]} and is {100 * last[1]:.1f} % "
            "now, while the loss went on falling: the model learns its texts by heart"
        )
