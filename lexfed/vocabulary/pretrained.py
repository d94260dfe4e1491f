"""The tokenizer of a pretrained model."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lexfed.core.errors import DataError
from lexfed.vocabulary.word import Vocabulary


def load_tokenizer(source: str, limit: int) -> "PretrainedTokenizer":
    try:
        from transformers import AutoTokenizer

        return PretrainedTokenizer(AutoTokenizer.from_pretrained(source), limit)
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"the tokenizer of '{source}' can't be loaded: {reason}") from error


@dataclass(frozen=True)
class PretrainedTokenizer:
    """A Hugging Face tokenizer, with its special tokens around every text."""

    tokenizer: Any
    limit: int  # word pieces of a text, special tokens included

    @cached_property
    def vocabulary(self) -> Vocabulary:
        tokens = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        return Vocabulary(tuple(tokens), (0,) * len(tokens))

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, truncation=True, max_length=self.limit)["input_ids"])

    def save(self, folder: Path) -> None:
        """As `transformers` opens it; asked to cut off, it does so where we do."""
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.model_max_length = self.limit
        tokenizer.save_pretrained(folder)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
