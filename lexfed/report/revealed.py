"""What an agreement on a word list gave each organisation, and what it showed of it, with the
paper's union beside it.

Only who holds all texts can say this: it is the experimenter's view of a simulation, not something
that travels.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from lexfed.agreement.preview import Preview, everything_is_told, least, words_of_a_liar
from lexfed.agreement.protocol import Agreement, Refused
from lexfed.privacy.accounting import Ledger, epsilon
from lexfed.vocabulary.scan import Counts
from lexfed.vocabulary.word import Vocabulary


@dataclass
class Shown:
    """One organisation under one rule."""

    proposed: int = 0
    known: int = 0  # words of the list that occur in its text
    covered: int = 0  # running words of its text that are in the list
    to_others: int = 0  # words that it alone holds, and the other organisations read in the list
    to_server: int = 0  # words that it alone holds, and the server was told


@dataclass
class Organisation:
    running: int  # words of its text
    left_out: int  # of them, too long to be words
    agreed: Shown = field(default_factory=Shown)
    union: Shown = field(default_factory=Shown)

    def coverage(self, shown: Shown) -> float:
        return shown.covered / self.running if self.running else 0.0


@dataclass(frozen=True)
class Revealed:
    """A whole agreement."""

    organisations: Sequence[Organisation]
    single_source_words: int  # words of the list that occur at one organisation alone
    union_size: int
    union_single_source_words: int
    union_single_proposals: int  # words of the union that one organisation alone proposed
    names: Sequence[str] = ()  # of the organisations, where the data has some

    def name(self, organisation: int) -> str:
        return self.names[organisation] if self.names else str(organisation)

    def coverage(self, rule: str) -> float:
        """Of all organisations' text together."""
        covered = sum(getattr(organisation, rule).covered for organisation in self.organisations)
        running = sum(organisation.running for organisation in self.organisations)
        return covered / running if running else 0.0


def reveal(
    vocabulary: Vocabulary,
    counts: Sequence[Counts],
    options: Agreement,
    proposed: Mapping[int, int],
    told: Mapping[int, Collection[str]],
) -> Revealed:
    """`counts` are the organisations' words, `proposed` how many of them each sent, `told` those
    that came in the clear.
    """
    organisations = [Organisation(own.total + own.left_out, own.left_out) for own in counts]
    tops = [{word for word, _ in own.most_frequent(options.top, options.minimum)} for own in counts]
    for number, organisation in enumerate(organisations):
        organisation.agreed.proposed, organisation.union.proposed = (
            proposed.get(number, 0),
            len(tops[number]),
        )
    single = union_size = union_single = union_proposals = 0
    for word, holders in _held(counts):
        proposers = sum(word in top for top in tops)
        agreed, union, alone = word in vocabulary.ids, proposers > 0, len(holders) == 1
        for number, count in holders.items():
            organisation = organisations[number]
            for is_in, shown in ((agreed, organisation.agreed), (union, organisation.union)):
                shown.known += is_in
                shown.covered += count * is_in
                shown.to_others += is_in and alone
            organisation.agreed.to_server += alone and word in told.get(number, ())
            organisation.union.to_server += alone and union
        single, union_single = single + (agreed and alone), union_single + (union and alone)
        union_size, union_proposals = union_size + union, union_proposals + (proposers == 1)
    return Revealed(organisations, single, union_size, union_single, union_proposals)


def _held(counts: Sequence[Counts]) -> Iterator[tuple[str, dict[int, int]]]:
    """Every word, with its count at each organisation that holds it."""

    def tagged(number: int) -> Iterator[tuple[str, int, int]]:
        return ((word, number, count) for word, count in counts[number])

    for word, same in groupby(heapq.merge(*map(tagged, range(len(counts)))), key=itemgetter(0)):
        yield word, {number: count for _, number, count in same}


Section = tuple[str, list[list[str]]]


def sections(vocabulary: Vocabulary, revealed: Revealed, options: Agreement) -> list[Section]:
    """The agreement, and the paper's beside it: a heading and a table each."""
    how = "keyed hashes" if options.veiled else "in the clear"
    how = "nobody is trusted" if options.trust == "nobody" else how
    title = (
        f"rule '{options.rule}' ({how}): {len(vocabulary):,} words, version {vocabulary.version}, "
        f"single_source_words {revealed.single_source_words:,}"
    )
    beside = (
        f"beside it, the paper's union: {revealed.union_size:,} words, single_source_words "
        f"{revealed.union_single_source_words:,} ({revealed.union_single_proposals:,} proposed by "
        "one alone)"
    )
    ours, theirs = (title, table(revealed, "agreed")), (beside, table(revealed, "union"))
    return [ours] if options.rule == "union" else [ours, theirs]


COLUMNS = ("organisation", "proposes", "knows", "covers", "alone: to others", "alone: to server")


