"""lexfed: federated NLP in which the vocabulary is the subject.

From texts to results, room by room:

    corpus       text, and who holds it
    vocabulary   how text becomes numbers: word lists, tokenizers, vectors
    models       what is trained
    wire         what can be sent: messages, verbs, bytes
    privacy      clipping, noise, and the ledger of what was released
    federation   asking clients, adding up, the loop of rounds, what a method is
    learning     what classifiers share: local training, evaluation, private tables
    language     the same for language models; word2vec: for word vectors
    agreement    one word list for several organisations
    layers       what is put around clients: self-audit, minimum text, mishaps, malice
    methods      the papers, one file each
    experiment   a configuration, and what is built from it
    runtime      where clients answer: this process, workers, a cluster; a store for what they keep
    records      what a run leaves on disk; report: for people; audits: for attackers
    use          what was trained: labels for new texts, texts, a folder for other programs
    runs         a run from its beginning to its end

Scripts and notebooks need what follows; own methods and models also what `learning` and
`federation` hold.
"""

import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # locks, owner-only files, workers: none of them was made to work there
    raise ImportError("lexfed runs on Linux and macOS; on Windows, use it within WSL 2")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lexfed.api import (
        Audit,
        Run,
        audit,
        load_corpus,
        open_run,
        partition,
        resume,
        run,
        simulate,
    )
    from lexfed.core.errors import LexfedError
    from lexfed.core.seeds import derive
    from lexfed.corpus.population import Client, Population
    from lexfed.corpus.text import Corpus
    from lexfed.federation import ClientState, Entry, Federation, Method, Rounds, ServerState, once
    from lexfed.learning.classifying import CLASSIFIER
    from lexfed.models.registry import ModelEntry
    from lexfed.wire import Message, Verb

__all__ = [
    "CLASSIFIER", "Audit", "Client", "ClientState", "Corpus", "Entry", "Federation", "LexfedError",
    "Message", "Method", "ModelEntry", "Population", "Rounds", "Run", "ServerState", "Verb",
    "audit", "derive", "load_corpus", "once", "open_run", "partition", "resume", "run", "simulate",
]  # fmt: skip

_HOMES = {
    "lexfed.core.errors": ("LexfedError",),
    "lexfed.core.seeds": ("derive",),
    "lexfed.corpus.population": ("Client", "Population"),
    "lexfed.corpus.text": ("Corpus",),
    "lexfed.federation": (
        "ClientState",
        "Entry",
        "Federation",
        "Method",
        "Rounds",
        "ServerState",
        "once",
    ),
    "lexfed.learning.classifying": ("CLASSIFIER",),
    "lexfed.models.registry": ("ModelEntry",),
    "lexfed.wire": ("Message", "Verb"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are used: `lexfed --help` must answer at once."""
    if name not in __all__:
        raise AttributeError(f"module 'lexfed' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOME.get(name, "lexfed.api")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
