"""Where models are computed: on the processor, or on an accelerator if somebody asks for one.

Messages, client states and the server's sums are on the CPU. A client moves the parameters to the
device once a request and its reply back once; in between every function allocates where its inputs
are. Ids, lengths and random draws are made on the CPU and moved, so that batches, dropout and noise
have the same bits everywhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params, Rows, Update, on_cpu

CPU = torch.device("cpu")
KNOWN = "cuda, cuda:N, mps, cpu or auto"


def chosen(name: str) -> torch.device:
    """The device that is meant; refused, if this machine does not have it."""
    if name == "auto":
        usable = [kind for kind in ("cuda", "mps") if _count(kind)]
        return torch.device(usable[0] if usable else "cpu")
    kind, colon, number = name.partition(":")
    sound = number.isascii() and number.isdigit() if colon else True
    if kind not in ("cuda", "mps", "cpu") or not sound or (colon and kind != "cuda"):
        raise ConfigError(f"--device '{name}' is not known: it is {KNOWN}")
    if kind == "cpu":
        return CPU
    here = _count(kind)
    if here == 0:
        raise ConfigError(f"--device {name}: torch sees no {kind} device here; say cpu or auto")
    if colon and int(number) >= here:
        raise ConfigError(f"--device {name}: this machine has cuda:0 to cuda:{here - 1}")
    return torch.device(kind, int(number)) if colon else torch.device(kind)


def _count(kind: str) -> int:
    if kind == "cuda":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    return int(torch.backends.mps.is_available())


def shared_out(device: torch.device, worker: int) -> torch.device:
    """Of one of several worker processes: `cuda` without a number is all there are, in turns."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", worker % _count("cuda"))


@contextmanager
def one_thread() -> Iterator[None]:
    """As in training: the last bits depend on how many threads add up."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(params: Params) -> torch.device:
    return next((value.device for value in params.values()), CPU)


def placed(params: Params, device: torch.device) -> Params:
    """The same parameters on this device; those that are there already are not copied."""
    return {name: value.to(device) for name, value in params.items()}


def at_home(params: Params) -> Params:
    return placed(params, CPU)


def update_at_home(update: Update) -> Update:
    """The same for what is about to be sent."""
    return {
        name: on_cpu(value) if isinstance(value, Rows) else value.to(CPU)
        for name, value in update.items()
    }


@contextmanager
def forked(device: torch.device, ours: torch.Generator) -> Iterator[None]:
    """The device's global generator starts where ours does, and is put back afterwards. It is for
    modules that draw from it themselves: each kind of device draws other numbers.
    """
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(ours.get_state())
            yield
        return
    module = torch.get_device_module(device)
    several = device.type == "cuda"  # of Apple's there is one, which takes no number
    place = (device,) if several else ()
    before = module.get_rng_state(*place)
    try:
        with module.device(device) if several else nullcontext():
            module.manual_seed(ours.initial_seed())
        yield
    finally:
        module.set_rng_state(before, *place)
