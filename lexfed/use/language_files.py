"""A language model as files: weights, a tokenizer that `transformers` opens, and a program of plain
torch. (No configuration of `transformers` fits these models exactly: GPT-2's output has no bias.)
"""

import json
from pathlib import Path

from lexfed.experiment.config import Config
from lexfed.federation import ServerState
from lexfed.language.language_task import tokenizer_of
from lexfed.models import language_model
from lexfed.models.lstm_lm import LstmLanguageModel
from lexfed.models.transformer_lm import TransformerLanguageModel
from lexfed.use.classifier_files import write_loader, write_weights
from lexfed.vocabulary.export import tokenizer_files

LOADER = {LstmLanguageModel: "lstm_alone", TransformerLanguageModel: "transformer_alone"}
USE = """\
```python
import torch
from load import load  # load.py needs torch and safetensors, nothing else
from transformers import PreTrainedTokenizerFast

tokenizer, model = PreTrainedTokenizerFast.from_pretrained("."), load()
ids = tokenizer("a text")["input_ids"][:-1]  # it begins with <s>; without its end
logits = model(torch.tensor(ids))  # a row for the token after each
```
"""


def write(folder: Path, config: Config, state: ServerState) -> str:
    options = config.language_model
    loader = LOADER.get(type(language_model.build(options)))
    write_weights(folder, state.params)
    for name, data in tokenizer_files(
        tokenizer_of(state).tokenizer, config.tokenizer.lowercase
    ).items():
        (folder / name).write_bytes(data)
    about = {"layers": options.layers, "heads": options.heads, "context": options.context}
    (folder / "model.json").write_text(json.dumps(about, indent=1) + "\n")
    if loader is None:
        return f"`model.safetensors` holds the weights of `{options.name}`, a model of your own.\n"
    write_loader(folder, loader)
    longest = f"\nIt takes at most {options.context} tokens at once.\n"
    return USE + (longest if loader == "transformer_alone" else "")
