"""What an organisation's site refuses, whatever a server, a relay or a careless operator does."""

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from lexfed.core.errors import ConfigError
from lexfed.experiment import terms as shared_terms
from lexfed.privacy import accounting
from lexfed.runtime import letters
from lexfed.runtime.letters import Letter
from lexfed.site.desk import Joined, joined
from lexfed.site.policy import Policy, RefusedError, check_verb
from lexfed.site.site_book import Spent, charged
from lexfed.site.site_file import SiteFile
from lexfed.wire import Message, encode
from tests.hostile_server import (
    FEDERATION,
    IDENTITIES,
    NOISE,
    SECRET,
    Hostile,
    organisation,
    reply_of,
    written,
)
from tests.organisations import close_all, desk


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    close_all()


def refused(server: Hostile, answer: Letter | None, why: str) -> str:
    """It was, for this reason, in one line of the log, and nothing of the texts is in either."""
    assert answer is not None
    assert answer.kind == "refusal"
    assert not answer.body
    assert why in answer.reason
    line = server.log.splitlines()[-1]
    assert "refused" in line
    assert why in line
    for private in (SECRET, "number7", "ours.csv", str(server.desk.mine.folder)):
        assert private not in answer.reason
    assert SECRET not in server.log
    return answer.reason


# --- who writes ----------------------------------------------------------------------------------


def unread(server: Hostile, head: bytes, body: bytes, why: str) -> None:
    """Nobody is answered whose letter can't be believed, and nothing is charged."""
    before = server.ledger
    assert server.desk.answer(head, body) == (b"", b"")
    assert f"refused a letter: {why}" in server.log  # once a minute for each reason
    assert server.ledger == before


def test_letters_that_the_server_did_not_write(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path)
    letter = server.letter("ask", encode(server.request()), "train")
    head, body = letters.sealed(letter, server.key)
    unread(server, b"", body, "a head of no letter")
    unread(server, head[: letters.keys.SIGNATURE], body, "a head of no letter")
    unread(server, bytes(letters.keys.SIGNATURE) + letter.written, body, "not signed by")
    unread(server, *letters.sealed(letter, IDENTITIES[1]), "not signed by")
    unread(server, head, body[:-1], "the body was changed on its way, or cut off")
    unread(server, head, body[:-1] + b"\1", "the body was changed on its way, or cut off")
    other = letters.sealed(replace(letter, verb="evaluate"), server.key)[0]
    unread(server, head[: letters.keys.SIGNATURE] + other[letters.keys.SIGNATURE :], body, "not")
    nested = b'{"a":' * 20_000
    unread(server, bytes(letters.keys.SIGNATURE) + nested[:60_000], body, "a head of no letter")
    assert server.send(letter) is not None  # as it was written, it is answered


def test_letters_for_somebody_else(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path)
    body = encode(server.request())
    for_another = server.letter("ask", body, "train", client=1)
    unread(server, *letters.sealed(for_another, server.key), "it is for client 1, and this is 0")
    for_nobody = server.letter("ask", body, "train", client=letters.ANYBODY)
    unread(server, *letters.sealed(for_nobody, server.key), "it is for client")
    reply = server.letter("reply", body, "train")
    unread(server, *letters.sealed(reply, server.key), "it is no request")


def test_another_lexfed(tmp_path: Path) -> None:
    server = Hostile(desk(organisation(tmp_path)), version="0.0.1\x1b[2J\nforged line")
    refused(server, server.hello(), "the server runs lexfed 0.0.1?[2J?forged line")
    assert "\x1b" not in server.log
    assert "\nforged" not in server.log
    assert not (tmp_path / "federations").exists()


# --- which federation ----------------------------------------------------------------------------


def test_a_federation_that_was_never_joined(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path)
    request = server.request()
    stranger = replace(server, federation="cd" * 16)
    refused(stranger, stranger.ask(message=request), "has not joined that federation")
    # a letter of the federation that was joined, under another's name, was never signed
    head, body = letters.sealed(server.letter("ask", encode(request), "train"), server.key)
    unread(server, head.replace(FEDERATION.encode(), b"cd" * 16), body, "not signed by")


def test_other_terms_for_a_federation_that_was_joined(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path)
    other = replace(server, terms=written(rounds=30))
    refused(other, other.hello(), "joined under other terms")
    refused(other, other.ask(message=server.request()), "joined under other terms")
    lying = server.letter("hello", written(rounds=30), client=letters.ANYBODY)
    refused(server, server.send(lying), "terms")
    assert server.ask().kind == "reply"