def table(revealed: Revealed, rule: str) -> list[list[str]]:
    """A row for each organisation, and one for all: `rule` is "agreed" or "union"."""
    rows = []
    for number, organisation in enumerate(revealed.organisations):
        shown: Shown = getattr(organisation, rule)
        figures = (
            shown.proposed,
            shown.known,
            f"{100 * organisation.coverage(shown):.2f} %",
            shown.to_others,
            shown.to_server,
        )
        rows.append(
            [revealed.name(number), *(f if isinstance(f, str) else f"{f:,}" for f in figures)]
        )
    sums = (
        sum(getattr(getattr(o, rule), key) for o in revealed.organisations)
        for key in ("to_others", "to_server")
    )
    return [
        *rows,
        [
            "all",
            "",
            "",
            f"{100 * revealed.coverage(rule):.2f} %",
            *(f"{total:,}" for total in sums),
        ],
    ]


def remarks(revealed: Revealed, options: Agreement, ledger: Ledger, refused: Refused) -> list[str]:
    """What a reader should not overlook."""
    lines = _refusals(refused, options)
    for number, organisation in enumerate(revealed.organisations):
        name = revealed.name(number)
        if organisation.left_out:
            lines.append(
                f"organisation {name}: {organisation.left_out:,} running words longer than "
                f"{options.longest} characters are left out"
            )
        if organisation.running and organisation.coverage(organisation.agreed) < 0.5:
            lines.append(
                f"organisation {name}: the list covers less than half of its text; "
                "text written without spaces must be cut into words first"
            )
    return lines + ([price(ledger, options)] if ledger else [])


def _refusals(refused: Refused, options: Agreement) -> list[str]:
    lines = {
        f"malformed replies that were not heard: {refused.replies:,}": refused.replies,
        f"organisations that proposed over {options.stuffing:g} times as many words as the others: "
        f"{refused.organisations:,}; their {refused.words:,} rarest words were left out": (
            refused.organisations
        ),
        "words left out because too few of their holders spelt them alike: "
        f"{refused.spellings:,}": refused.spellings,
        "rows that did not fit the others of their word, and were left out: "
        f"{refused.shares:,}": refused.shares,
    }
    return [line for line, number in lines.items() if number]


def price(ledger: Ledger, options: Agreement) -> str:
    """An epsilon never stands alone: whose, against whom, of what."""
    spent = epsilon(ledger, "document", options.delta)
    return (
        f"epsilon {spent:.3g} at delta {options.delta:g}, per document (neighbours: one document "
        "more or less), "
        "against readers of the list; the server adds the noise and is trusted with what the "
        "organisations send; "
        "covers the vocabulary only"
    )


# --- before anything is sent ----------------------------------------------------------------------

FORESEEN = (
    "organisation",
    "texts",
    "proposes",
    "in one text only",
    "with digits",
    "not public",
    "any of these",
    "liars could read",
    "of these",
)


def foreseen(previews: Sequence[Preview], names: Sequence[str]) -> list[list[str]]:
    return [
        [names[number] if names else str(number), *(f"{figure:,}" for figure in vars(one).values())]
        for number, one in enumerate(previews)
    ]


def outlook(previews: Sequence[Preview], options: Agreement, public: int) -> list[str]:
    """Who would learn what, in words; of organisations as large as these."""
    if not options.veiled:
        server = "the server would read every word that is proposed"
    elif options.trust == "nobody":
        server = (
            f"the server would read the words that {options.holders} organisations hold, and their "
            "counts; of the others it would see rows that it can't tell from rows of none"
        )
    elif options.rule == "dp":
        server = "the server would see a hash and a weight of every word, and read what it releases"
    else:
        how = {"coarse": "a coarse count", "exact": "its exact count", "none": "no count"}
        number = how[options.counts] if options.rule == "summed" else how["none"]
        server = (
            f"the server would see a hash of every word with {number}, and could read those that "
            f"{options.holders} organisations hold"
        )
    if everything_is_told(options):
        return [server, "the others would read every word that the list takes, whoever holds it"]
    if options.rule == "dp":
        return [
            server,
            f"the others would read words that many texts hold; one text more or less is hidden "
            f"at epsilon {options.epsilon:g}, from liars too",
        ]
    most = min(words_of_a_liar(options, max((p.proposes for p in previews), default=0)), public)
    together = (
        "the server and an organisation together could try words out, each in "
        f"{options.memory} kilobytes; what they don't guess they can't read"
    )
    return [
        server,
        *([together] if options.trust == "nobody" else []),
        f"liars: {options.holders - 1}, who try out the {most:,} most frequent of {public:,} "
        "public words (that the organisation alone holds them is the worst case)",
        f"a word that they name, public or not, is told if it occurs {least(options)} times or "
        "more at the organisation; to propose fewer words, lower agreement.top",
    ]


def inspect(vocabulary: Vocabulary, most: int = 10) -> dict[str, str]:
    """A vocabulary in a few lines."""
    ranked = sorted(
        zip(vocabulary.tokens, vocabulary.counts, strict=True), key=lambda item: (-item[1], item[0])
    )
    told = any(vocabulary.counts)

    def line(items: Sequence[tuple[str, int]]) -> str:
        return ", ".join(f"{word} ({count:,})" if told else word for word, count in items)

    lines = {"words": f"{len(vocabulary):,}", "version": str(vocabulary.version)}
    if not told:
        return {
            **lines,
            "counts": "not shared",
            "first": line(ranked[:most]),
            "last": line(ranked[-most:]),
        }
    return {**lines, "most frequent": line(ranked[:most]), "rarest": line(ranked[-most:])}
