"""The language model in this folder, in plain torch. The ids are those of tokenizer.json."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).parent


def load(folder: Path = HERE) -> Callable[[Tensor], Tensor]:
    """A function of the ids (T,) of a text, <s> first: logits (T, V) of the token after each."""
    weights = load_file(folder / "model.safetensors")
    table = weights["embedding.weight"]
    inside = {name[5:]: w for name, w in weights.items() if name.startswith("lstm.")}
    lstm = torch.nn.LSTM(table.shape[1], table.shape[1], len(inside) // 4)
    lstm.load_state_dict(inside)

    @torch.no_grad()
    def logits(ids: Tensor) -> Tensor:
        states: Tensor = lstm(table[ids])[0]
        return states @ weights.get("output.weight", table).T + weights["output.bias"]

    return logits
