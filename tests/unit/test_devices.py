"""On a GPU: no accelerator is here, so a pretended one (`tests/pretended_device.py`). Its tensors
are fake `cuda` tensors of torch's FakeTensorMode, which refuses mixed devices; the numbers beside
them are compared with the CPU's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lexfed import api
from lexfed.core import devices
from lexfed.core.devices import CPU, chosen, placed, shared_out, update_at_home
from lexfed.core.errors import ConfigError
from lexfed.core.kernels import round_rows
from lexfed.core.params import Params, Rows, Update, add_all
from lexfed.core.seeds import derive, root, torch_generator
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.federation import ServerState
from lexfed.federation.robust import Rule, median, norm_bound, trimmed_mean
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.evaluation import Evaluator
from lexfed.learning.task import Local, Task, Train, by_autograd, train
from lexfed.learning.training_verbs import EVALUATE
from lexfed.models import language_model, recurrent
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.encoder import from_config
from lexfed.models.language_model import LanguageModelOptions, continued
from lexfed.models.lstm_lm import LstmLanguageModel
from lexfed.models.model import Batch, Classifier, Example, ModelOptions
from lexfed.models.transformer_lm import TransformerLanguageModel
from lexfed.privacy.distributed import COHORT, DistributedGaussian, shares
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.privacy.mechanism import Asked, Mechanism, NoPrivacy
from lexfed.runs import launch
from lexfed.runs.launch import Manner
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.runtime.workers import Orders, _site
from lexfed.secure.secure_options import Secure
from lexfed.vocabulary.reading import PrivateReader
from lexfed.wire import Message
from tests.conftest import Lexfed
from tests.pretended_device import OnDevice, pretended

CUDA = torch.device("cuda:0")
NOUNS = ("film", "plot", "cast", "score", "scene", "7up")
WORDS = {0: ("dull", "slow", "weak", "4th", "flat"), 1: ("fine", "warm", "bright", "1st", "deep")}


def reviews(folder: Path) -> Path:
    """Short texts of two kinds, of six users. Each has a word of its own: a client's texts use few
    of all words, so that only their rows are trained.
    """
    rows = [
        f"w{i} {NOUNS[i % 6]} is {WORDS[i % 2][i % 5]} and {WORDS[i % 2][(i // 3) % 5]}"
        f"{' indeed' * (i % 3)},{i % 2},user{i % 6}"
        for i in range(36)
    ]
    path = folder / "reviews.csv"
    path.write_text("text,label,user\n" + "\n".join(rows) + "\n")
    return path


def classifier(folder: Path, method: str, **tables: Mapping[str, Any]) -> Mapping[str, Any]:
    usual: dict[str, Any] = {
        "name": "devices",
        "method": method,
        "rounds": 1,
        "data": {"name": str(reviews(folder)), "clients": 6, "alpha": 100.0},
        "vocabulary": {"corpus": "clients", "size": 80, "minimum": 1},
        "model": {"embedding": 6, "hidden": 4, "dropout": 0.2},
        "cohort": {"size": 2},
        "train": {"optimizer": "sgd", "lr": 0.5, "batch": 8, "max_length": 6},
        "evaluation": {"clients": 1, "last": 1},
    }
    if method in ("local_only", "centralised"):
        del usual["rounds"]
        usual[method] = {"epochs": 1}
    return {**usual, **{name: {**usual.get(name, {}), **table} for name, table in tables.items()}}


Result = tuple[ServerState, Mapping[str, Any], Mapping[str, Tensor]]


def trained(assembly: Assembly, folder: Path) -> Result:
    """The last state, its scores, and what the first client keeps."""
    store = Store(folder)
    federation = simulate(site_of(assembly, store))
    secret = derive(root(assembly.config.seed), "server")
    *_, state = assembly.method.server(federation, secret, ServerState())
    study = assembly.method.study
    assert study is not None
    scores = study.score(federation, state, last=True)
    return state, scores, store.load(0, (state.step + 1, 0)).params


def on_both(
    table: Mapping[str, Any], folder: Path, patch: pytest.MonkeyPatch, device: str = "cuda:0"
) -> tuple[Result, Result, set[str]]:
    """The same experiment on the CPU and on the pretended device; what was done there."""
    config = configuration.parse(dict(table), [])
    cpu = trained(assemble(config), folder / "cpu")
    there = assemble(config, device=torch.device(device))
    seen = watched(patch)
    with pretended(device, patch) as mode:
        gpu = trained(there, folder / "gpu")
    assert seen == {torch.device(device)}  # no model was left behind
    return cpu, gpu, mode.operations


def watched(patch: pytest.MonkeyPatch) -> set[torch.device]:
    """Where the parameters are that models compute with, from now on."""
    seen: set[torch.device] = set()

    def watching(work: Callable[..., Any]) -> Callable[..., Any]:
        def noting(model: object, params: Params, *more: Any) -> Any:
            seen.update(value.device for value in params.values())
            return work(model, params, *more)

        return noting

    patch.setattr(BiLSTMClassifier, "logits", watching(BiLSTMClassifier.logits))
    patch.setattr(LstmLanguageModel, "_run", watching(LstmLanguageModel._run))
    patch.setattr(TransformerLanguageModel, "_heads", watching(TransformerLanguageModel._heads))
    return seen


def alike(one: Params, other: Params, within: float = 1e-5) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        assert type(other[name]) is Tensor, name
        assert torch.allclose(value, other[name], atol=within, rtol=0), name


def same_scores(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert one.keys() == other.keys()
    numbers = {key: value for key, value in one.items() if isinstance(value, float)}
    assert numbers
    assert {key: other[key] for key in numbers} == pytest.approx(numbers, rel=1e-3, abs=1e-4)


METHODS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "fedavg": {},
    "fedavg_finetune": {"train": {"logit_adjustment": 1.0}},
    "fedprox": {"fedprox": {"mu": 0.1}},
    "lg_fedavg": {"lg_fedavg": {"warm": 0, "interpolation": 0.5}},
    "fedrecon": {},
    "fedevocab": {"fedevocab": {"vocabulary": "own", "adaptive": True}},
    "fedevocab, public words behind": {
        "vocabulary": {"vectors": "hashed:6"},
        "fedevocab": {"adaptive_steps": 1},
    },
    "local_only": {},
    "centralised": {},
}


SLOWER = ("fedavg_finetune", "fedevocab, public words behind", "local_only", "centralised")


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=pytest.mark.slow) if m in SLOWER else m for m in METHODS],
)
def test_a_classifier_trains_and_scores_on_the_device(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = classifier(tmp_path, method.partition(",")[0], **METHODS[method])
    (cpu, scores, kept), (gpu, there, stays), done = on_both(table, tmp_path, monkeypatch)
    alike(cpu.params, gpu.params)
    alike(kept, stays)
    same_scores(scores, there)
    # the step, its gradient and the look-up of words were done there
    assert {"aten::mm", "aten::embedding", "aten::embedding_dense_backward"} <= done
    if method == "fedavg":  # and the rows that are trained were taken from their table
        assert "aten::index.Tensor" in done


OPTIONS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "adam": {"train": {"optimizer": "adam", "lr": 0.01}},
    "attention": {"model": {"pooling": "attention"}, "train": {"weight_decay": 0.1}},
    "max": {"model": {"pooling": "max"}},
    "word dropout": {"defences": {"embedding_dropout": 0.3}},
    "local noise": {"privacy": {"placement": "local", "noise": 0.5}},
    "self-audit": {"self_audit": {"limit": 0.1, "action": "noise"}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_and_with_other_options(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = classifier(tmp_path, "fedavg", **OPTIONS[name])
    (cpu, scores, _), (gpu, there, _), _ = on_both(table, tmp_path, monkeypatch)
    alike(cpu.params, gpu.params, within=1e-3 if name == "adam" else 1e-5)
    same_scores(scores, there)


def test_an_apple_gpu_is_never_asked_for_double_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = {"placement": "central", "noise": 0.5}
    table = classifier(tmp_path, "fedavg", privacy=noisy, cohort={"sampling": "poisson"})
    (cpu, _, _), (gpu, _, _), _ = on_both(table, tmp_path, monkeypatch, "mps:0")
    alike(cpu.params, gpu.params)


# --- language models ------------------------------------------------------------------------------


def learned(folder: Path, model: str, targets: str = "hard") -> Mapping[str, Any]:
    return {
        "name": "devices",
        "method": "tokenizer_for_free",
        "rounds": 2,
        "data": {
            "name": str(reviews(folder)),
            "partition": "user",
            "clients": 4,
            "unseen": 2,
            "test": 0.0,
            "validation": 0.0,
        },
        "tokenizer": {"kind": "word", "size": 40, "start": "oracle", "words_per_user": 20},
        "language_model": {
            "name": model,
            "layers": 2,
            "width": 8,
            "heads": 2,
            "context": 6,
            "dropout": 0.1,
            "tied": model == "lstm",
        },
        "tokenizer_for_free": {
            "switch": [1],
            "sample_words": 40,
            "sample_length": 4,
            "teach_words": 40,
            "teach_targets": targets,
        },
        "cohort": {"size": 2, "sampling": "poisson"},
        "train": {"optimizer": "sgd", "lr": 1.0, "batch": 128},
        "server": {"optimizer": "momentum"},
        "privacy": {"placement": "central", "clip": 1.0, "noise": 0.01, "quantile": 0.5},
    }


@pytest.mark.parametrize("targets", ["hard", "soft"])
@pytest.mark.parametrize("model", ["lstm", pytest.param("transformer", marks=pytest.mark.slow)])
def test_a_language_model_trains_scores_and_samples_on_the_device(
    model: str, targets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cpu, scores, _), (gpu, there, _), done = on_both(
        learned(tmp_path, model, targets), tmp_path, monkeypatch
    )
    assert cpu.blobs == gpu.blobs  # the tokenizer that was learned from the sampled text
    alike(cpu.params, gpu.params, within=1e-4)
    same_scores(scores, there)
    assert {"aten::addmm", "aten::searchsorted.Tensor", "aten::logsumexp"} <= done


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_torch_finds_the_same_gradient_on_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the loss, for who has no gradient of its own."""
    model = language_model.build(LanguageModelOptions(name=name, layers=1, width=8, heads=2))
    batch = language_model.pad([[1, 2, 3, 4], [4, 5], [6, 7, 8]])

    def gradient(params: Params) -> Params:
        leaves = {n: v.detach().requires_grad_() for n, v in params.items()}
        return by_autograd(lambda p, b, s: model.loss(p, b, None))(leaves, batch, root(0))[1]

    params = model.init(20, root(0))
    with pretended("cuda:0", monkeypatch):
        there = gradient(placed(params, CUDA))
        assert all(isinstance(value, OnDevice) for value in there.values())
        alike(gradient(params), devices.at_home(there))


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_a_prompt_is_continued_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model.build(
        LanguageModelOptions(name=name, layers=1, width=8, heads=2, context=4)
    )
    params = model.init(30, root(0))

    def write(given: Params) -> list[list[int]]:
        return continued(
            model, given, [5, 6], 3, lambda ids, token: len(ids) >= 6, (0, 1), 1.0, root(1)
        )

    with pretended("cuda:0", monkeypatch):
        assert write(placed(params, CUDA)) == write(params)


