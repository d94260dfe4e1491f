"""A model's token rows when its tokenizer changes (Bagdasaryan et al., 2022, Algorithm 1, REMAP and
UPDATE).

    for each token of the new tokenizer:
        pieces <- the old tokenizer's ids of the token's symbols
        row of the token <- mean of the rows of its pieces

Differs from the paper's pseudocode: a token is *encoded* by the old tokenizer, not decoded; a piece
that occurs twice counts twice (`+=`, not `=`); and a token is encoded as it is written, without a
blank before it and without a pre-tokenizer. All parameters that have a row per token are treated
so: input and output table, bias, and the server optimizer's memory of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lexfed.core.params import Params
from lexfed.vocabulary.tokenizer import TrainedTokenizer

# how tokens show whether they begin a word: Ġ, no ##, ▁, not at all
Writing = Literal["bytes", "##", "▁", "plain"]

# --- which pieces ---------------------------------------------------------------------------------


def pieces(new: TrainedTokenizer, old: TrainedTokenizer) -> list[list[int]]:
    """For each new token the old ids of its pieces; [] where there is none, not even an unknown
    one.
    """
    roles = {new.pad: old.pad, new.unk: old.unk, new.bos: old.bos, new.eos: old.eos}
    known, forms = old.vocabulary.ids, (writing(new), writing(old))
    result = []
    for i, token in enumerate(new.tokens):
        if i in roles:
            namesake = roles[i]
            result.append([] if namesake is None else [namesake])
        else:
            symbols = (
                _written(*_surface(token, forms[0]), forms[1]) if forms[0] != forms[1] else token
            )
            result.append([known[symbols]] if symbols in known else _split(symbols, old))
    return result


def _split(symbols: str, old: TrainedTokenizer) -> list[int]:
    """The old model applied to symbols as they are. What it does not know at all is its unknown
    token.
    """
    found = [token.id for token in old.engine.model.tokenize(symbols)] if symbols else []
    unknown = [] if old.unk is None else [old.unk]
    return found if any(i != old.unk for i in found) else unknown


def writing(tokenizer: TrainedTokenizer) -> Writing:
    if tokenizer.byte_level:
        return "bytes"
    if tokenizer.kind == "wordpiece":
        return "##"
    return (
        "▁"
        if any(token.startswith("▁") for token in tokenizer.tokens) and tokenizer.kind != "word"
        else "plain"
    )


def begins_words(tokenizer: TrainedTokenizer) -> list[bool]:
    """Of each token, whether it begins a word."""
    form = writing(tokenizer)
    return [_surface(token, form)[1] for token in tokenizer.tokens]


def _surface(token: str, form: Writing) -> tuple[str, bool]:
    """The text of a token, and whether it begins a word. Bytes that are no whole character have no
    text.
    """
    if form == "bytes":
        from tokenizers import decoders

        text = decoders.ByteLevel().decode([token]).replace("\ufffd", "")
        return text.removeprefix(" "), text.startswith(" ")
    if form == "##":
        return token.removeprefix("##"), not token.startswith("##")
    return (token.removeprefix("▁"), token.startswith("▁")) if form == "▁" else (token, True)


def _written(text: str, begins: bool, form: Writing) -> str:
    """The symbols for a text; "" if there are none."""
    if form == "bytes":
        from tokenizers import pre_tokenizers

        symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return "".join(part for part, _ in symbols.pre_tokenize_str(" " * begins + text))
    if form == "##":
        return text if begins or not text else f"##{text}"
    return f"▁{text}" if form == "▁" and begins else text


# --- rows -----------------------------------------------------------------------------------------


def remapped(table: Tensor, pieces: Sequence[Sequence[int]]) -> Tensor:
    """The mean of the rows of each token's pieces, repeats counted; of all rows for a token without
    pieces.

    For a table (V, d) or a bias (V,). One piece gives its row, bit for bit.
    """
    counts = torch.tensor([len(ids) for ids in pieces])  # (V',)
    flat = torch.tensor([i for ids in pieces for i in ids], dtype=torch.int64)  # (sum of counts,)
    if len(flat) and int(flat.max()) >= len(table):
        raise ValueError(f"the table has {len(table)} rows, but the old tokenizer more tokens")
    owner = torch.repeat_interleave(torch.arange(len(pieces)), counts)
    sums = table.new_zeros((len(pieces), *table.shape[1:])).index_add_(0, owner, table[flat])
    result = sums / counts.clamp(min=1).to(table.dtype).reshape(-1, *[1] * (table.ndim - 1))
    # a sum that starts from 0 would lose the sign of -0
    result[counts == 1] = table[flat[counts[owner] == 1]]
    result[counts == 0] = table.mean(0)
    return result


def remap_params(params: Params, names: Sequence[str], pieces: Sequence[Sequence[int]]) -> Params:
    """The parameters with new token rows; `names` are those that have a row per token."""
    if missing := [name for name in names if name not in params]:
        raise ValueError(f"there is no parameter {', '.join(missing)}")
    return {
        name: remapped(value, pieces) if name in names else value for name, value in params.items()
    }


def remap_slots(
    slots: Mapping[str, Params], names: Sequence[str], pieces: Sequence[Sequence[int]]
) -> Mapping[str, Params]:
    """The server optimizer's memory, for the same rows: m <- mean_i m_i, v <- mean_i v_i over the
    pieces i.

    v holds squares. Their mean is at least the square of the mean gradient, so the first steps are
    rather too small than too large. A slot that has not met a parameter yet goes without it.
    """
    return {
        slot: remap_params(held, [name for name in names if name in held], pieces)
        for slot, held in slots.items()
    }


def unigram_bias(new: TrainedTokenizer, texts: Iterable[Sequence[str]]) -> Tensor:
    """log((count + 1) / (total + V)) of each token in texts cut in words, each with its end: an
    output bias to start from.

    What is never predicted (the beginning, padding) is counted 0 times and gets the smallest.
    """
    counted: Counter[int] = Counter()
    for text in texts:
        counted.update(new.encode_words(text)[0])
        counted[new.eos] += 1
    counts = torch.tensor([counted[i] for i in range(len(new.tokens))], dtype=torch.float64)  # (V,)
    return torch.log((counts + 1) / (counts.sum() + len(counts))).float()
