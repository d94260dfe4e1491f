"""Tokenizers that are trained here: byte-level BPE, words, WordPiece, and a unigram language model.

    words(text)               one fixed rule cuts every text; a text is then " ".join(words)
    train(texts, kind, size)  a standard tokenizer.json: each word is one pre-token, so no token
                              spans two words
    load(tokenizer.json)      ids 0-3 are <pad> <s> </s> <unk>; the first three are in no text

All training reads counts of words only (BPE: Sennrich et al., 2016; unigram: Kudo, 2018), and the
same counts give the same bytes. The library's WordPiece numbers its letters, and its unigram adds
up, in the order of a randomly seeded hash table: so letters get their numbers here, and the
unigram's training is here. Byte-level BPE knows every string and never says <unk>; the others do,
and `decode` leaves it out as it leaves out all special tokens.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, get_args

from lexfed.core.errors import ConfigError, DataError
from lexfed.vocabulary import stray_bytes
from lexfed.vocabulary.splitting import words as split
from lexfed.vocabulary.word import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Kind = Literal["bpe", "word", "wordpiece", "unigram"]

PAD, BOS, EOS, UNK = SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
LEAST = {"bpe": len(SPECIAL) + 256, "word": 5, "wordpiece": 8, "unigram": 8}  # sizes
LONGEST_WORD = 100  # characters of a word that WordPiece and unigram learn from
# of the unigram: a piece that no best segmentation uses still has a probability; adds up without
# rounding
SELDOM = 0.125
REMEMBERED = 500_000  # words whose tokens are kept

_NO_WORD = re.compile(r"\s|[\ud800-\udfff]|\A\Z")


# --- training -------------------------------------------------------------------------------------


def train(texts: Iterable[Sequence[str]], kind: Kind, size: int) -> bytes:
    """A tokenizer of `size` tokens, special ones included (fewer if the texts hold no more), from
    texts cut in words.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return train_on_counts(counts, kind, size)


def train_on_counts(counts: Mapping[str, int], kind: Kind, size: int) -> bytes:
    """The same from a weighted list of words, as heavy hitters give it; a word without a positive
    count is left out.
    """
    if kind not in LEAST:
        raise ConfigError(f"a tokenizer is one of {', '.join(get_args(Kind))}, not '{kind}'")
    if size < LEAST[kind]:
        raise ConfigError(
            f"a '{kind}' tokenizer needs a size of at least {LEAST[kind]}, not {size}"
        )
    counted = {word: counts[word] for word in sorted(counts) if counts[word] > 0}
    if (stray := next(filter(_NO_WORD.search, counted), None)) is not None:
        raise DataError(f"{stray!r} is not one word: cut texts with words()")
    trainers = {"bpe": _bpe, "word": _word, "wordpiece": _wordpiece, "unigram": _unigram}
    tokenizer = trainers[kind](counted, size)
    tokenizer.add_special_tokens(list(SPECIAL))
    return str(tokenizer.to_str()).encode()


