"""The language model in this folder, in plain torch. The ids are those of tokenizer.json."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).parent


def load(folder: Path = HERE) -> Callable[[Tensor], Tensor]:
    """A function of the ids (T,) of a text, <s> first and at most as many as there are positions:
    the logits (T, V) of the token after each.
    """
    about, w = (
        json.loads((folder / "model.json").read_text()),
        load_file(folder / "model.safetensors"),
    )

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    @torch.no_grad()
    def logits(ids: Tensor) -> Tensor:
        x = w["embedding.weight"][ids] + w["positions.weight"][: len(ids)]
        for at in (f"layers.{layer}" for layer in range(about["layers"])):
            three = linear(f"{at}.attend", norm(f"{at}.norm1", x))
            q, k, v = three.reshape(1, len(ids), 3, about["heads"], -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
            x = x + linear(f"{at}.project", mixed.transpose(0, 1).flatten(1))
            inside = F.gelu(linear(f"{at}.expand", norm(f"{at}.norm2", x)))
            x = x + linear(f"{at}.contract", inside)
        return norm("norm", x) @ w.get("output.weight", w["embedding.weight"]).T + w["output.bias"]

    return logits
