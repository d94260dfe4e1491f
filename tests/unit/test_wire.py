import pytest
import safetensors.torch
import torch

from lexfed.core.errors import PrivacyError, WireError
from lexfed.core.params import ALL_SHARED, ParameterSplit
from lexfed.wire import VERBS, Message, check, check_outgoing, decode, encode

EMBEDDING_STAYS = ParameterSplit(lambda name: name.startswith("embedding."))


def test_any_tool_can_read_a_message() -> None:
    message = Message({"delta/a": torch.arange(6.0).reshape(2, 3)}, {"step": 1}, {"words": b"xyz"})
    arrays = safetensors.torch.load(encode(message))
    assert torch.equal(arrays["delta/a"], message.arrays["delta/a"])
    assert bytes(arrays["blob:words"].numpy()) == b"xyz"


def test_what_is_not_in_the_table_can_not_be_sent() -> None:
    for stray in (
        Message({"model/a": torch.zeros(1)}),
        Message({"weights": torch.zeros(1)}),
        Message(meta={"user": "x"}),
        Message(blobs={"b": b""}),
    ):
        with pytest.raises(WireError, match="may not hold"):
            check("train", "up", stray)
    with pytest.raises(WireError, match="unknown verb"):
        check("steal", "up", Message())


@pytest.mark.parametrize("name", ["delta/embedding.weight", "delta/embedding.weight#ids", "delta/embedding.weight#values"])
def test_a_private_name_is_refused_before_anything_leaves(name: str) -> None:
    message = Message({name: torch.zeros(2)})
    check_outgoing("train", message, ALL_SHARED)  # the pair: the same message is fine where nothing is private
    with pytest.raises(PrivacyError, match=r"embedding\.weight"):
        check_outgoing("train", message, EMBEDDING_STAYS)


def test_nothing_in_the_table_could_carry_a_seed_or_text_up() -> None:
    # what they are for: a word list in the clear, the words that were chosen, the beginning of a frequent word
    words = {"disclose": "words", "spell": "words", "vote": "vote"}
    for verb, names in VERBS.items():
        if verb in words:
            assert names["up"].blobs == (words[verb],)
            continue
        assert names["up"].meta in ((), ("version",)), verb  # a number that the server itself counts up
        assert not names["up"].blobs, verb


@pytest.mark.parametrize("data", [b"", b"123", bytes(200), encode(Message({"a": torch.zeros(9)}))[:-1]])
def test_noise_is_not_a_message(data: bytes) -> None:
    with pytest.raises(WireError, match="not a lexfed message"):
        decode(data)


def test_a_safetensors_file_of_somebody_else_is_not_a_message() -> None:
    with pytest.raises(WireError):
        decode(safetensors.torch.save({"a": torch.zeros(2)}))