def _bpe(counts: Mapping[str, int], size: int) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    symbols = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    # in bytes as symbols no blank is left: one word is one pre-token
    blanks = pre_tokenizers.WhitespaceSplit()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = blanks
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), list(SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special, initial_alphabet=alphabet
    )
    written = {symbols.pre_tokenize_str(word)[0][0]: n for word, n in _some(counts, size).items()}
    tokenizer.train_from_iterator(_repeated(written), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([blanks, symbols])
    # the first word's blank
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def _word(counts: Mapping[str, int], size: int) -> "Tokenizer":
    from tokenizers import Tokenizer, models, pre_tokenizers

    ranked = sorted(_some(counts, size), key=lambda word: (-counts[word], word))
    kept = [word for word in ranked if word not in SPECIAL][: size - len(SPECIAL)]
    tokenizer = Tokenizer(models.WordLevel(_numbered([*SPECIAL, *kept]), unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer  # without a decoder, tokens are joined by blanks


def _wordpiece(counts: Mapping[str, int], size: int) -> "Tokenizer":
    """WordPiece as the library has it: merges of BPE, then the longest match."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    # each letter may take two tokens: at most half of them
    kept = _some(counts, size, letters=(size - len(SPECIAL)) // 4)
    letters = [
        *sorted(set("".join(kept))),
        *sorted({f"##{letter}" for word in kept for letter in word[1:]}),
    ]
    learner = Tokenizer(models.WordPiece(unk_token=UNK))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, show_progress=False, special_tokens=[*SPECIAL, *letters]
    )
    learner.train_from_iterator(_repeated(kept), trainer)
    tokenizer = Tokenizer(
        models.WordPiece(learner.get_vocab(), unk_token=UNK, max_input_chars_per_word=LONGEST_WORD)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece("##", cleanup=False)
    return tokenizer


def _unigram(counts: Mapping[str, int], size: int) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    room = size - len(SPECIAL)
    kept = {f"▁{word}": n for word, n in _some(counts, size, letters=room // 2).items()}
    pieces = [(special, 0.0) for special in SPECIAL] + _unigram_pieces(kept, room)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=SPECIAL.index(UNK)))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return tokenizer


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}


def _some(counts: Mapping[str, int], size: int, letters: int | None = None) -> Mapping[str, int]:
    """The words to learn from; with a limit on letters, those that the most frequent letters
    write.
    """
    if letters is not None:
        seen: Counter[str] = Counter()
        for word, n in counts.items():
            for letter in word:
                seen[letter] += n
        alphabet = set(sorted(seen, key=lambda letter: (-seen[letter], letter))[:letters])
        counts = {
            word: n
            for word, n in counts.items()
            if len(word) < LONGEST_WORD and alphabet.issuperset(word)
        }
    if not counts:
        raise DataError(f"there are no words that a tokenizer of {size} tokens could be trained on")
    return counts


def _repeated(counts: Mapping[str, int], most: int = 10_000) -> Iterator[str]:
    """Each word as often as it counts: the library takes text only, at 0.4 s for a million
    words.
    """
    for word, n in counts.items():
        yield from (" ".join([word] * min(most, n - done)) for done in range(0, n, most))


def _unigram_pieces(counts: Mapping[str, int], room: int) -> list[tuple[str, float]]:
    """After Kudo (2018), section 3.2: start from too many pieces, and let go those that the best
    segmentations use least.

    Differs from the paper: the pieces to start from are BPE's, and EM counts the best segmentation
    only, not all.
    """
    pieces = _merges(counts, 2 * room)
    used = dict.fromkeys(pieces, SELDOM)
    for word, n in counts.items():  # at first: how often each stands in the words at all
        for i, j in combinations(range(len(word) + 1), 2):
            if word[i:j] in used:
                used[word[i:j]] += n
    while True:
        for _ in range(2):
            used = _used(counts, _scores(used))
        if len(used) <= room:
            return sorted(_scores(used), key=lambda piece: (-piece[1], piece[0]))
        # letters are never let go
        ranked = sorted(used, key=lambda piece: (len(piece) > 1, -used[piece], piece))
        used = {piece: used[piece] for piece in ranked[: max(room, len(used) * 3 // 4)]}


def _merges(counts: Mapping[str, int], size: int) -> list[str]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, max_token_length=16)
    learner.train_from_iterator(_repeated(counts), trainer)
    return sorted(learner.get_vocab())


def _scores(used: Mapping[str, float]) -> list[tuple[str, float]]:
    total = sum(used.values())
    return [(piece, math.log(n / total)) for piece, n in used.items()]


def _used(counts: Mapping[str, int], scores: list[tuple[str, float]]) -> dict[str, float]:
    """How often each piece is in the words' best segmentations."""
    from tokenizers import models

    model = models.Unigram([(UNK, 0.0), *scores], unk_id=0)
    used = dict.fromkeys((piece for piece, _ in scores), SELDOM)
    for word, n in counts.items():
        for token in model.tokenize(word):
            used[token.value] += n
    return used


# --- use ------------------------------------------------------------------------------------------

USUAL = {  # names under which tokenizers made elsewhere have them
    "bos": (BOS, "[CLS]", "<|endoftext|>", "<bos>", "<|begin_of_text|>"),
    "eos": (EOS, "[SEP]", "<|endoftext|>", "<eos>", "<|end_of_text|>"),
    "unk": (UNK, "[UNK]"),
    "pad": (PAD, "[PAD]"),
}
KINDS: Mapping[str, Kind] = {
    "BPE": "bpe",
    "WordLevel": "word",
    "WordPiece": "wordpiece",
    "Unigram": "unigram",
}


@dataclass(frozen=True)
class TrainedTokenizer:
    data: bytes  # the tokenizer.json
    kind: Kind
    byte_level: bool  # knows every string
    tokens: tuple[str, ...]  # by id
    bos: int
    eos: int
    unk: int | None
    pad: int | None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokens, (0,) * len(self.tokens))

    @cached_property
    def begins(self) -> tuple[bool, ...]:
        """Of each token, whether it begins a word wherever it stands. None of a foreign tokenizer
        does that marks them in another way.
        """
        special = {self.bos, self.eos, self.unk, self.pad}
        return tuple(i not in special and self._begins(t) for i, t in enumerate(self.tokens))

    def _begins(self, token: str) -> bool:
        if self.kind in ("word", "wordpiece"):
            return self.kind == "word" or not token.startswith("##")
        return token.startswith("Ġ" if self.byte_level else "▁")

    @cached_property
    def engine(self) -> "Tokenizer":
        return _engine(self.data)

    @cached_property
    def _known(self) -> dict[str, list[int]]:
        return {}

    def encode(self, text: str) -> list[int]:
        return self.encode_words(split(text, lowercase=False, symbols="single"))[0]

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids, and of how many each word has. Words repeat, so each is looked up once: its
        bounds are exact.
        """
        known = self._known
        fresh = {word: self._word(word) for word in dict.fromkeys(words) if word not in known}
        found = [fresh[word] if word in fresh else known[word] for word in words]
        if len(known) < REMEMBERED:
            known.update(fresh)
        return [i for ids in found for i in ids], [len(ids) for ids in found]

    def _word(self, word: str) -> list[int]:
        """A word that a foreign tokenizer would swallow is an unknown one, not none."""
        # a word has one form, also where a foreign tokenizer gives the first another
        blank = " " if self.byte_level else ""
        if self.reads_bytes and stray_bytes.has_stray(word):
            ids = [t.id for t in self.engine.model.tokenize(stray_bytes.in_symbols(blank + word))]
        else:
            said = blank + stray_bytes.readable(word)
            ids = self.engine.encode(said, add_special_tokens=False).ids
        return list(ids) or ([] if self.unk is None else [self.unk])

    def sequence(self, words: Sequence[str]) -> list[int]:
        return [self.bos, *self.encode_words(words)[0], self.eos]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.engine.decode(list(ids), skip_special_tokens=True)).removeprefix(" ")

    def decode_bytes(self, ids: Sequence[int]) -> str:
        """The same, and bytes that are no text stay what they are (vocabulary/stray_bytes.py)."""
        text = self.decode(ids)
        if "\ufffd" not in text or not self.reads_bytes:
            return text
        told = (self.tokens[i] for i in ids if i not in self._skipped)
        return stray_bytes.text_of(told).removeprefix(" ")

    @cached_property
    def reads_bytes(self) -> bool:
        """Whether its tokens are bytes, and nothing but that is done to a word first."""
        cut = json.loads(self.data).get("pre_tokenizer") or {}
        steps = {step.get("type") for step in cut.get("pretokenizers", [cut])}
        plain = self.engine.normalizer is None and steps <= {"WhitespaceSplit", "ByteLevel"}
        return self.byte_level and self.kind == "bpe" and plain

    @cached_property
    def _skipped(self) -> frozenset[int]:
        added = self.engine.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special)


def load(data: bytes) -> TrainedTokenizer:
    """A tokenizer.json of ours, or a foreign one that knows a beginning, an end and (unless it
    knows all bytes) <unk>.
    """
    tokenizer, described = _engine(data), json.loads(data)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = tuple(sorted(ids, key=lambda token: ids[token]))
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise DataError("the tokenizer's ids have gaps: it can't be used")
    roles = {
        role: next((ids[name] for name in names if name in ids), None)
        for role, names in USUAL.items()
    }
    byte_level = _has_type(described.get("pre_tokenizer"), "ByteLevel")
    bos, eos = roles["bos"], roles["eos"]
    if bos is None or eos is None or (roles["unk"] is None and not byte_level):
        raise DataError(
            f"the tokenizer lacks a special token: it needs {BOS}, {EOS} and {UNK}, or usual "
            "names for them"
        )
    kind = KINDS[type(tokenizer.model).__name__]
    return TrainedTokenizer(data, kind, byte_level, tokens, bos, eos, roles["unk"], roles["pad"])


def _engine(data: bytes) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data.decode())
        # no text has it: a model that can't say <unk> fails here, and not later
        tokenizer.encode("\U0010fffd")
    except Exception as error:  # the library raises no type of its own
        raise DataError(
            f"this is not a tokenizer.json that can be used: {' '.join(str(error).split())[:200]}"
        ) from error
    tokenizer.no_truncation()  # a foreign file may ask for both
    tokenizer.no_padding()
    return tokenizer


def _has_type(part: Any, name: str) -> bool:
    """Whether a part of a tokenizer.json, or one inside it, is of this type."""
    if isinstance(part, list):
        return any(_has_type(item, name) for item in part)
    return isinstance(part, dict) and (
        part.get("type") == name or any(_has_type(item, name) for item in part.values())
    )