TRAP = "the_trap_of_test_site"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"method": f"{TRAP}:METHOD"}, "not on this site's list (policy.methods)"),
        ({"method": "fedavg"}, "not on this site's list (policy.methods)"),
        ({"method": None}, "not on this site's list (policy.methods)"),
        ({"method": ["fedevocab"]}, "not on this site's list (policy.methods)"),
        ({"model": {"name": f"{TRAP}:MODEL"}}, "not on this site's list (policy.models)"),
        ({"model": {"name": "/tmp/a-model"}}, "not on this site's list (policy.models)"),
        ({"model": {"name": ["bilstm"]}}, "not on this site's list (policy.models)"),
        ({"language_model": {"name": f"{TRAP}:LM"}}, "not on this site's list (policy.models)"),
        ({"data": {"clients": 3, "name": f"{TRAP}:texts"}}, "'name', which is not its to say"),
    ],
)
def test_nothing_is_imported_that_the_site_did_not_list(
    changed: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is there, and writes a file when it is imported."""
    (tmp_path / f"{TRAP}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = Hostile(desk(organisation(tmp_path / "site")), written(**changed))
    refused(server, server.hello(), why)
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "site/federations").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"vocabulary": {"vectors": "/etc/passwd"}},
        {"vocabulary": {"vectors": "../texts.csv"}},
        {"vocabulary": {"vectors": "~/.ssh/id_rsa"}},
        {"vocabulary": {"vectors": "file:unknown"}},
        {"vocabulary": {"vectors": "file:../texts.csv"}},
        {"vocabulary": {"vectors": "file:vectors.txt"}},
        {"vocabulary": {"vectors": 7}},
        {"vocabulary": {"corpus": "texts.csv"}},
        {"vocabulary": {"corpus": "clients"}},
        {"fedevocab": {"vectors": ["/etc/passwd"]}},
        {"tokenizer": {"start": "/etc/passwd"}},
        {"tokenizer": {"start": "oracle"}},
        {"tokenizer": {"public": "/etc/passwd"}},
        {"word2vec": {"start": "/etc/passwd"}},
        {"data": {"clients": 3, "name": "/etc/passwd"}},
        {"data": {"clients": 3, "text": "label"}},
        {"seed": 1},
        {"secrets": "seed"},
        {"name": "x"},
        {"malice": {"clients": 1}},
        {"audit": {"guesses": 1}},
        {"unheard": 1},
        {"train": {"unheard": 1}},
        {"train": {"epochs": "many"}},
        {"train": 3},
        {"files": {"vectors.txt": 3}},
        {"files": 3},
        {"data": 3},
        {"rounds": 0},
    ],
    ids=str,
)
def test_terms_that_a_site_does_not_take(changed: dict[str, Any], tmp_path: Path) -> None:
    mine = organisation(tmp_path)
    (tmp_path / "v.txt").write_text("a 1 2 3 4\n")
    mine = replace(mine, files={"vectors.txt": tmp_path / "v.txt"})
    server = Hostile(desk(mine), written(**changed))
    refused(server, server.hello(), "")
    assert not (tmp_path / "federations").exists()
    assert not (tmp_path / "ledger.json").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe", b"rounds = ", b"[data]\n", b"a = " + b"[" * 5000, b"a." * 5000 + b"b = 1",
        b"\n".join(b"k%d = 1" % i for i in range(500_000)),
    ],
    ids=["bytes", "half", "less", "nested", "dotted", "huge"],
)  # fmt: skip
def test_terms_that_are_none(body: bytes, tmp_path: Path) -> None:
    server = Hostile(desk(organisation(tmp_path)), body)
    refused(server, server.hello(), "the server's terms")
    assert not (tmp_path / "federations").exists()


def test_what_is_wrong_at_the_site_stays_there(tmp_path: Path) -> None:
    """An error of the site's own may hold a path, a name or a piece of text."""
    mine = organisation(tmp_path)
    (tmp_path / "ours.csv").write_text(f'text,label\n"a {SECRET}\n')
    server = Hostile(desk(mine))
    refused(server, server.hello(), "the site could not join: see its log")
    (tmp_path / "ours.csv").write_text(f"text,label\na {SECRET},{SECRET}\nb,good\n")
    refused(server, server.hello(), "the site could not join: see its log")
    assert "has a label that data.labels does not name" in server.log
    organisation(tmp_path)  # mended
    server.enters()


# --- what is asked -------------------------------------------------------------------------------


def test_a_verb_of_no_method_or_not_of_this_policy(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path, verbs=("train",))
    refused(server, server.ask("read\nfile"), "'read?file' is no verb of fedevocab")
    refused(server, server.ask("evaluate"), "'evaluate' is not among the verbs of this site")
    assert server.ledger["exchanges"] == 0


def test_a_private_name_is_never_sent(tmp_path: Path) -> None:
    """A server that sends the private table's name as if it were shared would get its rows back as
    an update.
    """
    server = Hostile.joined(tmp_path)
    rows = {"model/embedding.weight": torch.zeros(40, 4)}
    honest = server.request()
    refused(server, server.ask(message=replace(honest, arrays={**honest.arrays, **rows})), "")
    stray = replace(honest, arrays={**honest.arrays, "texts": torch.zeros(1)})
    refused(server, server.ask(message=stray), "may not hold 'texts'")
    assert not any(b"embedding" in path.read_bytes() for path in tmp_path.rglob("answers/*"))


def test_a_handler_that_would_tell_a_private_name(tmp_path: Path) -> None:
    """A method's own code may be wrong, or not what it seemed: the gate is the site's."""

    def leaky(mine: SiteFile, terms: bytes, folder: Path) -> Joined:
        made = joined(mine, terms, folder)
        method = made.site.method
        table = {"delta/embedding.weight": torch.zeros(2, 4)}
        client = {
            verb: lambda message, client, state: (Message(table), state) for verb in method.client
        }
        return replace(made, site=replace(made.site, method=replace(method, client=client)))

    server = Hostile(desk(organisation(tmp_path), leaky))
    server.enters()
    refused(server, server.ask(), "the site could not answer: see its log")
    assert "private parameter 'embedding.weight' was about to be sent" in server.log
    assert not list(tmp_path.rglob("answers/*"))


@pytest.mark.parametrize(
    "meta",
    [
        {"step": 0}, {"step": -1}, {"step": 1.5}, {"step": "1"}, {"step": 10**18}, {"step": True},
        {"ask": -1}, {"ask": "x"}, {"ask": 10**18}, {"round": "\nforged"}, {"round": -1},
        {"clip": float("nan")}, {"clip": float("inf")}, {"unheard": 1},
    ],
    ids=str,
)  # fmt: skip
def test_clocks_and_numbers_that_cannot_be(meta: dict[str, Any], tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path, written(privacy=NOISE["local"]))
    honest = server.request(step=2)
    assert server.ask(message=honest).kind == "reply"
    refused(server, server.ask(message=honest, **meta), "")
    assert "\nforged" not in server.log
    # and it locks nobody out
    assert server.ask(message=server.request(step=3)).kind == "reply"


@pytest.mark.parametrize("lost", ["step", "ask", "round", "clip"])
def test_a_request_that_lacks_something(lost: str, tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path, written(privacy=NOISE["local"]))
    honest = server.request()
    less = {name: value for name, value in honest.meta.items() if name != lost}
    refused(server, server.ask(message=replace(honest, meta=less)), "")


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda x: torch.zeros(3, 3, 3),
        lambda x: x.to(torch.int64),
        lambda x: x.to(torch.bool),
        lambda x: torch.empty(0),
        lambda x: torch.full_like(x, float("nan")),
        lambda x: torch.full_like(x, 1e38),
    ],
    ids=["shape", "whole", "bool", "empty", "nan", "large"],
)
def test_a_model_of_the_wrong_kind(spoilt: Any, tmp_path: Path) -> None:
    """It is refused, or it trains into nothing; the site goes on, and no error tells of texts."""
    server = Hostile.joined(tmp_path)
    honest = server.request()
    arrays = {name: spoilt(value) for name, value in honest.arrays.items()}
    answer = server.ask(message=replace(honest, arrays=arrays))
    assert answer.kind in ("refusal", "reply")
    assert SECRET not in answer.reason
    assert SECRET not in server.log
    refused(server, server.ask(message=replace(honest, arrays={})), "")
    assert server.ask().kind == "reply"