# --- an encoder -----------------------------------------------------------------------------------


def small_encoder() -> Classifier:
    from transformers import BertConfig

    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return from_config(BertConfig(vocab_size=30, intermediate_size=8, num_labels=2, **shape))


def task_of(model: Classifier, **options: Any) -> Task:
    reader = PrivateReader(("<unk>",), None, 8)
    settings = Train(**{"optimizer": "sgd", "lr": 0.5, "batch": 4, **options})
    return Task(model, reader, settings, 2, 1, lambda seed: model.init(30, seed), CUDA)


EXAMPLES = [Example([1 + (i * k) % 20 for k in range(2 + i % 3)], i % 2) for i in range(8)]


def test_an_encoder_trains_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout: the pretended device draws as the CPU does. A real one draws other numbers."""
    task = task_of(small_encoder())
    params, local = task.init(root(0)), Local(0.5, epochs=2)
    cpu = train(task, params, EXAMPLES, local, root(1))
    before = torch.default_generator.get_state()
    with pretended("cuda:0", monkeypatch):
        there = train(task, placed(params, CUDA), EXAMPLES, local, root(1))
        assert all(isinstance(value, OnDevice) for value in there.params.values())
        alike(cpu.params, devices.at_home(there.params))
    assert torch.default_generator.get_state().equal(before)
    assert not torch.equal(cpu.params["classifier.weight"], params["classifier.weight"])


# --- what cuDNN asks for --------------------------------------------------------------------------


class Readings(TorchFunctionMode):
    """Whether each call of torch.lstm that asks for a gradient says that it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.train: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm:
            packed = isinstance(args[1], Tensor)  # the sizes of a packed batch come second
            weights, train = (args[3], args[7]) if packed else (args[2], args[6])
            if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
                self.train.append(train)
        return func(*args, **(kwargs or {}))


