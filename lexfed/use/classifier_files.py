"""A classifier as files: for `transformers` where it is one of its models, else weights, words and
a program of plain torch.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from lexfed.core.params import Params
from lexfed.learning.evaluation import InUse
from lexfed.learning.task import Task
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.encoder import EncoderClassifier
from lexfed.models.model import PROJECTION, TABLE, Classifier, Wrapping
from lexfed.vocabulary.pretrained import PretrainedTokenizer
from lexfed.vocabulary.reading import PrivateReader, Reader, SharedReader
from lexfed.vocabulary.splitting import spelled_out
from lexfed.wire import Message, encode

LOADERS = Path(__file__).parent / "loaders"
WEIGHTS = "model.safetensors"

TRANSFORMERS = """\
```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForSequenceClassification.from_pretrained(".").eval()
inputs = tokenizer(["a text"], truncation=True, padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits
```
"""
PLAIN_TORCH = """\
```python
from load import load  # load.py needs torch and safetensors, nothing else

logits = load()("a text")  # one a class, in the order of "labels" in model.json
```
"""


def write(folder: Path, task: Task, model: InUse, labels: Sequence[str | int]) -> str:
    """The model and what it reads texts with; how to use them, for the card."""
    inside, params = unwrapped(task.model, model.params)
    if isinstance(inside, EncoderClassifier):
        return _encoder(folder, inside, params, model.reader, labels)
    words, params = with_all_words(params, model.reader)
    write_weights(folder, params)
    if words is not None:
        (folder / "vocabulary.txt").write_bytes("".join(f"{word}\n" for word in words).encode())
    about = {
        "labels": list(labels),
        "max_length": task.options.max_length,
        "words": spelled_out("runs"),  # of a text in lower case
    }
    if isinstance(inside, BiLSTMClassifier):
        about["sizes"] = [inside.options.embedding, inside.options.hidden]
        about["pooling"] = inside.options.pooling
        write_loader(folder, "bilstm_alone")
    written = json.dumps(about, ensure_ascii=False, indent=1)
    (folder / "model.json").write_text(f"{written}\n", encoding="utf-8")
    if isinstance(inside, BiLSTMClassifier):
        return PLAIN_TORCH
    return f"`{WEIGHTS}` holds the weights of `{type(inside).__name__}`, a model of your own.\n"


def write_weights(folder: Path, params: Params) -> None:
    (folder / WEIGHTS).write_bytes(encode(Message(params)))


def write_loader(folder: Path, name: str) -> None:
    (folder / "load.py").write_bytes((LOADERS / f"{name}.py").read_bytes())


def unwrapped(model: Classifier, params: Params) -> tuple[Classifier, Params]:
    """The classifier itself, where a method has put something around it."""
    while isinstance(model, Wrapping):
        params = model.whole(params)
        model = model.model
    return model, params


def _encoder(
    folder: Path,
    model: EncoderClassifier,
    params: Params,
    reader: Reader,
    labels: Sequence[str | int],
) -> str:
    model.save(folder, params, [str(label) for label in labels])
    if isinstance(reader, SharedReader) and isinstance(reader.tokenizer, PretrainedTokenizer):
        reader.tokenizer.save(folder)
    return TRANSFORMERS


def with_all_words(params: Params, reader: Reader) -> tuple[list[str] | None, Params]:
    """The words in the order of the table's rows; a private table with all rows of the public one
    behind its own, brought to the width that the model reads. None: texts are read otherwise.
    """
    if isinstance(reader, SharedReader):
        return list(reader.tokenizer.vocabulary.tokens), params
    if not isinstance(reader, PrivateReader):
        return None, params
    words, table = list(reader.own), params[TABLE]
    if reader.public is not None:
        known = set(words)
        # a word with a blank inside is met in no text
        more = [w for w in reader.public.words if w not in known and len(w.split()) == 1]
        words, table = [*words, *more], torch.cat([table, reader.public.rows(more)])
    if PROJECTION in params:
        table = table @ params[PROJECTION]
    rest = {name: value for name, value in params.items() if name != PROJECTION}
    return words, {**rest, TABLE: table}
