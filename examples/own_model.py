"""A model of one's own: the mean of a text's word vectors, and a linear layer.

lexfed run examples/own_method.toml --set model.name=own_model:MODEL --set method=fedavg
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import lexfed
from lexfed.core.seeds import torch_generator
from lexfed.models.model import EMBEDDING, HEAD, TABLE, ModelOptions, embed


@dataclass(frozen=True)
class BagOfWords:
    dimension: int
    classes: int

    word_table = TABLE  # the parameter with a row for every word
    first_layer = frozenset({"output.weight", "output.bias"})  # what reads the word vectors
    inputs = ("output.weight",)  # what multiplies them

    def init(self, vocab_size, seed):
        # a generator for each: the size of one never moves the start of another
        def normal(name, *shape):
            return 0.1 * torch.randn(shape, generator=torch_generator(lexfed.derive(seed, name)))

        table, weight = (
            normal(TABLE, vocab_size, self.dimension),
            normal("output", self.classes, self.dimension),
        )
        return {TABLE: table, "output.weight": weight, "output.bias": torch.zeros(self.classes)}

    def logits(self, params, batch, seed) -> Tensor:  # (B, C)
        # (B, T): real words, not padding
        read = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
        # (B, d)
        mean = (embed(params, batch.ids) * read[..., None]).sum(1) / batch.lengths[:, None]
        return mean @ params["output.weight"].T + params["output.bias"]

    def depth(self, name):
        return EMBEDDING if name.startswith("embedding") else HEAD


def build(options: ModelOptions, classes: int) -> BagOfWords:
    return BagOfWords(options.embedding, classes)


MODEL = lexfed.ModelEntry(build)
