"""The desk: a letter comes in, a letter goes out. Everything that an organisation promises itself
is kept here, in this order:

    signed by the server?   for this client?   the same as before: the same answer
    of a federation that was joined under the site's policy?   not older than what was answered?
    a verb that is allowed?   paid for in the site's own book   then the handler, as in a simulation
    what may leave?   kept, written down, signed, sent

A refusal says in one sentence why. What went wrong inside says so without a detail: an error may
hold text.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import Logger
from math import isfinite
from pathlib import Path
from threading import Lock
from traceback import extract_tb

from lexfed import __version__
from lexfed.core.errors import CheckpointError, ConfigError, DataError, PrivacyError, WireError
from lexfed.core.files import OWNER_ONLY, make_private, write_atomically
from lexfed.corpus.organisations import home
from lexfed.experiment import terms as shared_terms
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.terms import TermsError
from lexfed.runtime import letters
from lexfed.runtime.letters import Letter, LetterError
from lexfed.runtime.simulation import Site, site_of
from lexfed.runtime.store import Store
from lexfed.site import policy as rules
from lexfed.site import site_log
from lexfed.site.answers import Answers, Newest
from lexfed.site.policy import RefusedError
from lexfed.site.site_book import Book, charged, weighed
from lexfed.site.site_file import SiteFile
from lexfed.wire import Message, Verb, check, decode, encode
from lexfed.wire.verbs import CLOCK

LATEST = 1 << 31  # step, ask or round
SELDOM = 60.0  # seconds between two lines of one kind about letters that are none
Packet = tuple[bytes, bytes]  # head and body


@dataclass(frozen=True)
class Joined:
    """A federation that this site takes part in."""

    terms: bytes
    assembly: Assembly
    site: Site


Open = Callable[[SiteFile, bytes, Path], Joined]


def joined(mine: SiteFile, terms: bytes, folder: Path) -> Joined:
    """The federation of these terms, if the site's policy allows it."""
    own = {"self_audit": mine.self_audit} if mine.self_audit else {}
    config = shared_terms.adopted(terms, mine.data, mine.allowed, **own)
    if config.data.clients != len(mine.peers):
        raise RefusedError(
            f"the terms speak of {config.data.clients} clients, and peers.json of {len(mine.peers)}"
        )
    rules.check_terms(mine.policy, config)
    if not mine.keys.common and rules.needs_common_secret(config):
        raise RefusedError(
            "this federation needs the secret that all organisations share, and this site has "
            "none: put common.key beside its site.toml (lexfed keys common), and start it again"
        )
    people = home(config.data, mine.me, mine.peers, mine.keys, config.entry.kind.labels)
    assembly = assemble(config, people)
    rules.check_promise(mine.policy, assembly)
    make_private(folder)
    return Joined(terms, assembly, site_of(assembly, Store(folder / "store")))


