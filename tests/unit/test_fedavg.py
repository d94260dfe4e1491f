"""One FedAvg round on four hand-made clients, computed again with torch's modules and nothing of
ours but the data.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lexfed.core.seeds import root
from lexfed.federation import Method, ServerState
from lexfed.federation.sampling import Everyone
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.parts import Parts
from lexfed.learning.task import Task, Train
from lexfed.methods.centralised import Centralised, centralised
from lexfed.methods.fedavg import fedavg
from lexfed.methods.local_only import LocalOnly, local_only
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.model import ModelOptions
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.vocabulary.reading import SharedReader
from lexfed.vocabulary.word import WordTokenizer, count_words, most_frequent
from tests.conftest import hand_made

PEOPLE = hand_made((3, 2, 4, 1))
TOKENIZER = WordTokenizer(most_frequent(count_words(PEOPLE.train), 100, 1))


def parts(**options: object) -> Parts:
    model = BiLSTMClassifier(ModelOptions(embedding=6, hidden=5, dropout=0.0), classes=2)
    train = Train(**{"optimizer": "sgd", "lr": 0.5, "batch": 16, "epochs": 2, **options})  # type: ignore[arg-type]
    task = Task(
        model,
        SharedReader(TOKENIZER, 256),
        train,
        2,
        1,
        lambda seed: model.init(len(TOKENIZER.vocabulary), seed),
    )
    return Parts(task, Everyone(), NoPrivacy(), ServerOptimizer(), rounds=1)


def run(method: Method, store: Path) -> list[ServerState]:
    site = Site(method, PEOPLE, Store(store))
    return list(method.server(simulate(site), root(0), ServerState()))


class PlainTorch(nn.Module):
    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(*weights["embedding.weight"].shape)
        self.lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.output = nn.Linear(10, 2)
        self.load_state_dict(weights)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.lstm(self.embedding(ids)[None])[0][0].mean(0))


def train_plainly(weights: dict[str, Tensor], client: int, optimizer: str) -> dict[str, Tensor]:
    """Two full-batch epochs, text by text, without padding."""
    model = PlainTorch(weights)
    steps = (
        torch.optim.SGD(model.parameters(), 0.5)
        if optimizer == "sgd"
        else torch.optim.Adam(model.parameters(), 0.5)
    )
    corpus = PEOPLE.client(client).train
    for _ in range(2):
        steps.zero_grad()
        logits = torch.stack([model(torch.tensor(TOKENIZER.encode(text))) for text in corpus])
        F.cross_entropy(logits, torch.tensor(corpus.labels)).backward()
        steps.step()
    return model.state_dict()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_round_equals_plain_torch(optimizer: str, tmp_path: Path) -> None:
    start, after = run(fedavg(parts(optimizer=optimizer)), tmp_path)
    weights = dict(start.params)
    trained = [train_plainly(weights, client, optimizer) for client in range(4)]
    for name in weights:
        # eq. 1 of FedeVocab, and FedAvg's own: sum_k n_k / n W_k
        expected = sum(n / 10 * local[name] for n, local in zip((3, 2, 4, 1), trained, strict=True))
        torch.testing.assert_close(after.params[name], expected, rtol=1e-4, atol=1e-5)
        assert not torch.equal(after.params[name], weights[name]), f"{name} was trained"


def test_one_client_that_holds_everything_is_plain_training(tmp_path: Path) -> None:
    everything = hand_made((10,))
    method = centralised(parts(epochs=1), Centralised(epochs=2))
    site = Site(method, everything, Store(tmp_path))
    start, _, after = method.server(simulate(site), root(0), ServerState())
    model = PlainTorch(dict(start.params))
    steps = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(2):
        steps.zero_grad()
        logits = torch.stack(
            [model(torch.tensor(TOKENIZER.encode(text))) for text in everything.train]
        )
        F.cross_entropy(logits, torch.tensor(everything.train.labels)).backward()
        steps.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(after.params[name], value, rtol=1e-4, atol=1e-5)


def test_local_only_sends_no_parameter_and_keeps_them_all(tmp_path: Path) -> None:
    method = local_only(parts(), LocalOnly(epochs=2))
    states = run(method, tmp_path)
    assert states[-1].params == {}
    store = Store(tmp_path)
    kept = [store.load(client, (99, 0)).params for client in range(4)]
    assert all(params.keys() == kept[0].keys() and "embedding.weight" in params for params in kept)
    assert not torch.equal(kept[0]["embedding.weight"], kept[1]["embedding.weight"]), (
        "each started from its own secret"
    )
