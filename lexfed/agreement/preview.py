"""What an organisation would reveal by taking part in an agreement, before it sends anything.

Found from its own text, the options of the agreement and a public word list: a site can look at it
alone, and decide. What the others hold it can't know, so the figures are of the worst case: that it
alone holds a word.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from lexfed.agreement.organisation import proposed
from lexfed.agreement.protocol import FEW, Agreement
from lexfed.agreement.word_secrets import bucket
from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.vocabulary import splitting


@dataclass(frozen=True)
class Preview:
    """Words that one organisation would propose."""

    texts: int  # that it holds
    proposes: int
    once: int  # of them, in one text only
    digits: int  # with a digit
    unknown: int  # not in the public list
    private: int  # any of these three: look at them before you take part
    # that would be told, if the liars whom the rule does not withstand try the list out; dp: the
    # noise is for them too
    reach: int
    exposed: int  # both


def preview(client: Client, options: Agreement, public: Sequence[str]) -> Preview:
    own = dict(proposed(options, client))
    once = in_one_text(client.train, own)
    digits = {word for word in own if any(sign.isdigit() for sign in word)}
    unknown = own.keys() - set(public)
    tried = set(public[: min(words_of_a_liar(options, len(own)), len(public))])
    enough = least(options)
    told = {word for word, n in own.items() if n >= enough and word in tried}
    if everything_is_told(options):
        told = {word for word, n in own.items() if n >= enough}
    elif options.rule == "dp":
        told = set()
    private = once | digits | unknown
    words = (once, digits, unknown, private, told, private & told)
    return Preview(len(client.train), len(own), *map(len, words))


def in_one_text(corpus: Corpus, words: Iterable[str]) -> set[str]:
    texts: Counter[str] = Counter(dict.fromkeys(words, 0))
    for text in corpus:
        texts.update(word for word in set(splitting.words(text)) if word in texts)
    return {word for word, n in texts.items() if n == 1}


def everything_is_told(options: Agreement) -> bool:
    """By the rule itself, with nobody lying."""
    return options.rule == "union" or (options.rule == "summed" and options.holders == 1)


def words_of_a_liar(options: Agreement, own: int) -> int:
    """How many it may propose, if the others propose as many as this organisation does."""
    if options.trust == "nobody":  # it knows nothing nearer than a power of two
        return int(min(options.stuffing * bucket(min(own, options.top)), options.top))
    if options.rule != "summed":
        return options.top
    return int(min(max(FEW, options.stuffing * own), options.top))


def least(options: Agreement) -> int:
    """Occurrences of a word at one organisation alone from which liars can have it told."""
    if options.numbers != "counts":
        return options.minimum
    if options.holders == 1:
        return next(n for n in count(1) if options.told(n) >= options.minimum)
    return next(n for n in count(1) if options.told(n) >= options.rest * options.minimum)