def test_an_lstm_that_learns_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own on the CPU doesn't mind. cuDNN has no gradient of what it read without."""
    monkeypatch.setattr(recurrent, "compiled", lambda x: False)
    language = language_model.build(LanguageModelOptions(name="lstm", layers=1, width=4))
    task = task_of(BiLSTMClassifier(ModelOptions(embedding=4, hidden=3), 2))
    with Readings() as seen:
        train(task, task.init(root(0)), EXAMPLES, Local(0.5), root(1))
        leaves = {n: v.requires_grad_() for n, v in language.init(30, root(0)).items()}
        batch = language_model.pad([[1, 2, 3], [4, 5]])
        language.loss(leaves, batch, None).backward()  # type: ignore[no-untyped-call]
    assert len(seen.train) == 3
    assert all(seen.train)


# --- what fails -----------------------------------------------------------------------------------


class Careless(BiLSTMClassifier):
    """It adds a tensor of which nobody said where it is."""

    def logits(self, params: Params, batch: Batch, seed: bytes | None) -> Tensor:
        return super().logits(params, batch, seed) + torch.zeros(len(batch), self.classes)


def test_a_stray_tensor_in_a_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, message in ((BiLSTMClassifier, None), (Careless, "same device")):
        task = task_of(kind(ModelOptions(embedding=4, hidden=3), 2))
        params = task.init(root(0))
        assert train(task, params, EXAMPLES, Local(0.5), root(1)).loss > 0
        with pretended("cuda:0", monkeypatch):
            there = placed(params, CUDA)
            if message is None:
                assert train(task, there, EXAMPLES, Local(0.5), root(1)).loss > 0
                continue
            with pytest.raises(RuntimeError, match=message):
                train(task, there, EXAMPLES, Local(0.5), root(1))