@pytest.mark.parametrize("body", [b"", b"\x80\x04.", b"\xff" * 16, (1 << 60).to_bytes(8, "little")])
def test_bytes_that_are_no_message(body: bytes, tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path)
    refused(server, server.send(server.letter("ask", body, "train")), "no message")
    assert server.ledger["exchanges"] == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyError, IndexError, MemoryError, RecursionError])
def test_an_error_inside_says_nothing(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Hostile.joined(tmp_path)

    def fails(*_: object) -> None:
        raise error(f"index {SECRET} is out of range")

    site = server.desk.federations[FEDERATION].site
    with monkeypatch.context() as patch:
        patch.setattr(type(site), "answer", fails)
        refused(server, server.ask(), "the site could not answer: see its log")
    assert error.__name__ in server.log
    assert server.ask().kind == "reply"


# --- how much ------------------------------------------------------------------------------------


def test_one_exchange_more_than_the_policy_grants(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path, exchanges=2)
    assert [server.ask().kind for _ in range(2)] == ["reply"] * 2
    refused(server, server.ask(), "policy.exchanges")
    refused(server, server.again().ask(message=server.request()), "policy.exchanges")
    another = replace(server, federation="cd" * 16)
    another.enters()
    refused(another, another.ask(), "policy.exchanges")


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"bytes": 100}, "policy.bytes"),
        ({"longest": 100}, "policy.longest"),
        ({"numbers": 100}, "policy.numbers"),
        ({"arrays": ("weight", "loss")}, "policy.arrays"),
    ],
)
def test_an_answer_that_is_too_much(policy: dict[str, Any], why: str, tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path, **policy)
    refused(server, server.ask(), why)
    assert server.ledger["exchanges"] == 1  # what was made of the texts stays in the book


