"""Malicious clients, in pairs: what they do to a plain mean and to an open word list, and who
withstands them.

The model of the middle part is a bag of words and a logistic regression on real reviews: as much of
a federation as a
second can hold. Its figures (accuracy on 1,706 texts, whose standard error is 0.011) stand in
`MEASURED`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params, Rows
from lexfed.core.seeds import derive, root, torch_generator
from lexfed.corpus.population import Client, Data, Population, build
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import parse
from lexfed.federation import (
    Ask,
    ClientState,
    Federation,
    Requests,
    Rounds,
    ServerState,
    Total,
    plain,
    robust,
)
from lexfed.federation.robust import median, norm_bound, trimmed_mean
from lexfed.federation.sampling import Everyone
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.layers.malice import Malice, corrupted, invented, malice, malicious
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.runs import agreement_alone as agreeing
from lexfed.vocabulary.splitting import words
from lexfed.wire import ClientId, Message, Verb, echoing, pack, read, unpack
from tests.conftest import Lexfed, hand_made

# --- a small federation on real text -------------------------------------------------------------

CLIENTS, ROUNDS, STEPS, RATE = 10, 5, 30, 8.0


@cache
def reviews() -> Population:
    return build(Data(name="rotten_tomatoes", clients=CLIENTS, partition="iid"), root(3))


@cache
def bags() -> Tensor:
    """Which of the 2,000 most frequent words each text has, at length one."""
    people = reviews()
    used = np.concatenate([people.train.rows, people.common_test.rows])
    split = {
        int(row): set(words(text))
        for row, text in zip(used, [*people.train, *people.common_test], strict=True)
    }
    counts: dict[str, int] = {}
    for row in people.train.rows:
        for word in split[int(row)]:
            counts[word] = counts.get(word, 0) + 1
    ids = {
        word: i
        for i, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word))[:2000])
    }
    matrix = torch.zeros(int(used.max()) + 1, len(ids))
    for row, own in split.items():
        matrix[row, [ids[word] for word in own if word in ids]] = 1
    return torch.nn.functional.normalize(matrix, dim=1)


def train(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
    """Some steps down the gradient of all its texts."""
    start, x, y = (
        message.arrays["model/w"],
        bags()[client.train.rows],
        torch.from_numpy(client.train.labels).float(),
    )
    w = start.clone()
    for _ in range(STEPS):
        w -= RATE / len(y) * ((x @ w).sigmoid() - y) @ x
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w, y).item()
    return Message(pack(NoPrivacy().bound({"w": w - start}, len(y), loss, message, b""))), state


def asking(malice: Malice) -> Ask:
    people, bad = reviews(), malicious(malice, reviews())

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, message in requests.items():
            handler = corrupted(train, verb, malice, people.classes) if client in bad else train
            reply, _ = handler(message, people.client(client), ClientState())
            assert reply is not None
            yield client, echoing(message, reply)

    return ask


RULES: Mapping[str, Callable[[Ask], Total]] = {
    "mean": plain,
    "trim 0.2": partial(robust, rule=trimmed_mean(0.2)),
    "trim 0.1": partial(robust, rule=trimmed_mean(0.1)),
    "median": partial(robust, rule=median),
    "norm 4": partial(robust, rule=norm_bound(4.0)),
}


@cache
def accuracy(rule: str, malice: Malice) -> float:
    ask = asking(malice)
    rounds = Rounds(Everyone(), NoPrivacy(), ServerOptimizer(), TRAIN)
    start = ServerState(params={"w": torch.zeros(bags().shape[1])})
    *_, state = rounds(
        Federation(range(CLIENTS), ask, RULES[rule](ask)), start, until=ROUNDS, seed=root(0)
    )
    test = reviews().common_test
    return float(
        (((bags()[test.rows] @ state.params["w"]) > 0).numpy() == (test.labels == 1)).mean()
    )


SCALED, FLIPPED = Malice(2), Malice(4, "flip_labels")
MEASURED: Mapping[tuple[str, Malice], float] = {
    ("mean", Malice()): 0.668, ("trim 0.2", Malice()): 0.664, ("median", Malice()): 0.665, ("norm 4", Malice()): 0.665,
    ("mean", SCALED): 0.435, ("trim 0.2", SCALED): 0.637, ("median", SCALED): 0.630, ("norm 4", SCALED): 0.632,
    ("trim 0.1", SCALED): 0.467,
    ("mean", FLIPPED): 0.584, ("trim 0.2", FLIPPED): 0.592, ("median", FLIPPED): 0.607, ("norm 4", FLIPPED): 0.590,
}  # fmt: skip
ROBUST = ("trim 0.2", "median", "norm 4")


@pytest.mark.parametrize(("rule", "malice"), MEASURED)
def test_the_figures_are_those_that_were_measured(rule: str, malice: Malice) -> None:
    assert accuracy(rule, malice) == pytest.approx(
        MEASURED[rule, malice], abs=0.011
    )  # another machine's last bits


def test_two_of_ten_who_turn_their_updates_round_destroy_the_mean_and_no_robust_rule() -> None:
    clean = accuracy("mean", Malice())
    assert clean > 0.65
    assert accuracy("mean", SCALED) < 0.5, "worse than tossing a coin"
    for rule in ROBUST:
        assert abs(accuracy(rule, Malice()) - clean) < 0.011, (
            "robustness costs nothing where nobody lies"
        )
        assert accuracy(rule, SCALED) > clean - 0.05, "the two are lost, and little more"
    assert accuracy("trim 0.1", SCALED) < 0.5, "one is cut at either end, and there are two"


def test_flipped_labels_do_less_and_no_rule_undoes_them() -> None:
    """Updates from flipped labels are no longer than others, and look like disagreement. Four
    of ten:
    """
    clean = accuracy("mean", Malice())
    assert 0.5 < accuracy("mean", FLIPPED) < clean - 0.05
    assert accuracy("median", FLIPPED) > accuracy("mean", FLIPPED), (
        "the median still gains, three standard errors"
    )
    for rule in ROBUST:
        assert accuracy(rule, FLIPPED) < clean - 0.03


def test_one_client_that_sends_no_numbers_is_not_heard_by_any_rule() -> None:
    nan = Malice(1, "nan")
    model = Message({"model/w": torch.zeros(bags().shape[1])}, {"step": 0, "ask": 0, "round": 0})
    requests = dict.fromkeys(range(CLIENTS), model)
    for rule in ("mean", *ROBUST):
        heard = RULES[rule](asking(nan))(TRAIN, requests)
        assert heard.clients == CLIENTS - 1
        assert heard.refused == {"'delta/' is no number": 1}
        assert finite(heard.update["delta/w"])


def finite(value: Tensor | Rows) -> bool:
    return isinstance(value, Tensor) and bool(value.isfinite().all())


# --- what a layer does ---------------------------------------------------------------------------


def test_who_is_malicious_hangs_from_the_seed_and_more_are_the_same_and_others() -> None:
    people = hand_made((1,) * 20)
    sets = [malicious(Malice(k), people) for k in range(21)]
    assert [len(some) for some in sets] == list(range(21))
    assert all(few < more for few, more in pairwise(sets))
    assert sets[20] == set(range(20))
    assert sets[5] != malicious(Malice(5), Population(**{**vars(people), "secret": root(8)}))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_an_update_is_scaled_in_every_form_it_travels_in(precision: str) -> None:
    values = torch.randn(6, 4, generator=torch_generator(root(1)))
    rows = Rows(torch.tensor([2, 5, 9]), values[:3])
    for entry in (values, rows):
        sent = pack(
            {"delta/x": entry, "weight": torch.tensor(3.0)}, precision, torch_generator(root(2))
        )  # type: ignore[arg-type]
        mine, lie = (unpack(arrays) for arrays in (sent, poison(sent, Malice(1, factor=4.0))))
        assert torch.equal(whole(lie["delta/x"]), -4 * whole(mine["delta/x"]))
        assert torch.equal(whole(lie["weight"]), torch.tensor(3.0))
        assert bool(whole(unpack(poison(sent, Malice(1, "nan")))["delta/x"]).isnan().all())


def poison(arrays: Params, malice: Malice, verb: Verb = TRAIN) -> Params:
    handler = corrupted(lambda message, client, state: (Message(arrays), state), verb, malice, 2)
    return handler(Message(), hand_made().client(0), ClientState())[0].arrays


def whole(value: Tensor | Rows) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return value.values.float() * (1.0 if value.scale is None else value.scale)


def test_labels_are_flipped_for_training_and_all_else_stays() -> None:
    seen: list[Client] = []

    def look(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        seen.append(client)
        return Message(), state

    honest = hand_made().client(2)
    corrupted(look, TRAIN, Malice(1, "flip_labels"), 2)(Message(), honest, ClientState())
    corrupted(look, TRAIN, Malice(1, "stuff_vocabulary"), 2)(Message(), honest, ClientState())
    assert seen[0].train.labels.tolist() == [1 - label for label in honest.train.labels]
    assert list(seen[0].train) == list(honest.train)
    assert seen[0].common_test is honest.common_test
    assert seen[1] is honest, "it trains on its own texts"


def test_the_layer_turns_liars_alone_and_everybody_scores_honestly() -> None:
    people, options = hand_made((1,) * 6), Malice(2, factor=4.0)
    layer = malice(options, people)

    def honest(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        return Message({"delta/x": torch.ones(2)}), state

    def silent(message: Message, client: Client, state: ClientState) -> tuple[None, ClientState]:
        return None, state

    liars = malicious(options, people)
    for client in map(people.client, range(6)):
        reply, _ = layer(TRAIN, honest)(Message(), client, ClientState())
        assert reply is not None
        assert reply.arrays["delta/x"].tolist() == ([-4, -4] if client.id in liars else [1, 1])
        assert layer(TRAIN, silent)(Message(), client, ClientState())[0] is None
    assert layer(EVALUATE, honest) is honest


# --- a word list ---------------------------------------------------------------------------------

WORDS = 300


@cache
def listed(liars: int, **agreement: object) -> tuple[str, ...]:
    """Five organisations with real reviews agree; so many of them stuff."""
    data = {"name": "rotten_tomatoes", "clients": 5, "partition": "iid", "limit": 1500}
    malice = {"clients": liars, "kind": "stuff_vocabulary", "words": WORDS}
    table = {"method": "federated_word2vec", "data": data, "malice": malice, "agreement": agreement}
    return agreeing.run(parse(table)).vocabulary.tokens


@cache
def lies() -> frozenset[str]:
    secret = derive(root(parse({}).seed), "data")
    return frozenset(invented(WORDS, derive(secret, "common")))


def test_one_organisation_stuffs_the_union_and_not_a_list_that_wants_two_holders() -> None:
    assert len(lies()) == WORDS
    assert not lies() & set(listed(0, rule="union", minimum=3))
    assert lies() <= set(listed(1, rule="union", minimum=3)), "what anybody proposes"
    assert not lies() & set(listed(1, minimum=3)), "summed, holders = 2"
    assert not lies() & set(listed(1, minimum=3, hashed=False)), "in the clear as among hashes"
    assert not lies() & set(listed(1, rule="intersection", minimum=3))
    assert {"the", "film", "movie"} <= set(listed(1, minimum=3))


@pytest.mark.parametrize("hashed", [True, False])
def test_two_who_collude_get_through_two_holders_and_not_three(hashed: bool) -> None:
    """A count of holders is a count of liars that are withstood: one less than `holders`, and
    no rule knows better.
    """
    assert lies() <= set(listed(2, minimum=3, holders=2, hashed=hashed))
    assert not lies() & set(listed(2, minimum=3, holders=3, hashed=hashed))


def test_a_list_of_limited_size_is_lost_to_two_who_shout() -> None:
    honest, stuffed = listed(0, minimum=3, size=WORDS), listed(2, minimum=3, size=WORDS)
    assert not lies() & set(honest)
    assert len(lies() & set(stuffed)) > 0.9 * WORDS
    assert len(lies() & set(listed(2, minimum=3, size=WORDS, holders=3))) == 0


def test_differential_privacy_hides_documents_and_does_not_withstand_an_organisation() -> None:
    """It believes the weights that it is sent: noise and threshold bound an honest document,
    not a liar.
    """
    honest, stuffed = (
        listed(liars, rule="dp", words_per_document=20, epsilon=8.0) for liars in (0, 1)
    )
    assert not lies() & set(honest)
    assert lies() <= set(stuffed)


# --- whole runs ----------------------------------------------------------------------------------


def summary(run: Path) -> dict[str, object]:
    return dict(json.loads((run / "summary.json").read_text()))


def rounds(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def largest(run: Path) -> float:
    """Parameter of the final model."""
    return max(
        float(value.abs().max())
        for value in read(run / "artifacts/model.safetensors").arrays.values()
    )


NAN = ("--set", "malice.clients=1", "--set", "malice.kind='nan'", "--set", "cohort.size=6")


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_client_that_sends_no_numbers_ends_no_run_and_is_counted(
    workers: int, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    for rule in ("mean", "norm_bound"):
        settings = (*NAN, "--set", f"aggregation.rule={rule}", "--workers", workers)
        result = lexfed("run", tiny, "--out", rule, *settings)
        assert result.returncode == 0
        assert "replies that were refused: 3 'delta/' is no number" in result.stdout
        assert summary(tmp_path / rule)["stopped"] == "finished"
        assert summary(tmp_path / rule)["refused"] == {"'delta/' is no number": 3}
        for record in rounds(tmp_path / rule):
            assert record["clients"] == 5
            assert record["refused"] == {"'delta/' is no number": 1}


def test_everybody_who_sends_no_numbers_ends_a_run_after_three_rounds(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """A round of liars alone may be bad luck; three of them are training that left the numbers."""
    settings = (*NAN, "--set", "malice.clients=6", "--set", "rounds=9")
    result = lexfed("run", tiny, "--out", "a", *settings)
    assert result.returncode == 2
    assert summary(tmp_path / "a")["stopped"] == "diverged"
    assert "3 rounds in a row" in str(summary(tmp_path / "a")["reason"])
    assert [record["clients"] for record in rounds(tmp_path / "a")] == [0, 0]


def test_scaled_updates_blow_a_plain_run_up_and_its_bytes_are_a_robust_runs_bytes(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = (
        "--set",
        "malice.clients=2",
        "--set",
        "malice.factor=1000",
        "--set",
        "cohort.size=6",
        "--set",
        "train.upload=fp16",  # whole tables from both: of single precision a mean takes rows
    )
    for rule in ("mean", "median"):
        assert (
            lexfed(
                "run", tiny, "--out", rule, *settings, "--set", f"aggregation.rule={rule}"
            ).returncode
            == 0
        )
    assert largest(tmp_path / "mean") > 5 > 2 > largest(tmp_path / "median")
    mean, robust_ = (rounds(tmp_path / rule) for rule in ("mean", "median"))
    for key in ("bytes_up", "bytes_down", "clients"):
        assert [record[key] for record in mean] == [record[key] for record in robust_]


def test_workers_are_malicious_too(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """Rebuilt from the configuration; robust rules are applied in this process, to the replies
    as they were asked for.
    """
    settings = (
        "--set",
        "malice.clients=2",
        "--set",
        "aggregation.rule=median",
        "--set",
        "cohort.size=5",
    )
    for count in (0, 2):
        assert (
            lexfed("run", tiny, "--out", f"w{count}", "--workers", count, *settings).returncode == 0
        )
    one, two = (
        (tmp_path / name / "artifacts/model.safetensors").read_bytes() for name in ("w0", "w2")
    )
    assert one == two
    assert (
        lexfed("run", tiny, "--out", "good", *settings, "--set", "malice.clients=0").returncode == 0
    )
    assert one != (tmp_path / "good/artifacts/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"malice": {"clients": -1}}, "at least 0"),
        ({"malice": {"words": 0}}, "malice.words at least 1"),
        ({"malice": {"factor": 0.0}}, "malice.factor above 0"),
        (
            {"malice": {"clients": 21}},
            "malice.clients is 21, but the number of clients is 20; lower it",
        ),
        ({"malice": {"clients": 1}, "method": "centralised"}, "the number of clients is 1"),
        ({"malice": {"clients": 1, "kind": "stuff_vocabulary"}}, "fedavg agrees on no word list"),
        (
            {"malice": {"clients": 1, "kind": "flip_labels"}, "method": "federated_word2vec"},
            "trains without labels",
        ),
        (
            {"malice": {"clients": 1, "kind": "flip_labels"}, "method": "tokenizer_for_free"},
            "trains without labels",
        ),
    ],
)
def test_malice_that_can_not_be_meant_is_refused(table: dict[str, object], message: str) -> None:
    small = {"data": {"limit": 400, "unseen": 2}, **table}
    with pytest.raises(ConfigError, match=message):
        assemble(parse(small))
    assert assemble(parse({**small, "malice": {}})).config.malice == Malice()
