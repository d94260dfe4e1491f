"""FedeVocab against plain torch, its switches, and the identities that tie the baselines together."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lexfed.core.params import Params
from lexfed.core.seeds import Seed, root, torch_generator
from lexfed.federation import ClientState, Method, ServerState
from lexfed.federation.sampling import Everyone
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.parts import Parts
from lexfed.learning.task import Local, Task, Train, train
from lexfed.learning.training_verbs import TRAIN
from lexfed.methods.fedavg import FineTune, fedavg, fedavg_finetune
from lexfed.methods.fedevocab import FedeVocab, fedevocab, private_table
from lexfed.methods.fedprox import FedProx, fedprox
from lexfed.methods.fedrecon import PRIVATE_ROWS, FedRecon, Parted, fedrecon
from lexfed.methods.lg_fedavg import LGFedAvg, lg_fedavg
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.model import PROJECTION, TABLE, Example, ModelOptions, collate
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.vocabulary.reading import Reading, SharedReader, initial_rows
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.vocabulary.word import WordTokenizer, of_list
from lexfed.wire import decode
from tests.conftest import hand_made

SIZES = (3, 2, 4, 1)
PEOPLE = hand_made(SIZES)
LATER = (10**6, 0)  # a clock after everything
PUBLIC_WORDS = ("a", "film", "fine", "dull", "fun", "story", "unheard", "acting", "7eleven", "9")
PUBLIC = PublicTable(
    PUBLIC_WORDS, np.random.default_rng(0).normal(size=(len(PUBLIC_WORDS), 6)).astype(np.float32)
)


def parts(rounds: int = 1, tokens: tuple[str, ...] = PUBLIC_WORDS, **options: object) -> Parts:
    tokenizer = WordTokenizer(of_list(tokens, 100))
    model = BiLSTMClassifier(ModelOptions(embedding=6, hidden=5, dropout=0.0), classes=2)

    def init(seed: Seed) -> Params:
        random = torch.randn(len(tokenizer.vocabulary), 6, generator=torch_generator(seed))
        rows = initial_rows(tokenizer.vocabulary.tokens, PUBLIC, random)
        rows[0] = 0.0  # the unknown word, alike for everybody
        return {**model.init(1, seed), TABLE: rows}

    options = {"optimizer": "sgd", "lr": 0.5, "batch": 16, "epochs": 2, **options}
    task = Task(model, SharedReader(tokenizer, 256), Train(**options), 2, rounds, init)  # type: ignore[arg-type]
    known = len(PUBLIC_WORDS)
    part = Parts(task, Everyone(), NoPrivacy(), ServerOptimizer(), rounds, PUBLIC, known)
    return replace(part, tokenizer=tokenizer)


def run(method: Method, store: Path) -> list[ServerState]:
    site = Site(method, PEOPLE, Store(store))
    return list(method.server(simulate(site), root(0), ServerState()))


class PlainTorch(nn.Module):
    def __init__(self, table: Tensor, body: Params) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        self.lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.output = nn.Linear(10, 2)
        self.load_state_dict({"embedding.weight": table, **body})

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.lstm(self.embedding(ids)[None])[0][0].mean(0))


def plain_client(client: int, body: Params, start: ClientState) -> PlainTorch:
    """Algorithm 1 for one client, with full batches: an epoch of the table alone, then two of
    everything.
    """
    own = start.blobs["words"].decode().split("\n")
    texts = PEOPLE.client(client).train
    ids = [
        torch.tensor([own.index(word) if word in own else 0 for word in words(text)])
        for text in texts
    ]
    model = PlainTorch(start.params[TABLE], body)
    for trained in ([model.embedding.weight], list(model.parameters()), list(model.parameters())):
        model.zero_grad()
        F.cross_entropy(torch.stack([model(i) for i in ids]), torch.tensor(texts.labels)).backward()
        with torch.no_grad():
            for parameter in trained:
                parameter -= 0.5 * parameter.grad  # type: ignore[operator]
    return model


@pytest.mark.parametrize("vocabulary", ["own", "public", "own+public"])
def test_a_round_equals_plain_torch(vocabulary: str, tmp_path: Path) -> None:
    published = FedeVocab(adaptive=True, table_lr=1.0, vocabulary=vocabulary)  # type: ignore[arg-type]
    method = fedevocab(parts(), published)
    start, after = run(method, tmp_path / "a")
    # one client's first state, as it would build it: from its own text and secret
    table = fedevocab_start(vocabulary)
    models = [plain_client(k, start.params, table(k)) for k in range(4)]
    for name in start.params:
        expected = sum(n / 10 * m.state_dict()[name] for n, m in zip(SIZES, models, strict=True))
        torch.testing.assert_close(after.params[name], expected, rtol=1e-4, atol=1e-5)
    for k, model in enumerate(models):
        kept = Store(tmp_path / "a").load(k, LATER)
        torch.testing.assert_close(
            kept.params[TABLE], model.embedding.weight.detach(), rtol=1e-4, atol=1e-5
        )


def test_a_table_too_small_for_a_clients_words_looks_the_others_up(tmp_path: Path) -> None:
    """Training takes the public vectors of words that the table has no room for, as scoring does,
    and does not move them. (Their ids were past the table's end: an IndexError.)
    """
    options = FedeVocab(adaptive=True, table_lr=1.0, vocabulary="own+public", size=4)
    method = fedevocab(parts(), options)
    start, after = run(method, tmp_path / "a")
    table = private_table(parts(), options)
    beyond, moved = 0, []
    for k in range(4):
        before, kept = table.start(PEOPLE.client(k)), Store(tmp_path / "a").load(k, LATER)
        reading = table.reader(before).read(PEOPLE.client(k).train)
        beyond += 0 if reading.beyond is None else len(reading.beyond)
        assert set(kept.params) == {TABLE}
        assert kept.params[TABLE].shape == before.params[TABLE].shape
        model = plain_with_beyond(reading, start.params, before.params[TABLE])
        torch.testing.assert_close(
            kept.params[TABLE], model.embedding.weight[: len(kept.params[TABLE])].detach(),
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
        moved.append(model)
    assert beyond > 0
    for name in start.params:
        expected = sum(n / 10 * m.state_dict()[name] for n, m in zip(SIZES, moved, strict=True))
        torch.testing.assert_close(after.params[name], expected, rtol=1e-4, atol=1e-5)


def plain_with_beyond(reading: Reading, body: Params, own: Tensor) -> PlainTorch:
    """Algorithm 1, full batches, with fixed rows behind the table's own."""
    rows = own if reading.beyond is None else torch.cat([own, reading.beyond])
    model = PlainTorch(rows, body)
    labels = torch.tensor([example.label for example in reading.examples])
    for trained in ([model.embedding.weight], list(model.parameters()), list(model.parameters())):
        model.zero_grad()
        logits = torch.stack([model(torch.tensor(one.ids)) for one in reading.examples])
        F.cross_entropy(logits, labels).backward()
        with torch.no_grad():
            for parameter in trained:
                parameter -= 0.5 * parameter.grad  # type: ignore[operator]
            model.embedding.weight[len(own) :] = rows[len(own) :]
    return model


def fedevocab_start(vocabulary: str) -> Callable[[int], ClientState]:
    options = FedeVocab(vocabulary=vocabulary, minimum=1, size=1000)  # type: ignore[arg-type]
    table = private_table(parts(), options)
    return lambda k: table.start(PEOPLE.client(k))


def test_a_table_has_the_clients_own_words_and_nobody_elses() -> None:
    for vocabulary, allowed in (("own", None), ("own+public", None), ("public", set(PUBLIC_WORDS))):
        for k in range(4):
            state = fedevocab_start(vocabulary)(k)
            own = state.blobs["words"].decode().split("\n")
            text = {word for t in PEOPLE.client(k).train for word in words(t)}
            assert set(own[1:]) == (text if allowed is None else text & allowed)
            assert state.params[TABLE].shape == (len(own), 6)
            if vocabulary != "own":
                for word in set(own) & set(PUBLIC_WORDS):
                    torch.testing.assert_close(
                        state.params[TABLE][own.index(word)], PUBLIC.rows([word])[0]
                    )


def test_the_server_can_not_rebuild_a_table() -> None:
    """Own words without a public vector start from the client's secret: two clients give one
    word two vectors.
    """
    first, second = (fedevocab_start("own+public")(k) for k in (0, 2))
    words_of = [s.blobs["words"].decode().split("\n") for s in (first, second)]
    shared = (set(words_of[0]) & set(words_of[1])) - set(PUBLIC_WORDS)
    assert shared
    for word in shared:
        rows = [
            s.params[TABLE][w.index(word)] for s, w in zip((first, second), words_of, strict=True)
        ]
        assert not torch.equal(*rows)


def test_adaptive_updating_leaves_the_shared_part_bit_identical() -> None:
    task = parts().task
    params = task.init(root(1))
    examples = task.reader.read(PEOPLE.client(2).train).examples
    frozen = Local(0.5, 1, lambda name: float(task.model.depth(name) == 0))
    after = train(task, params, examples, frozen, root(2)).params
    for name, value in params.items():
        assert torch.equal(after[name], value) == (name != TABLE)
        if name != TABLE:
            assert after[name].grad is None
            assert not after[name].requires_grad, "no gradient at all"


def test_the_ablation_is_another_method(tmp_path: Path) -> None:
    with_, without = (
        run(fedevocab(parts(), FedeVocab(adaptive=a)), tmp_path / str(a))[-1] for a in (True, False)
    )
    assert not torch.equal(with_.params["output.weight"], without.params["output.weight"])


def test_fedprox_without_pull_is_fedavg(tmp_path: Path) -> None:
    plain = run(fedavg(parts(rounds=2)), tmp_path / "a")[-1]
    zero = run(fedprox(parts(rounds=2), FedProx(mu=0.0)), tmp_path / "b")[-1]
    pulled = run(fedprox(parts(rounds=2), FedProx(mu=1.0)), tmp_path / "c")[-1]
    for name in plain.params:
        assert torch.equal(plain.params[name], zero.params[name])
    assert not torch.equal(plain.params[TABLE], pulled.params[TABLE])


def test_fedprox_pulls_by_its_gradient() -> None:
    """One client, two SGD steps by hand: the second adds mu (w_1 - w_0) to the gradient."""
    task = replace(parts().task, options=Train(optimizer="sgd", lr=0.1, batch=16))
    params = task.init(root(1))
    examples = task.reader.read(PEOPLE.client(0).train).examples
    one = train(task, params, examples, Local(0.1, 1), root(0)).params
    both = train(task, params, examples, Local(0.1, 2), root(0)).params
    pulled = train(task, params, examples, Local(0.1, 2, mu=0.5), root(0)).params
    for name in params:
        expected = both[name] - 0.1 * 0.5 * (one[name] - params[name])
        torch.testing.assert_close(pulled[name], expected, rtol=1e-4, atol=1e-6)


def test_lg_fedavg_cut_above_the_embedding_is_fedevocab_without_adaptation(tmp_path: Path) -> None:
    lg = run(lg_fedavg(parts(rounds=3, optimizer="adam"), LGFedAvg(warm=0)), tmp_path / "a")[-1]
    options = FedeVocab(adaptive=False, table_lr=1.0, vocabulary="public")
    table = fedevocab(parts(rounds=3, optimizer="adam"), options)
    vocab = run(with_zero_unknown(table), tmp_path / "b")[-1]
    assert lg.params.keys() == vocab.params.keys()
    for name in lg.params:
        # gradients that differ by rounding; where they are small, Adam makes a step of it
        torch.testing.assert_close(lg.params[name], vocab.params[name], rtol=1e-4, atol=1e-4)


def with_zero_unknown(method: Method) -> Method:
    """The same method, its clients' unknown word starting at zero as in the shared table."""
    inner = method.client[TRAIN]

    def train_zeroed(message, client, state):  # type: ignore[no-untyped-def]
        if not state.params:
            start = fedevocab_start("public")(client.id)
            table = start.params[TABLE].clone()
            table[0] = 0.0
            state = ClientState({TABLE: table}, start.blobs)
        return inner(message, client, state)

    return replace(method, client={**method.client, TRAIN: train_zeroed})


def test_lg_fedavg_starts_from_what_fedavg_learnt(tmp_path: Path) -> None:
    states = run(lg_fedavg(parts(rounds=3), LGFedAvg(warm=2)), tmp_path / "a")
    warm = run(fedavg(parts(rounds=2)), tmp_path / "b")[-1]
    at_cut = next(s for s in states if "cut" in s.done)
    for name in at_cut.params:
        assert torch.equal(at_cut.params[name], warm.params[name])
    assert TABLE not in at_cut.params
    first = Store(tmp_path / "a").load(0, (at_cut.step, 0)).params
    assert torch.equal(first[TABLE], warm.params[TABLE]), "handed out once"


def test_fedrecon_trains_its_halves(tmp_path: Path) -> None:
    method = fedrecon(parts(), FedRecon())
    start, after = run(method, tmp_path / "store")
    assert PRIVATE_ROWS not in start.params
    assert start.params[TABLE].shape == (9, 6), (
        "the rows of tokens with digits are not the server's"
    )
    assert not torch.equal(start.params[TABLE], after.params[TABLE])
    assert not (tmp_path / "store").exists(), "re-initialised each round: nothing is kept"


def test_a_parted_table_is_the_same_model() -> None:
    whole = parts().task.init(root(3))
    model = Parted(
        parts().task.model, torch.arange(len(PUBLIC_WORDS) + 1) % 3 == 1
    )  # any rows, not the last ones
    batch = collate([Example([1, 4, 7], 0), Example([2, 3], 1)])
    assert torch.equal(
        model.logits(model.part(whole), batch, None), parts().task.model.logits(whole, batch, None)
    )


def test_lg_fedavg_predicts_between_its_own_layers_and_the_warm_start(tmp_path: Path) -> None:
    def logits(interpolation: float) -> dict[str, Tensor]:
        method = lg_fedavg(parts(rounds=3), LGFedAvg(warm=1, interpolation=interpolation))
        site = Site(method, PEOPLE, Store(tmp_path / str(interpolation)))
        states = list(method.server(simulate(site), root(0), ServerState()))
        kept = Store(tmp_path / str(interpolation)).load(0, LATER)
        return {"own": kept.params[TABLE], "warm": next(s for s in states if s.round == 1).params[TABLE],
                "blob": decode(kept.blobs["warm"]).arrays[TABLE] if kept.blobs else torch.empty(0)}  # fmt: skip

    own, between = logits(1.0), logits(0.5)
    assert torch.equal(own["own"], between["own"]), "training is the same"
    assert own["blob"].numel() == 0
    assert torch.equal(between["blob"], between["warm"]), "the client kept what it was handed"


def test_fine_tuning_changes_the_scores_and_not_the_training(tmp_path: Path) -> None:
    plain = run(fedavg(parts()), tmp_path / "a")[-1]
    tuned = run(fedavg_finetune(parts(), FineTune()), tmp_path / "b")[-1]
    assert all(torch.equal(plain.params[name], tuned.params[name]) for name in plain.params)


def test_clients_may_start_from_tables_of_different_dimensions(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    names = []
    for number, dimension in enumerate((6, 4)):
        path = tmp_path / f"{number}.npz"
        np.savez(
            path,
            words=np.array(PUBLIC_WORDS),
            vectors=rng.normal(size=(len(PUBLIC_WORDS), dimension)).astype("f2"),
        )
        names.append(str(path))
    method = fedevocab(parts(rounds=2), FedeVocab(vectors=(*names, "random")))
    run(method, tmp_path / "store")
    widths = {Store(tmp_path / "store").load(k, LATER).params[TABLE].shape[1] for k in range(4)}
    projected = [PROJECTION in Store(tmp_path / "store").load(k, LATER).params for k in range(4)]
    assert widths == {4, 6}
    assert any(projected)
    assert not all(projected)