@dataclass
class Desk:
    mine: SiteFile
    log: Logger
    open: Open = joined
    federations: dict[str, Joined] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)  # one letter at a time
    at: str = "waiting for the server"  # for a status line
    told: dict[str, float] = field(default_factory=dict)  # when

    def answer(self, head: bytes, body: bytes) -> Packet:
        with self.lock:
            try:
                request = self._read(head, body)
            except LetterError as error:
                self._seldom(f"refused a letter: {error}")
                return b"", b""
            packet = self._safely(request)
            self.at = "waiting for the server"
            return packet

    def _read(self, head: bytes, body: bytes) -> Letter:
        request = letters.opened(head, body, lambda letter: self.mine.server)
        if request.kind not in letters.REQUESTS:
            raise LetterError("it is no request")
        meant = (letters.ANYBODY,) if request.kind == "hello" else (self.mine.me,)
        if request.client not in meant:
            raise LetterError(f"it is for client {request.client}, and this is {self.mine.me}")
        return request

    def _safely(self, request: Letter) -> Packet:
        """The answer, or a refusal. What a server is told of it is only what may be told: an error
        may hold a text, a label, a path.
        """
        try:
            kept = self._answers(request).find(request.digest)
            if kept is not None:
                self._say(f"sent the same answer again to '{request.verb}'")
                return kept
            return self._kept(request, self._made(request))
        except (RefusedError, TermsError) as error:
            why = site_log.plain(str(error))
        except Exception as error:  # whatever a handler, torch, or a full disk does
            what = "join" if request.kind == "hello" else "answer"
            self._say(f"could not {what}: {_about(error)}")
            why = f"the site could not {what}: see its log"
        self._say(f"refused '{site_log.plain(request.verb or request.kind)}': {why}")
        refusal = letters.answer(request, "refusal", self.mine.me, reason=why)
        return letters.sealed(refusal, self.mine.keys.identity)

    def _made(self, request: Letter) -> Letter:
        if request.version != __version__:
            raise RefusedError(
                f"the server runs lexfed {request.version}, this site {__version__}: they must be "
                "the same"
            )
        return self._hello(request) if request.kind == "hello" else self._ask(request)

    def _hello(self, request: Letter) -> Letter:
        there = self._folder(request) / "terms.toml"
        if letters.digest(request.body) != request.terms:
            raise RefusedError("these are not the terms that the letter names")
        if there.exists():
            self._joined(request)
            return letters.answer(request, "reply", self.mine.me)
        federation = self.open(self.mine, request.body, there.parent)
        make_private(there.parent)
        write_atomically(there, request.body, OWNER_ONLY)
        self.federations[request.federation] = federation
        config = federation.assembly.config
        self._say(
            f"joined federation {request.federation[:8]}: {config.method}, "
            f"{config.data.clients} clients, {config.rounds} rounds"
            + (", secure sums" if config.secure.sums else "")
        )
        return letters.answer(request, "reply", self.mine.me)

    def _ask(self, request: Letter) -> Letter:
        federation = self._joined(request)
        verb = self._verb(federation, request.verb)
        rules.check_verb(self.mine.policy, verb)
        message = _message(verb, request.body)
        step, newest = int(message.meta["step"]), Newest(self._folder(request) / "newest")
        if step < newest.read():
            raise RefusedError(
                f"step {step} is older than what this site has answered ({newest.read()})"
            )
        self.at = f"answering '{verb.name}' of round {message.meta['round']}"
        book, clock = Book(self.mine.folder / "ledger.json"), f"{request.federation} {step}"
        spent = charged(book.read(), self.mine.policy, federation.assembly, verb, clock)
        book.write(spent)  # before anything is made of the texts
        reply = federation.site.answer(verb, self.mine.me, message)
        newest.write(step)
        if reply is None:
            self._say(f"kept the answer to '{verb.name}', round {message.meta['round']}")
            return letters.answer(request, "silence", self.mine.me)
        body = encode(reply)
        try:
            rules.check_reply(self.mine.policy, verb, reply, len(body))
            book.write(weighed(spent, self.mine.policy, len(body)))
        except RefusedError as error:  # it is paid for, and kept: the same letter costs no more
            self._say(f"refused '{verb.name}': {error}")
            return letters.answer(request, "refusal", self.mine.me, reason=str(error))
        self._say(_told(verb, message, reply, len(body)))
        return letters.answer(request, "reply", self.mine.me, body)

    def _joined(self, request: Letter) -> Joined:
        """The federation of a request, after a restart from what was kept of it."""
        there = self._folder(request) / "terms.toml"
        if not there.exists():
            raise RefusedError("this site has not joined that federation")
        terms = there.read_bytes()
        if letters.digest(terms) != request.terms:
            raise RefusedError(
                "this federation was joined under other terms: a changed configuration is another "
                "federation"
            )
        if request.federation not in self.federations:
            self.federations[request.federation] = self.open(self.mine, terms, there.parent)
        return self.federations[request.federation]

    def _verb(self, federation: Joined, name: str) -> Verb:
        try:
            return federation.site.method.verb(name)
        except WireError as error:
            raise RefusedError(
                f"'{site_log.plain(name)}' is no verb of {federation.assembly.entry.name}"
            ) from error

    def _kept(self, request: Letter, answer: Letter) -> Packet:
        """What can't be kept is not sent: it could not be sent again as it was."""
        packet = letters.sealed(answer, self.mine.keys.identity)
        if request.kind == "ask":
            step = Newest(self._folder(request) / "newest").read()
            self._answers(request).keep(request.digest, step, *packet)
        return packet

    def _answers(self, request: Letter) -> Answers:
        return Answers(self._folder(request) / "answers", self.mine.peers[self.mine.me])

    def _folder(self, request: Letter) -> Path:
        return self.mine.folder / "federations" / request.federation

    def admits(self, head: bytes) -> bool:
        """Whether the server wrote this head: before its body is read."""
        try:
            letters.signed_head(head, lambda letter: self.mine.server)
        except LetterError as error:
            with self.lock:
                self._seldom(f"refused a letter: {error}")
            return False
        return True

    def _seldom(self, sentence: str) -> None:
        """Once a minute: who writes no letters must not fill the log."""
        if time.monotonic() - self.told.get(sentence, float("-inf")) > SELDOM:
            self.told[sentence] = time.monotonic()
            self._say(sentence)

    def _say(self, sentence: str) -> None:
        self.log.info(site_log.plain(sentence))


def _message(verb: Verb, body: bytes) -> Message:
    """A request as this verb may be asked, with a clock that can be."""
    try:
        message = decode(body)
        check(verb, "down", message)
    except WireError as error:
        raise RefusedError(f"no message of '{verb.name}': {error}") from error
    clock = [message.meta.get(name) for name in CLOCK]
    if not all(type(number) is int and 0 <= number < LATEST for number in clock):
        raise RefusedError(f"no clock: {', '.join(CLOCK)} are whole numbers")
    if not all(isfinite(x) for x in message.meta.values() if isinstance(x, float)):
        raise RefusedError("a number of the request is none")
    return message


def _about(error: Exception) -> str:
    """An error in the log, without what it says of anything but files and names of parameters: the
    others may quote a text.
    """
    if isinstance(error, PrivacyError | CheckpointError):
        return str(error)
    ours = isinstance(error, ConfigError | DataError) and error.__cause__ is None
    if ours:  # a sentence of lexfed's own, but for what it quotes
        return re.sub(r"'[^']*'", "'...'", str(error))
    if isinstance(error, OSError):
        return f"{error.strerror}: {error.filename}"
    places = [frame for frame in extract_tb(error.__traceback__) if "lexfed" in frame.filename]
    where = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    return f"{type(error).__name__}{where}; lexfed client --check may say more"


def _told(verb: Verb, request: Message, reply: Message, size: int) -> str:
    what = {"update": "an update", "list": "a list", "figures": "scores"}[verb.kind]
    return (
        f"sent to the server: {what} ('{verb.name}', round {request.meta.get('round')}, step "
        f"{request.meta.get('step')}), {site_log.sizes(size)}: {site_log.names(reply.arrays)}"
        + (f", and {', '.join(sorted(reply.blobs))} as bytes" if reply.blobs else "")
    )