def test_what_the_pretended_device_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended("cuda:0", monkeypatch):
        there, here = torch.ones(3, 2).to(CUDA), torch.ones(3, 2)
        assert isinstance(there, OnDevice)
        assert there.device == CUDA
        strays: list[Callable[[], object]] = [
            lambda: there + here,
            lambda: there.add_(here),
            lambda: there @ here.t(),
            lambda: torch.cat([there, here]),
            lambda: there.index_add_(0, torch.tensor([0]), there[:1]),
            lambda: torch.nn.functional.embedding(torch.tensor([0]), there),
            lambda: there.new_zeros(3, 2, device="cpu") + there,
            lambda: torch.where(here > 0, there, there),
            lambda: there.bernoulli_(0.5, generator=torch.Generator()),
        ]
        for stray in strays:
            with pytest.raises(RuntimeError, match="same device"):
                stray()
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()
        assert there.cpu().equal(here)  # nothing was written before it was refused
        assert (there * torch.tensor(2.0)).cpu().equal(2 * here)  # a number may come from the CPU
    with pretended("mps:0", monkeypatch), pytest.raises(TypeError, match="float64"):
        torch.ones(2).to("mps:0").double()


# --- clip, noise, sums and the server's step, wherever their inputs are ---------------------------


def on_cpu_too(
    work: Callable[[Callable[[Update], Update]], Update], patch: pytest.MonkeyPatch, where: str
) -> Update:
    """The same work with inputs on the CPU and on the device: equal to the bit."""
    here = work(lambda update: update)
    with pretended(where, patch):
        there = work(lambda update: moved(update, torch.device(where)))
        back = update_at_home(there)
    assert here.keys() == back.keys()
    for name, value in here.items():
        for one, other in zip(parts_of(value), parts_of(back[name]), strict=True):
            assert torch.equal(one, other), name
    return there


