"""A language model's client: it reads its user's texts with the tokenizer it was sent, trains, and
scores.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import torch

from lexfed.core.devices import CPU, placed
from lexfed.core.errors import DataError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed
from lexfed.corpus.kept import Kept
from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.federation import Answer, ClientState, Handler, ServerState
from lexfed.learning.task import (
    Gradient,
    Local,
    LocalUpdate,
    Train,
    Trained,
    by_autograd,
    descend,
)
from lexfed.metrics.perplexity import TextScore, text_score
from lexfed.models.language_model import LanguageModel, TokenBatch, batches, pad, score, windows
from lexfed.vocabulary.learned import Learned, TokenizerOptions, from_bytes, opened, texts_of
from lexfed.wire import Message, below

# what goes with the model: in the server's state with where it came from, on the wire alone
TOKENIZER = "tokenizer"
USERS = 4096  # whose windows are kept
OWN = "own"  # split: what the client held out of its own texts


def tokenizer_of(state: ServerState) -> Learned:
    return from_bytes(state.blobs[TOKENIZER])


def with_tokenizer(message: Message, state: ServerState) -> Message:
    return replace(message, blobs={TOKENIZER: tokenizer_of(state).data})


@dataclass(frozen=True)
class LanguageTask:
    model: LanguageModel
    context: int  # tokens of a training window
    options: Train
    texts: TokenizerOptions
    rounds: int
    # what users read is cut and numbered once, not in each of their rounds
    known: Kept[TokenBatch | None] = field(
        default_factory=lambda: Kept(USERS), compare=False, repr=False
    )
    device: torch.device = CPU  # where users train and score, and the server samples

    @property
    def gradient(self) -> Gradient[TokenBatch]:
        own: Gradient[TokenBatch] | None = getattr(self.model, "gradient", None)
        return by_autograd(self.model.loss) if own is None else own

    def fit(self, params: Params, sequences: list[list[int]], local: Local, seed: Seed) -> Trained:
        return self.fit_windows(params, pad(windows(sequences, self.context)), local, seed)

    def fit_windows(self, params: Params, pieces: TokenBatch, local: Local, seed: Seed) -> Trained:
        """Local epochs on these windows; a user counts as many texts as it has of them."""
        epoch = partial(batches, pieces, self.options.batch)
        return Trained(*descend(params, epoch, self.gradient, self.options, local, seed))

    def read(self, corpus: Corpus, tokenizer_json: bytes) -> TokenBatch | None:
        """A user's windows; None: there is nothing to learn from."""
        tokenizer = opened(tokenizer_json)

        def windowed() -> TokenBatch | None:
            texts = texts_of(corpus, self.texts)
            sequences = [tokenizer.sequence(words) for words in texts]
            return pad(windows(sequences, self.context)) if sequences else None

        return self.known.get(corpus, tokenizer, windowed)


def language_update(task: LanguageTask) -> LocalUpdate:
    def update(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Trained:
        pieces = task.read(client.train, message.blobs[TOKENIZER])
        if pieces is None:  # nothing to learn from: the model as it came
            return Trained(params, 0.0, 1)
        local = Local(task.options.rate(message, task.rounds), task.options.epochs)
        return task.fit_windows(params, pieces, local, seed)

    return update


def language_evaluator(task: LanguageTask) -> Handler:
    """Answer `evaluate` with sums over the user's texts, of which every metric is made."""

    def handle(message: Message, client: Client, state: ClientState) -> Answer:
        scored = client.common_test if message.meta["split"] == OWN else client.train
        model = below("model", message.arrays)
        result = text_scores(task, model, message.blobs[TOKENIZER], scored)
        figures = {
            name: torch.tensor(value, dtype=torch.float64) for name, value in vars(result).items()
        }
        return Message(figures), state

    return handle


def text_scores(
    task: LanguageTask, params: Params, tokenizer_json: bytes, corpus: Corpus
) -> TextScore:
    tokenizer = opened(tokenizer_json)
    texts = texts_of(corpus, task.texts)
    encoded = [tokenizer.encode_words(words) for words in texts]
    sequences = [[tokenizer.bos, *ids, tokenizer.eos] for ids, _ in encoded]
    if not sequences:
        raise DataError("there are no words to be scored on")
    params, total = placed(params, task.device), TextScore(0.0, 0, 0, 0, 0)
    for (ids, lengths), scored in zip(encoded, score(task.model, params, sequences), strict=True):
        unknown = [*(token == tokenizer.unk for token in ids), False]
        total = total + text_score(scored.nll.tolist(), scored.best.tolist(), lengths, unknown)
    return total