def test_a_refusal_that_was_paid_for_is_paid_once(tmp_path: Path) -> None:
    """Whoever carries the letter can repeat it."""
    server = Hostile.joined(tmp_path, longest=100)
    letter = server.letter("ask", encode(server.request()), "train")
    answers = [server.desk.answer(*letters.sealed(letter, server.key)) for _ in range(5)]
    assert len(set(answers)) == 1
    assert server.ledger["exchanges"] == 1


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"vocabulary": {"corpus": "hashed:x"}}, "vocabulary.corpus"),
        ({"vocabulary": {"vectors": "hashed:x"}}, "vocabulary.vectors"),
        ({"secure": {"sums": True, "threshold": 0.51}}, "policy.clients"),
        ({"secure": {"sums": True, "sparse_above": 2}}, "sparse_above"),
    ],
)
def test_terms_that_a_reviewer_found(terms: dict[str, Any], why: str, tmp_path: Path) -> None:
    server = Hostile(desk(organisation(tmp_path, clients=3)), written(**terms))
    refused(server, server.hello(), why)


def test_a_word_is_never_looked_for_on_the_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """A file in the site's folder that is called like a word of the terms is not opened."""
    (tmp_path / "random").write_text("secret 1 2 3")
    monkeypatch.chdir(tmp_path)
    terms = written(method="fedevocab", fedevocab={"vectors": ["random"]})
    mine = organisation(tmp_path / "site", methods=("fedevocab",))
    config = shared_terms.adopted(terms, mine.data, mine.allowed)
    assert config.fedevocab.vectors == ("random",)


@pytest.mark.parametrize(
    "agreement",
    [{"rule": "union"}, {"hashed": False}, {"holders": 1}, {"counts": "exact"}, {"rule": "dp"}],
    ids=str,
)
def test_words_of_one_site_alone_are_not_spelt(agreement: dict[str, Any], tmp_path: Path) -> None:
    given = {"methods": ("federated_word2vec",)}
    tables = {"data": {"clients": len(IDENTITIES)}, "files": {}, "cohort": {"sampling": "everyone"}}
    method = {"method": "federated_word2vec", "rounds": 2, "agreement": agreement}
    terms = tomli_w.dumps({**method, **tables}).encode()
    server = Hostile(desk(organisation(tmp_path, **given)), terms)
    refused(server, server.hello(), "policy.words")
    server = Hostile(desk(organisation(tmp_path / "open", **given, words="open")), terms)
    assert server.hello().kind == "reply"


