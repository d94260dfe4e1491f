import pkgutil
from importlib import import_module

import pytest
import safetensors.torch
import torch

import lexfed
from lexfed.core.errors import PrivacyError, WireError
from lexfed.core.params import ALL_SHARED, ParameterSplit
from lexfed.federation import Method
from lexfed.learning.training_verbs import TRAIN
from lexfed.methods.lg_fedavg import WARM_UP
from lexfed.wire import Message, Verb, check, check_outgoing, decode, encode

EMBEDDING_STAYS = ParameterSplit(lambda name: name.startswith("embedding."))


def test_any_tool_can_read_a_message() -> None:
    message = Message({"delta/a": torch.arange(6.0).reshape(2, 3)}, {"step": 1}, {"words": b"xyz"})
    arrays = safetensors.torch.load(encode(message))
    assert torch.equal(arrays["delta/a"], message.arrays["delta/a"])
    assert bytes(arrays["blob:words"].numpy()) == b"xyz"


def test_one_number_of_any_stride_is_a_message() -> None:
    """Rows that one client moved alone: an array of one number, whose stride means nothing."""
    for shape in ((1,), (0,), (1, 1)):
        odd = torch.ones(1, dtype=torch.int32).as_strided(shape, (0,) * len(shape))
        assert torch.equal(decode(encode(Message({"x": odd}))).arrays["x"], odd)


def test_what_is_not_in_the_form_of_a_verb_can_not_be_sent() -> None:
    for stray in (
        Message({"model/a": torch.zeros(1)}),
        Message({"weights": torch.zeros(1)}),
        Message(meta={"user": "x"}),
        Message(blobs={"b": b""}),
    ):
        with pytest.raises(WireError, match="may not hold"):
            check(TRAIN, "up", stray)


def test_a_verb_that_a_method_does_not_have_can_not_be_asked_for() -> None:
    handlers = {TRAIN: lambda message, client, state: (None, state)}
    method = Method(handlers, lambda *_: iter(()), ALL_SHARED, rounds=1)
    assert method.verb("train") is TRAIN
    with pytest.raises(WireError, match="unknown verb 'steal'"):
        method.verb("steal")


@pytest.mark.parametrize(
    "name",
    ["delta/embedding.weight", "delta/embedding.weight#ids", "delta/embedding.weight#values"],
)
def test_a_private_name_is_refused_before_anything_leaves(name: str) -> None:
    message = Message({name: torch.zeros(2)})
    # the pair: the same message is fine where nothing is private
    check_outgoing(TRAIN, message, ALL_SHARED)
    check_outgoing(WARM_UP, message, EMBEDDING_STAYS)  # and in a verb that is knowingly open
    with pytest.raises(PrivacyError, match=r"embedding\.weight"):
        check_outgoing(TRAIN, message, EMBEDDING_STAYS)


def every_verb() -> set[Verb]:
    """Of all modules: no list of verbs stands anywhere."""
    names = [module.name for module in pkgutil.walk_packages(lexfed.__path__, "lexfed.")]
    modules = [import_module(name) for name in names if not name.endswith("__main__")]
    found = [value for module in modules for value in vars(module).values()]
    return {value for value in found if isinstance(value, Verb)}


def test_no_verb_could_carry_a_seed_or_text_up() -> None:
    # what they are for: a word list in the clear, the words that were chosen, the beginning of a
    # frequent word
    words = {"disclose": "words", "spell": "words", "vote": "vote"}
    verbs = every_verb()
    assert sorted(verb.name for verb in verbs) == [
        "accept", "deal", "disclose", "evaluate", "evaluate", "evaluate", "install", "introduce",
        "offer", "propose", "sketch", "sketch-sum", "skipgram", "spell", "touch", "train",
        "version", "vocabulary", "vote", "warm",
    ]  # fmt: skip
    for verb in verbs:
        if verb.name in words:
            assert tuple(verb.up.blobs) == (words[verb.name],)
            continue
        # a number that the server itself counts up; how many words one has, to a power of two
        assert tuple(verb.up.meta) in ((), ("version",), ("words",)), verb
        assert not verb.up.blobs, verb


@pytest.mark.parametrize(
    "data", [b"", b"123", bytes(200), encode(Message({"a": torch.zeros(9)}))[:-1]]
)
def test_noise_is_not_a_message(data: bytes) -> None:
    with pytest.raises(WireError, match="not a lexfed message"):
        decode(data)


def test_a_safetensors_file_of_somebody_else_is_not_a_message() -> None:
    with pytest.raises(WireError):
        decode(safetensors.torch.save({"a": torch.zeros(2)}))
