"""A server that asks whatever it likes, and a small organisation with texts of its own."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from lexfed import __version__
from lexfed.core.seeds import derive, public_identity, root
from lexfed.corpus.organisations import elsewhere
from lexfed.corpus.population import Data
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.federation import ServerState
from lexfed.federation.state import request
from lexfed.runtime import letters
from lexfed.runtime.letters import ANYBODY, Letter
from lexfed.site.desk import Desk
from lexfed.site.policy import Policy
from lexfed.site.site_file import SiteFile
from lexfed.wire import Message, decode, encode
from tests.organisations import SERVER, desk, site

SECRET = "zanzibar"  # a word of the texts, which stands nowhere but in them
IDENTITIES = [derive(root(number), "identity") for number in range(3)]
FEDERATION = "ab" * 16
TERMS: Mapping[str, Any] = {
    "rounds": 3,
    "method": "fedevocab",
    "data": {"clients": 3, "labels": ["bad", "good"]},
    "fedevocab": {"vocabulary": "own"},
    "model": {"name": "bilstm", "embedding": 4, "hidden": 4},
    "cohort": {"sampling": "everyone"},
    "files": {},
}
NOISE = {
    "local": {"placement": "local", "noise": 8.0},
    "central": {"placement": "central", "noise": 4.0},
}
NOISE["distributed"] = {"placement": "distributed", "noise": 4.0}


def written(**changed: Any) -> bytes:
    """Terms, with these tables or values in the place of others; None: without it."""
    table = {key: value for key, value in {**TERMS, **changed}.items() if value is not None}
    return tomli_w.dumps(table).encode()


def organisation(folder: Path, me: int = 0, **policy: Any) -> SiteFile:
    """With texts that only it has."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = ("bad", "a terrible poor film"), ("good", "a wonderful fine film")
    rows = [f"{kinds[i % 2][1]} of {SECRET} number{i},{kinds[i % 2][0]}" for i in range(24)]
    (folder / "ours.csv").write_text("\n".join(["text,label", *rows]))
    rules = Policy(**{"methods": ("fedevocab",), **policy})
    return site(folder, me, IDENTITIES, rules, data=Data(name=str(folder / "ours.csv")))


@dataclass
class Hostile:
    """Letters of any kind to one desk. What it answers is opened under its own key."""

    desk: Desk
    terms: bytes = field(default_factory=written)
    federation: str = FEDERATION
    version: str = __version__
    key: bytes = field(default=SERVER, repr=False)

    @classmethod
    def joined(cls, folder: Path, terms: bytes | None = None, **policy: Any) -> "Hostile":
        made = cls(desk(organisation(folder, **policy)), terms or written())
        made.enters()
        return made

    def enters(self) -> None:
        answer = self.hello()
        assert answer is not None
        assert answer.kind == "reply", answer.reason

    def again(self) -> "Hostile":
        """The site process was killed, and started anew."""
        mine = self.desk.mine
        return replace(self, desk=desk(mine))

    def letter(self, kind: letters.Kind, body: bytes, verb: str = "", client: int = 0) -> Letter:
        return Letter(
            kind, self.federation, client, os.urandom(16).hex(), self.version,
            letters.digest(self.terms), verb, body=body,
        )  # fmt: skip

    def send(self, letter: Letter) -> Letter | None:
        """The answer; None: it was not even refused."""
        return self.opened(*self.desk.answer(*letters.sealed(letter, self.key)))

    def opened(self, head: bytes, body: bytes) -> Letter | None:
        key = public_identity(IDENTITIES[self.desk.mine.me])
        return letters.opened(head, body, lambda letter: key) if head else None

    def hello(self, terms: bytes | None = None) -> Letter | None:
        return self.send(self.letter("hello", terms or self.terms, client=ANYBODY))

    def ask(self, verb: str = "train", message: Message | None = None, **meta: Any) -> Letter:
        message = message or self.request()
        message = replace(message, meta={**message.meta, **meta})
        answer = self.send(self.letter("ask", encode(message), verb))
        assert answer is not None
        return answer

    def request(self, step: int = 1) -> Message:
        """An honest one of the first round."""
        at = self.server
        state = replace(next(at.method.server(None, root(1), ServerState())), step=step)  # type: ignore[arg-type]
        return request(state, 0, **at.parts.mechanism.tell({}))

    @property
    def server(self) -> Assembly:
        config = self.desk.federations[self.federation].assembly.config
        return assemble(config, elsewhere(config.data, self.desk.mine.peers, labelled=True))

    @property
    def log(self) -> str:
        return (self.desk.mine.folder / "site.log").read_text()

    @property
    def ledger(self) -> dict[str, Any]:
        path = self.desk.mine.folder / "ledger.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"exchanges": 0}


def reply_of(letter: Letter) -> Message:
    assert letter.kind == "reply", letter.reason
    return decode(letter.body)