def parts_of(value: Tensor | Rows) -> list[Tensor]:
    return (
        [value] if isinstance(value, Tensor) else [v for v in vars(value).values() if v is not None]
    )


def moved(update: Update, device: torch.device) -> Update:
    def there(value: Tensor | Rows) -> Tensor | Rows:
        if isinstance(value, Tensor):
            return value.to(device)
        return Rows(**{k: None if v is None else v.to(device) for k, v in vars(value).items()})

    return {name: there(value) for name, value in update.items()}


def some(seed: int, scale: float = 1.0) -> Params:
    generator = torch_generator(derive(root(0), seed))
    shapes = {"table": (7, 3), "bias": (3,), "body": (2, 2)}
    return {n: scale * torch.randn(shape, generator=generator) for n, shape in shapes.items()}


def mechanism(placement: str, fresh: bool = False) -> Mechanism:
    options = Privacy(placement=placement, clip=0.5, noise=0.7)  # type: ignore[arg-type]
    if placement == "distributed":
        crowd = shares(Secure(sums=True), "fixed", 4, 10, 1)
        return DistributedGaussian(options, 5, fresh, shares=crowd)
    return GaussianMechanism(options, 5, fresh)


@pytest.mark.parametrize("where", ["cuda:0", "mps:0"])
@pytest.mark.parametrize("placement", ["none", "central", "local", "distributed"])
def test_an_update_is_bounded_where_it_is(
    placement: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = NoPrivacy() if placement == "none" else mechanism(placement)
    message = Message(meta={**rule.tell({}), COHORT: 4})
    for scale in (0.01, 10.0):  # shorter than the clip, and longer
        sent = on_cpu_too(
            lambda put, scale=scale: rule.bound(put(some(1, scale)), 5, 0.5, message, root(2)),
            monkeypatch,
            where,
        )
        delta = sent["delta/table"]
        assert isinstance(delta, OnDevice) or (where == "mps:0" and placement == "distributed")


@pytest.mark.parametrize("where", ["cuda:0", "mps:0"])
@pytest.mark.parametrize("placement", ["central", "local"])
def test_fresh_noise_is_added_on_the_grid(
    placement: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = mechanism(placement, fresh=True)
    with pretended(where, monkeypatch):
        delta = placed(some(1), torch.device(where))
        sent = update_at_home(rule.bound(delta, 5, 0.5, Message(meta={**rule.tell({})}), root(2)))
    assert all(value.dtype == torch.int64 for value in sent.values() if isinstance(value, Tensor))


@pytest.mark.parametrize("placement", ["none", "central", "distributed"])
def test_a_sum_is_released_where_it_is(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = NoPrivacy() if placement == "none" else mechanism(placement)

    def work(put: Callable[[Update], Update]) -> Update:
        total = {f"delta/{name}": value for name, value in some(3).items()}
        if placement == "none":
            total["weight"] = torch.tensor(7.0)
        if placement == "distributed":
            total = {name: (1e6 * value).long() for name, value in total.items()}
        asked = Asked((0, 1), 2.0, 10, put(some(4)))  # type: ignore[arg-type]
        return rule.release(put(total), asked, {}, root(5))[0]

    there = on_cpu_too(work, monkeypatch, "cuda:0")
    assert all(isinstance(value, OnDevice) for value in there.values())


def test_an_adaptive_clip_stays_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Privacy(placement="central", clip=0.5, noise=0.7, quantile=0.5)
    rule = GaussianMechanism(options, 5)

    def clip(put: Callable[[Update], Update]) -> Tensor:
        total = put({**some(3), "unclipped": torch.tensor(3.5)})
        asked = Asked((0, 1), 40.0, 100, put(some(4)))  # type: ignore[arg-type]
        return rule.release(total, asked, {}, root(5))[1]["clip"]

    with pretended("cuda:0", monkeypatch):
        there = clip(lambda update: moved(update, CUDA))
        assert type(there) is Tensor
        assert torch.equal(there, clip(lambda update: update))


def rows_of(ids: Sequence[int], seed: int, rounded: bool) -> Rows:
    values = torch.randn(len(ids), 3, generator=torch_generator(derive(root(0), seed)))
    numbers, counts = torch.tensor(ids), torch.arange(len(ids)) + 1
    if not rounded:
        return Rows(numbers, values)
    steps, scale = (torch.from_numpy(one) for one in round_rows(values.numpy(), seed))
    return Rows(numbers, steps, scale, counts)


def equal_rows(one: Rows, other: Rows) -> None:
    """The compiled loops add squares one by one: they are equal but for the last bits."""
    for a, b in zip(parts_of(one), parts_of(other), strict=True):
        assert torch.allclose(a, b, rtol=1e-12) if a.dtype == torch.float64 else torch.equal(a, b)


@pytest.mark.parametrize("rounded", [False, True])
def test_rows_and_tables_add_up_on_the_device(
    rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many rows as there turn out to be; and as the compiled loops do it on the CPU."""
    updates: list[Update] = [
        {"table": rows_of([0, 2, 5], 1, rounded), **some(1)}
        | {"rows": rows_of([1, 3], 4, rounded)},
        {"table": some(2)["table"], "rows": rows_of([0, 3, 6], 5, rounded)},
        {"rows": rows_of([3], 6, rounded), "bias": some(3)["bias"]},
    ]
    cpu = add_all(updates)
    with pretended("cuda:0", monkeypatch):
        gpu = add_all([moved(update, CUDA) for update in updates])
        assert all(isinstance(part, OnDevice) for value in gpu.values() for part in parts_of(value))
        back = update_at_home(gpu)
    for name, value in cpu.items():
        other = back[name]
        if isinstance(value, Rows) and isinstance(other, Rows):
            equal_rows(value, other)
        else:
            assert torch.equal(value, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "yogi"])
def test_the_server_steps_where_its_model_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = ServerOptimizer(optimizer=name, average=0.5)  # type: ignore[arg-type]

    def work(put: Callable[[Update], Update]) -> Update:
        params: Any = put(some(1))
        slots: Any = {}
        for step in range(2):
            params, slots = optimizer.step(params, put(some(2 + step)), slots)
        return {**params, **{f"average/{n}": v for n, v in slots["average"].items()}}

    assert all(isinstance(v, OnDevice) for v in on_cpu_too(work, monkeypatch, "cuda:0").values())


@pytest.mark.parametrize("rule", [median, trimmed_mean(0.3), norm_bound(0.5)])
def test_a_robust_rule_where_the_updates_are(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(put: Callable[[Update], Update]) -> Update:
        replies = []
        for number in range(5):
            delta = {f"delta/{name}": value for name, value in some(number).items()}
            weight = torch.tensor(1.0 + number)
            replies.append(put({**delta, "weight": weight, "loss": torch.tensor(0.5) * weight}))
        return rule(replies)  # type: ignore[arg-type]

    there = on_cpu_too(work, monkeypatch, "cuda:0")
    assert isinstance(there["delta/table"], OnDevice)


# --- the option -----------------------------------------------------------------------------------


def test_a_device_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    has = {"cuda": 0, "mps": 0}
    monkeypatch.setattr(devices, "_count", has.__getitem__)
    assert chosen("cpu") == chosen("auto") == CPU
    for name, line in {
        "cuda": "no cuda device here",
        "cuda:0": "no cuda device here",
        "mps": "no mps device here",
        "gpu": "is not known",
        "cuda:": "is not known",
        "cuda:x": "is not known",
        "mps:1": "is not known",
        "cpu:0": "is not known",
    }.items():
        with pytest.raises(ConfigError, match=line) as caught:
            chosen(name)
        assert "\n" not in str(caught.value)
    has["mps"] = 1
    assert chosen("auto") == torch.device("mps")
    has["cuda"] = 2
    assert chosen("auto") == chosen("cuda") == torch.device("cuda")
    assert chosen("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="cuda:0 to cuda:1"):
        chosen("cuda:2")


def test_workers_share_out_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_count", lambda kind: 2)
    assert [str(shared_out(torch.device("cuda"), n)) for n in range(3)] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    for one in ("cuda:1", "cpu", "mps"):
        assert shared_out(torch.device(one), 3) == torch.device(one)


def test_a_worker_computes_where_it_is_told(tmp_path: Path) -> None:
    config = configuration.parse(dict(classifier(tmp_path, "fedavg")), [])
    site = _site(Orders(configuration.to_toml(config), str(tmp_path / "run"), None, "cuda:1"))
    score = site.method.client[EVALUATE]
    assert isinstance(score, Evaluator)
    assert score.task.device == torch.device("cuda:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_one_line(lexfed: Lexfed, tmp_path: Path) -> None:
    config = configuration.parse(dict(classifier(tmp_path, "fedavg")), [])
    (tmp_path / "one.toml").write_text(configuration.to_toml(config))
    done = lexfed("run", tmp_path / "one.toml", "--device", "cuda", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr == (
        "lexfed: --device cuda: torch sees no cuda device here; say cpu or auto\n"
    )
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="no cuda device here"):
        api.run(classifier(tmp_path, "fedavg"), out=tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_word_vectors_are_trained_on_the_cpu(tmp_path: Path) -> None:
    table = {"method": "federated_word2vec", "data": {"name": str(reviews(tmp_path))}}
    config = configuration.parse(table, [])
    with pytest.raises(ConfigError, match="word vectors are trained on the CPU"):
        launch.begin(config, tmp_path / "run", None, Manner(quiet=True, device="cuda"))
    assert not (tmp_path / "run").exists()


def test_the_device_is_in_the_summary_and_not_in_the_configuration(tmp_path: Path) -> None:
    config = configuration.parse(dict(classifier(tmp_path, "fedavg")), [])
    manner = Manner(quiet=True, device="cpu")
    run = launch.begin(config, tmp_path / "run", None, manner)
    assert run.summary()["device"] == "cpu"
    assert "device =" not in run.config_file.read_text()
    again = launch.resume(run.path, ["rounds=2"], replace(manner, device="auto"))
    assert again.summary()["rounds"] == 2
