"""Of a word table only the rows that a client's texts use are trained and sent: the same weights,
a fraction of the work and of the bytes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lexfed.core.params import Params, Rows, add_all
from lexfed.core.seeds import root
from lexfed.federation import ClientState, ServerState
from lexfed.federation.sampling import Everyone
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning import task as training
from lexfed.learning.moved import Moved
from lexfed.learning.parts import Parts
from lexfed.learning.task import Local, Task, Train, train
from lexfed.learning.training_verbs import TRAIN
from lexfed.methods.fedavg import fedavg
from lexfed.methods.fedprox import FedProx, fedprox
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.model import TABLE, ModelOptions
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.vocabulary.reading import SharedReader
from lexfed.vocabulary.word import WordTokenizer, count_words, most_frequent
from lexfed.wire import Message, echoing, flaw
from lexfed.wire.verbs import NAMED
from tests.conftest import Lexfed, hand_made

PEOPLE = hand_made((3, 2, 4, 1))
TOKENIZER = WordTokenizer(most_frequent(count_words(PEOPLE.train), 100, 1))
HEIGHT = 10 * len(TOKENIZER.vocabulary)  # most rows are nobody's


def task(**options: Any) -> Task:
    model = BiLSTMClassifier(ModelOptions(embedding=6, hidden=5, dropout=0.3), classes=2)
    train = Train(**{"optimizer": "sgd", "lr": 0.5, "batch": 2, "epochs": 2, **options})
    reader = SharedReader(TOKENIZER, 256)
    return Task(model, reader, train, 2, 1, lambda seed: model.init(HEIGHT, seed))


def densely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "touched", lambda *_: None)


@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_training_the_touched_rows_is_training_the_table_to_the_bit(
    optimizer: str, mu: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, client = task(optimizer=optimizer), PEOPLE.client(2)
    params, examples = work.init(root(0)), work.reader.read(client.train).examples
    few = train(work, params, examples, Local(0.1, 2, mu=mu), root(1))
    densely(monkeypatch)
    whole = train(work, params, examples, Local(0.1, 2, mu=mu), root(1))
    assert isinstance(few.params, Moved)
    assert isinstance(whole.params, Moved)
    assert not whole.params.rows
    rows = few.params.rows[TABLE]
    assert set(rows.tolist()) == {0, *(i for one in examples for i in one.ids)}
    assert few.loss == whole.loss
    for name, value in whole.params.items():
        assert torch.equal(few.params[name], value), name
        assert not torch.equal(value, params[name]), "it has moved"


@pytest.mark.parametrize(
    ("options", "why"),
    [({"weight_decay": 0.1}, "all rows decay"), ({}, "all rows are used")],
)
def test_where_all_rows_move_the_table_is_trained_whole(options: dict[str, Any], why: str) -> None:
    work, client = task(**options), PEOPLE.client(2)
    params, examples = dict(work.init(root(0))), work.reader.read(client.train).examples
    if not options:
        params[TABLE] = params[TABLE][: len(TOKENIZER.vocabulary)]
        examples = [example for c in range(4) for example in work.reader.read(
            PEOPLE.client(c).train).examples]  # fmt: skip
    after = train(work, params, examples, Local(0.1), root(1))
    assert isinstance(after.params, Moved)
    assert not after.params.rows, why
    moved = (after.params[TABLE] != params[TABLE]).any(1)
    assert bool(moved.all()) if options else bool(moved.any())


def rounds(store: Path, names_rows: bool, method: Any = fedavg, options: Any = None) -> Params:
    part = Parts(task(), Everyone(), NoPrivacy(rows=names_rows), ServerOptimizer(), 1)
    made = method(part, options)
    states = list(made.server(simulate(Site(made, PEOPLE, Store(store))), root(0), ServerState()))
    return states[-1].params


@pytest.mark.parametrize(
    ("method", "options"), [(fedavg, None), (fedprox, FedProx(0.1))], ids=["fedavg", "fedprox"]
)
def test_a_round_of_rows_is_a_round_of_tables_to_the_bit(
    method: Any, options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rounds(tmp_path / "rows", True, method, options)
    dense = rounds(tmp_path / "dense", False, method, options)
    densely(monkeypatch)
    plain = rounds(tmp_path / "plain", True, method, options)
    assert rows.keys() == dense.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.equal(rows[name], value), name
        assert torch.equal(dense[name], value), name


def test_what_a_layer_moved_besides_is_sent_too(tmp_path: Path) -> None:
    """Whoever makes another table of it, or writes into it, has the whole of it sent."""
    part = Parts(task(), Everyone(), NoPrivacy(rows=True), ServerOptimizer(), 1)

    def sent(change: Any) -> Message:
        def layer(update: Any, task: Any, private: Any) -> Any:
            def changed(*words: Any) -> Any:
                return change(update(*words))

            return changed

        made = fedavg(replace(part, layer=layer))
        model = {f"model/{n}": v for n, v in sorted(part.task.init(root(0)).items())}
        request = Message(model, {"step": 1, "ask": 0, "round": 0, "most_texts": 100, NAMED: 1})
        reply, _ = made.client[TRAIN](request, PEOPLE.client(0), ClientState())
        assert reply is not None
        assert flaw(TRAIN, request, echoing(request, reply)) is None
        return reply

    def another(after: Any) -> Any:
        return replace(after, params={n: v + 1 for n, v in after.params.items()})

    def written(after: Any) -> Any:
        after.params[TABLE].add_(1)
        return after

    untouched = sent(lambda after: after)
    assert untouched.arrays[f"delta/{TABLE}#values"].shape[0] < HEIGHT // 2
    for change in (another, written):
        assert sent(change).arrays[f"delta/{TABLE}"].shape == (HEIGHT, 6)


def test_rows_and_whole_tables_add_up() -> None:
    """Clients with many words send the table, those with few its rows."""
    few = Rows(torch.tensor([1, 3]), torch.ones(2, 2))
    table = torch.arange(8.0).reshape(4, 2)
    for parts in ([few, table, few], [table, few, few], [few, few, table]):
        total = add_all({"t": part} for part in parts)["t"]
        assert isinstance(total, torch.Tensor)
        assert torch.equal(total, table + torch.tensor([[0.0], [2.0], [0.0], [2.0]]))
    assert torch.equal(table, torch.arange(8.0).reshape(4, 2))


@pytest.mark.parametrize(
    ("ids", "values", "meta", "reason"),
    [
        ([0, 3], torch.ones(2, 2), {}, None),
        ([], torch.ones(0, 2), {}, None),
        ([0, 4], torch.ones(2, 2), {}, "'delta/' is out of its range"),
        ([-1, 2], torch.ones(2, 2), {}, "'delta/' is out of its range"),
        ([2, 2], torch.ones(2, 2), {}, "'delta/' is out of its range"),
        ([0, 3], torch.ones(2, 3), {}, "'delta/' has another shape"),
        ([0, 3], torch.ones(1, 2), {}, "'delta/' has another shape"),
        ([0, 3], torch.full((2, 2), torch.nan), {}, "'delta/' is no number"),
        ([0, 3], torch.full((2, 2), 1e8), {}, "'delta/' is out of its range"),
        ([0, 3], torch.ones(2, 2, dtype=torch.int64), {}, "'delta/' has another dtype"),
        ([0, 3], torch.ones(2, 2), {"clip": 9.0}, "something is missing"),
    ],
)
def test_rows_that_do_not_fit_the_table_are_refused(
    ids: list[int], values: torch.Tensor, meta: dict[str, float], reason: str | None
) -> None:
    request = Message(
        {"model/t": torch.zeros(4, 2)}, {"step": 1, "ask": 0, "round": 0, NAMED: 1, **meta}
    )
    reply = Message(
        {"delta/t#ids": torch.tensor(ids, dtype=torch.int32), "delta/t#values": values,
         **({} if meta else {"weight": torch.tensor(1.0)})}
    )  # fmt: skip
    assert flaw(TRAIN, request, echoing(request, reply)) == reason
    unasked = replace(request, meta={n: v for n, v in request.meta.items() if n != NAMED})
    assert flaw(TRAIN, unasked, echoing(unasked, reply)) is not None, "nobody asked for rows"


def test_who_must_not_name_rows_sends_tables(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """Noise, masks, robust rules and rounding: uploads are as long for everybody."""
    settings = {
        "rows": [],
        "central": ["privacy.placement=central", "privacy.noise=0.1", "cohort.sampling=poisson"],
        "local": ["privacy.placement=local", "privacy.noise=0.1"],
        "median": ["aggregation.rule=median"],
        "half": ["train.upload=fp16"],
    }
    names: dict[str, set[str]] = {}
    for name, words in settings.items():
        more = [word for setting in ["rounds=1", "vocabulary.size=4000", *words]
                for word in ("--set", setting)]  # fmt: skip
        result = lexfed("run", tiny, "--out", name, "--record-wire", f"{name}-wire", *more)
        assert result.returncode == 0, result.stderr
        names[name] = _sent(tmp_path / f"{name}-wire")
    assert {name for name, sent in names.items() if any("#ids" in one for one in sent)} == {"rows"}


def _sent(wire: Path) -> set[str]:
    """The names of the arrays that clients sent in answer to `train`."""
    found = set()
    for path in wire.rglob("*.safetensors"):
        header = path.read_bytes()
        length = int.from_bytes(header[:8], "little")
        found |= {name for name in json.loads(header[8 : 8 + length]) if name.startswith("delta/")}
    return found
