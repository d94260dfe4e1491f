"""The classifier in this folder, in plain torch. `python load.py "a text"` prints its label."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).parent


def load(folder: Path = HERE) -> Callable[[str], Tensor]:
    """A function that gives the logits of a text, one for each label of model.json."""
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    rule, weights = re.compile(about["words"]), load_file(folder / "model.safetensors")
    words = (folder / "vocabulary.txt").read_bytes().decode().split("\n")[:-1]
    ids = {word: i for i, word in enumerate(words)}
    lstm = torch.nn.LSTM(*about["sizes"], bidirectional=True)
    lstm.load_state_dict({n[5:]: w for n, w in weights.items() if n.startswith("lstm.")})

    @torch.no_grad()
    def logits(text: str) -> Tensor:
        found = rule.findall(re.sub("[\ud800-\udfff]", "\ufffd", text.lower()))
        row = [ids.get(word, 0) for word in found[: about["max_length"]]] or [0]
        states = lstm(weights["embedding.weight"][row])[0]  # (words, 2 * hidden)
        if about["pooling"] == "max":
            pooled: Tensor = states.amax(0)
        elif about["pooling"] == "attention":
            pooled = torch.softmax(torch.tanh(states) @ weights["attention.query"], 0) @ states
        else:
            pooled = states.mean(0)
        return weights["output.weight"] @ pooled + weights["output.bias"]

    return logits


if __name__ == "__main__":
    classify, labels = load(), json.loads((HERE / "model.json").read_text("utf-8"))["labels"]
    for text in sys.argv[1:]:
        chances = torch.softmax(classify(text), 0).tolist()
        print(labels[chances.index(max(chances))], dict(zip(labels, chances, strict=True)))