@pytest.mark.parametrize(
    ("policy", "terms", "why"),
    [
        ({"secure_sums": True}, {}, "policy.secure_sums"),
        ({"clients": 4}, {}, "policy.clients"),
        ({"clients": 3}, {"cohort": {"size": 2}}, "policy.clients"),
        ({"clients": 3}, {"secure": {"sums": True, "least": 2}}, "policy.clients"),
        ({"noise": "own", "epsilon": 1.0}, {}, "policy.noise"),
        ({"noise": "own", "epsilon": 1.0}, {"privacy": NOISE["central"]}, "policy.noise"),
        ({"epsilon": 1.0}, {}, "an epsilon to keep"),
        ({}, {"data": {"clients": 2, "labels": ["bad", "good"]}}, "peers.json"),
    ],
)
def test_a_federation_that_the_policy_forbids(
    policy: dict[str, Any], terms: dict[str, Any], why: str, tmp_path: Path
) -> None:
    server = Hostile(desk(organisation(tmp_path, **policy)), written(**terms))
    refused(server, server.hello(), why)
    assert not (tmp_path / "federations").exists()


def test_no_score_leaves_where_only_own_noise_counts(tmp_path: Path) -> None:
    terms = written(privacy=NOISE["local"], rounds=1000)
    server = Hostile.joined(tmp_path, terms, noise="own", epsilon=50.0)
    refused(server, server.ask("evaluate"), "gives no scores")
    assert server.ask().kind == "reply"


def spent(server: Hostile) -> float:
    ledger = accounting.from_json(server.ledger["ledger"])
    return accounting.epsilon(ledger, "user", server.desk.mine.policy.delta)


@pytest.mark.parametrize("placement", ["local", "central"])
def test_no_exchange_beyond_the_sites_own_epsilon(placement: str, tmp_path: Path) -> None:
    """However many rounds the server's terms speak of, in however many federations."""
    terms = written(privacy=NOISE[placement], rounds=1000)
    server = Hostile.joined(tmp_path, terms, epsilon=3.0)
    answers = []
    while len(answers) < 20 and server.ask().kind == "reply":
        answers.append(spent(server))
    assert 2 <= len(answers) < 20
    assert answers == sorted(answers)
    assert answers[-1] <= 3.0
    refused(server, server.ask(), "policy.epsilon")
    refused(server, server.ask("evaluate"), "policy.epsilon")
    another = replace(server, federation="cd" * 16)
    another.enters()
    refused(another, another.ask(), "policy.epsilon")
    assert spent(server) == answers[-1]


def answered(server: Hostile, name: str, most: int = 50) -> Spent:
    """The book, when a new site has answered this verb as often as its policy grants, at one
    clock.
    """
    there, rules, book = server.desk.federations[FEDERATION], server.desk.mine.policy, Spent()
    verb = there.site.method.verb(name)
    while book.exchanges < most:
        try:
            book = charged(book, rules, there.assembly, verb, f"{FEDERATION} 1")
        except RefusedError:
            return book
    return book


def test_shares_of_noise_are_paid_for_under_masks(tmp_path: Path) -> None:
    """Of a secure sum, the masked answer costs; the exchanges around it tell nothing."""
    noise = {"placement": "distributed", "noise": 4.0}
    terms = written(privacy=noise, secure={"sums": True}, rounds=1000)
    server = Hostile.joined(tmp_path, terms, epsilon=2.0, secure_sums=True, noise="own")
    alone = server.ask("train")  # without masks, nothing is said
    assert alone.kind == "silence"
    assert not alone.body
    for name in ("train-keys", "train-shares", "train-open"):
        assert answered(server, name).exchanges == 50
        assert answered(server, name).ledger == ()
    book = answered(server, "train-masked")
    assert 2 <= book.exchanges == accounting.times(book.ledger) < 50
    assert accounting.epsilon(book.ledger, "user", server.desk.mine.policy.delta) <= 2.0
    scores = server.desk.federations[FEDERATION].site.method.verb("evaluate-masked")
    with pytest.raises(RefusedError, match="no scores"):
        check_verb(server.desk.mine.policy, scores)


WORDS = {"kind": "bpe", "size": 300, "public": "rotten_tomatoes"}


@pytest.mark.parametrize(("start", "verb", "times"), [("heavy_hitters", "sketch", 2)])
def test_words_are_not_asked_for_again_and_again(
    start: str, verb: str, times: int, tmp_path: Path
) -> None:
    """A question that the terms do not pay for, or that they pay for once."""
    terms = written(
        method="tokenizer_for_free", fedevocab=None, model=None, data={"clients": 3},
        tokenizer={**WORDS, "start": start}, privacy=NOISE["local"], rounds=5,
        language_model={"width": 4}, heavy_hitters={"epsilon": 3.0, "epsilon_of": "user"},
        tokenizer_for_free={"switch": [2]},
    )  # fmt: skip
    server = Hostile.joined(tmp_path, terms, methods=("tokenizer_for_free",), epsilon=8.0)
    assert answered(server, verb).exchanges == times


