"""A GPU that is not there, for tests of code that should run on one.

Every tensor on it is two: a fake one on `cuda` (or `mps`), which torch's FakeTensorMode computes
with and whose rules are a real device's (tensors of two devices don't mix), and a real one on the
CPU, which holds the numbers. Each operation is done with both. So a stray CPU tensor fails as it
would on a GPU, reading a number back works, and what was computed can be compared with the CPU.

For autograd such a tensor is on `meta`: of the devices that a CPU build of torch knows, that is the
one whose gradients need no hardware. Its `device` says where it pretends to be.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

# what reads numbers back, or makes as many as there are of something: no fake tensor can know
UNKNOWABLE = (DataDependentOutputException, DynamicOutputShapeException)


class OnDevice(Tensor):
    numbers: Tensor
    rules: FakeTensor

    @staticmethod
    def __new__(cls, real: Tensor, fake: FakeTensor) -> "OnDevice":
        made: OnDevice = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, real.shape, real.stride(), real.storage_offset(), dtype=real.dtype, device="meta"
        )
        made.numbers, made.rules = real, fake
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.rules.device

    def tolist(self) -> Any:
        return self.cpu().tolist()

    # torch would make a list of places into a tensor on `meta`, where it has no numbers
    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(torch.tensor(key) if isinstance(key, list) else key)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(torch.tensor(key) if isinstance(key, list) else key, value)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.device}, {tuple(self.shape)})"

    # what `return_and_correct_aliasing` asks of a tensor that is made of others
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "rules"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: None, size: Any, stride: Any) -> "OnDevice":
        return OnDevice(inner["numbers"], inner["rules"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called where the pretended device is not")


class Pretended(TorchDispatchMode):
    def __init__(self, device: torch.device, fakes: FakeTensorMode) -> None:
        super().__init__()
        self.place, self.fakes = device, fakes
        self.operations: set[str] = set()  # that were done on the device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        held, _ = tree_flatten((args, kwargs))
        # `meta` is where autograd believes our tensors to be
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "meta":
            wanted = kwargs["device"] = self.place
        here = wanted is not None and torch.device(wanted).type == self.place.type
        if not here and not any(isinstance(one, OnDevice) for one in held):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        for one in held:
            lost = isinstance(one, Tensor) and not isinstance(one, OnDevice)
            assert not (lost and one.device.type == "meta"), f"{func}: a tensor without numbers"
            if isinstance(one, torch.Generator):  # ours are the CPU's
                raise RuntimeError(f"{func}: expected a generator of the same device")
        self.operations.add(func.name())
        # the rules first: they must refuse before numbers are written in place
        fake = self._with_fakes(func, args, kwargs)
        real = self._with_numbers(func, args, kwargs)
        made = self._both(real, self._like(real) if fake is None else fake)
        return return_and_correct_aliasing(func, args, kwargs, made)

    def _with_numbers(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map_only(OnDevice, lambda one: one.numbers, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    def _with_fakes(self, func: Any, args: Any, kwargs: Any) -> Any:
        """None: it depends on numbers; then all of its tensors must be on the device."""

        def fake(one: Any) -> Any:
            if isinstance(one, OnDevice):
                return one.rules
            return self.fakes.from_tensor(one) if isinstance(one, Tensor) else one

        found_args, found_kwargs = tree_map(fake, (args, kwargs))
        if "out" in found_kwargs:
            return self._written(func, found_args, found_kwargs)
        try:
            with self.fakes:
                return func(*found_args, **found_kwargs)
        except UNKNOWABLE:
            self._refuse_strays(func, args, kwargs)
            return None

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What is written into `out`: a CPU build of torch can't copy between fake tensors, so it
        is made, and must be what `out` is.
        """
        out = kwargs.pop("out")
        name = func._overloadname.replace("_out", "").replace("out", "") or "default"
        with self.fakes:
            made = getattr(func.overloadpacket, name)(*args, **kwargs)
        if made.device != out.device:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        assert (made.shape, made.dtype) == (out.shape, out.dtype)
        return out

    def _refuse_strays(self, func: Any, args: Any, kwargs: Any) -> None:
        """A table on a device may be asked for rows by numbers and masks on the CPU, nothing else
        may.
        """
        held, _ = tree_flatten((args, kwargs))
        indexing = func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
        for one in held:
            stray = isinstance(one, Tensor) and not isinstance(one, OnDevice) and one.ndim
            if stray and not (indexing and one.dtype in (torch.bool, torch.int64)):
                raise RuntimeError(f"{func}: expected all tensors to be on the same device")

    def _like(self, real: Any) -> Any:
        """Fake tensors on the device, as large as the numbers turned out to be."""

        def fake(one: Tensor) -> Tensor:
            with self.fakes:
                return torch.empty_strided(
                    one.shape, one.stride(), dtype=one.dtype, device=self.place
                )

        return tree_map_only(Tensor, fake, real)

    def _both(self, real: Any, fake: Any) -> Any:
        def pair(number: Any, rule: Any) -> Any:
            if not isinstance(number, Tensor):
                return number
            if rule.device.type == "cpu":  # it was brought back
                return number
            if rule.dtype == torch.float64 and rule.device.type == "mps":
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
            assert (number.shape, number.dtype) == (rule.shape, rule.dtype)
            return OnDevice(number, rule)

        if isinstance(real, Tensor | tuple | list):
            return tree_map(pair, real, fake)
        return real


@contextmanager
def pretended(name: str, patch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    """A device of this name, such as cuda:0. Its own generator is torch's global one."""
    device, own = torch.device(name), torch.default_generator
    module = SimpleNamespace(
        get_rng_state=lambda *place: own.get_state(),
        set_rng_state=lambda state, *place: own.set_state(state),
        manual_seed=own.manual_seed,
        device=nullcontext,
    )
    fakes = FakeTensorMode(allow_non_fake_inputs=False)
    mode = Pretended(device, fakes)
    patch.setattr(torch, "get_device_module", lambda device=None: module)
    with fakes, mode:
        yield mode
