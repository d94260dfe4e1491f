"""Organisations that do not trust each other: what one that lies, and a server that does, can get
from an agreement.
"""

from dataclasses import replace

import pytest

from lexfed.agreement.proposals import PROPOSE, SPELL, hashes
from lexfed.wire import Message
from tests.unit.test_agreement import TEXTS, Wire, wire

# Two banks that share no more than common words, and a liar that brings a dictionary.
PRIVATE = [f"client{i}" for i in range(40)]
HONEST = [
    ["the bank of the market"] * 12 + PRIVATE * 2,
    ["the bank of the river"] * 12,
]


def with_liar(dictionary: list[str], times: int = 1) -> list[list[str]]:
    return [*HONEST, [" ".join(dictionary)] * times]


def test_a_dictionary_does_not_make_one_organisations_words_held_by_two() -> None:
    words = set(wire(with_liar(PRIVATE, times=100)).words())
    assert {"the", "bank", "of"} <= words
    assert not words & set(PRIVATE), "what two of a word are worth does not depend on who shouts"


def test_the_lists_counts_do_not_tell_the_others() -> None:
    """The liar proposes a word once, and takes its one from the count that is told."""
    often = [["deposit"] * n for n in (11, 12, 13)]
    told = {
        wire([[*HONEST[0], *more], ["deposit"] * 9, ["deposit"]]).vocabulary().counts
        for more in often
    }
    assert len(told) == 1


def lying(texts: list[list[str]], liar: int, planted: str) -> Wire:
    """Whatever it is asked to spell, it says the same word, and then makes words up."""
    ran = wire(texts)
    asked = len(ran.words())
    names = "\n".join([planted, *(f"lie{i}" for i in range(asked))])

    class Lying(Wire):
        def ask(self, verb, requests):  # type: ignore[no-untyped-def]
            for client, reply in super().ask(verb, requests):
                if verb is SPELL and client == liar:
                    n = len(requests[client].arrays["hashes"])
                    reply = Message(blobs={"words": "\n".join(names.split("\n")[:n]).encode()})
                yield client, reply

    return Lying(ran.population, ran.options)


@pytest.mark.parametrize("liar", range(4))
def test_who_spells_words_wrong_changes_nothing(liar: int) -> None:
    texts = [*TEXTS, ["the money of the bank for the team"] * 6]
    assert lying(texts, liar, "viagra").words() == wire(texts).words()


def test_hashes_of_two_fresh_agreements_have_nothing_in_common() -> None:
    sent = []
    for seed in (0, 1):
        ran = wire(TEXTS)
        ran.agree(seed=seed)
        sent.append({name for m in ran.sent(PROPOSE, "up") for name in hashes(m.arrays["hashes"])})
    assert sent[0]
    assert not sent[0] & sent[1]


def test_a_server_can_not_have_spelt_what_one_alone_holds() -> None:
    ran = wire(TEXTS)
    ran.agree()
    for client in range(3):
        (proposal,) = ran.sent(PROPOSE, "up", client)
        own = ran.sent(SPELL, "down", client)
        request = replace(own[0], arrays={**own[0].arrays, "hashes": proposal.arrays["hashes"]})
        ((_, reply),) = ran.ask(SPELL, {client: request})
        told = set(reply.blobs["words"].decode().split("\n")) - {""}
        assert told <= set(wire(TEXTS, minimum=1).words())
