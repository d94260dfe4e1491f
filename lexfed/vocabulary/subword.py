"""The tokenizer of a pretrained model."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lexfed.errors import DataError
from lexfed.vocabulary.word import Vocabulary


@dataclass(frozen=True)
class PretrainedTokenizer:
    """A Hugging Face tokenizer, with its special tokens around every text."""

    source: str
    limit: int  # word pieces of a text, special tokens included

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(self.source)
        except (ImportError, OSError, ValueError) as error:
            raise DataError(
                f"the tokenizer of '{self.source}' can't be loaded: {' '.join(str(error).split())[:200]}"
            ) from error

    @cached_property
    def vocabulary(self) -> Vocabulary:
        tokens = self._tokenizer.convert_ids_to_tokens(range(len(self._tokenizer)))
        return Vocabulary(tuple(tokens), (0,) * len(tokens))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, truncation=True, max_length=self.limit)["input_ids"])

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