def test_a_budget_of_the_servers_that_pays_for_nothing(tmp_path: Path) -> None:
    """Terms whose own epsilon covers no round at all plan no release: an answer is not free."""
    terms = written(privacy={"placement": "central", "noise": 0.5, "epsilon": 1e-3})
    server = Hostile(desk(organisation(tmp_path, epsilon=3.0)), terms)
    server.enters()
    refused(server, server.ask(), "epsilon")
    assert server.ledger["exchanges"] == 0


def test_what_was_sent_without_noise_is_remembered(tmp_path: Path) -> None:
    """An epsilon that an organisation sets later can't cover it."""
    server = Hostile.joined(tmp_path)
    assert server.ask().kind == "reply"
    mine = server.desk.mine
    later = replace(mine, policy=replace(mine.policy, epsilon=8.0))
    careful = Hostile(desk(later), written(privacy=NOISE["local"]), "cd" * 16)
    careful.enters()
    refused(careful, careful.ask(), "without noise")


def test_a_new_attempt_is_paid_and_has_other_noise(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path, written(privacy=NOISE["local"]), epsilon=50.0)
    letter = server.letter("ask", encode(server.request()), "train")
    first = server.desk.answer(*letters.sealed(letter, server.key))
    assert server.desk.answer(*letters.sealed(letter, server.key)) == first
    assert server.again().desk.answer(*letters.sealed(letter, server.key)) == first
    assert server.ledger["exchanges"] == 1
    assert "sent the same answer again to 'train'" in server.log
    one, other = (reply_of(x) for x in (server.opened(*first), server.ask()) if x is not None)
    assert server.ledger["exchanges"] == 2
    assert server.ledger["ledger"][0]["count"] == 2
    for name, value in one.arrays.items():
        assert not torch.equal(value, other.arrays[name]), name


# --- files ---------------------------------------------------------------------------------------


def test_what_a_site_keeps_is_its_owners(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path)
    server.ask()
    kept = [p for p in tmp_path.rglob("*") if p.name not in ("ours.csv", "format.json")]
    names = {p.name for p in kept}
    assert {"ledger.json", "site.log", "terms.toml", "newest", "answers", "store"} <= names
    for path in kept:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_public_file_is_the_one_that_the_server_has(tmp_path: Path) -> None:
    """Its digest travels, not its path."""
    mine = organisation(tmp_path / "site")
    table = tmp_path / "site/mine.txt"
    table.write_text("film 1 2 3 4\npoor 4 3 2 1\n")
    mine = replace(mine, files={"vectors.txt": table})
    fede = {"vocabulary": "own+public", "vectors": ["file:vectors.txt"]}
    digest = shared_terms._digest(table)
    server = Hostile(desk(mine), written(fedevocab=fede, files={"vectors.txt": digest}))
    server.enters()
    other = Hostile(desk(mine), written(fedevocab=fede, files={"vectors.txt": "00" * 32}))
    other.federation = "cd" * 16
    refused(other, other.hello(), "is not the one that the server has")


def test_a_policy_that_cannot_be_meant() -> None:
    for wrong in ({"methods": ()}, {"exchanges": 0}, {"epsilon": 0.0}, {"delta": 1.0}):
        with pytest.raises(ConfigError, match=r"policy\."):
            Policy(**{"methods": ("fedavg",), **wrong})


def test_the_log_says_what_was_sent(tmp_path: Path) -> None:
    server = Hostile.joined(tmp_path)
    server.ask()
    said = server.log.splitlines()
    assert "joined federation abababab: fedevocab, 3 clients, 3 rounds" in said[0]
    assert "sent to the server: an update ('train', round 0, step 1)" in said[1]
    assert "delta (10 arrays)" in said[1]
    assert json.loads((tmp_path / "ledger.json").read_text())["bytes"] > 1000


def test_a_secret_that_is_missing_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    """The organisations' own: without it words could be tried out, and nothing be turned."""
    mine = organisation(tmp_path, methods=("fedevocab",))
    mine = replace(mine, keys=replace(mine.keys, common=b""))
    terms = written(method="fedevocab", defences={"rotation": "shared"},
                    vocabulary={"vectors": "hashed:16"}, model={"embedding": 16})  # fmt: skip
    server = Hostile(desk(mine), terms)
    refused(server, server.hello(), "common.key")
