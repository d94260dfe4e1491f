"""Updates as arrays, in fewer bits if asked to: `name#fp16`, `name#int8` with `name#scale`,
`name#ids` of rows.
"""

from typing import Literal

import torch
from torch import Tensor

from lexfed.core.params import Params, Rows, Update

Precision = Literal["fp32", "fp16", "int8"]


def pack(
    update: Update, precision: Precision = "fp32", generator: torch.Generator | None = None
) -> Params:
    """An update as arrays, in fewer bits if asked to. Rows travel as their ids, their values and
    how often each was moved.

    Rounding is stochastic, so that the mean over many clients is right: each number goes up or down
    by chance, in expectation to itself. int8 has one scale per row. Names come in order, so that
    the same chance meets the same number whatever way the model came (a resumed run reads it from a
    file).
    """
    arrays: dict[str, Tensor] = {}
    for name, value in sorted(update.items()):
        if isinstance(value, Rows):
            arrays |= _pack_rows(name, value, precision, generator)
        elif precision == "fp32" or value.ndim == 0:
            arrays[name] = value
        elif precision == "fp16":
            arrays[f"{name}#fp16"] = _round_half(value, generator)
        else:
            scale = value.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
            steps = value / scale + torch.rand(value.shape, generator=generator)
            arrays |= {
                f"{name}#int8": steps.floor().clamp(-127, 127).to(torch.int8),
                f"{name}#scale": scale,
            }
    return arrays


def _pack_rows(
    name: str, rows: Rows, precision: Precision, generator: torch.Generator | None
) -> Params:
    arrays = {f"{name}#ids": rows.ids.to(torch.int32)}
    if rows.scale is not None or precision == "fp32":
        arrays[f"{name}#values"] = rows.values
        arrays |= {f"{name}#scale": rows.scale} if rows.scale is not None else {}
    elif precision == "fp16":
        arrays[f"{name}#values"] = _round_half(rows.values, generator)
    else:
        from lexfed.core.kernels import round_rows  # compiled: loaded when first needed

        seed = int(torch.randint(2**62, (1,), generator=generator))
        steps, scale = round_rows(rows.values.numpy(), seed)
        arrays |= {
            f"{name}#values": torch.from_numpy(steps),
            f"{name}#scale": torch.from_numpy(scale),
        }
    for part, value in (("counts", rows.counts), ("nodes", rows.nodes)):
        arrays |= {f"{name}#{part}": value.to(torch.int32)} if value is not None else {}
    if rows.squares is not None:  # of a sum: no client sends them
        arrays[f"{name}#squares"] = rows.squares
    return arrays


def _unpack_rows(name: str, arrays: Params) -> Rows:
    values, scale = arrays[f"{name}#values"], arrays.get(f"{name}#scale")
    counts, nodes = (arrays.get(f"{name}#{part}") for part in ("counts", "nodes"))
    return Rows(
        arrays[f"{name}#ids"].long(),
        values if scale is not None or values.dtype == torch.float64 else values.float(),
        scale,
        counts.long() if counts is not None else None,
        nodes.long() if nodes is not None else None,
        arrays.get(f"{name}#squares"),
    )


def _round_half(value: Tensor, generator: torch.Generator | None) -> Tensor:
    """To one of the two neighbouring half-precision numbers, the nearer one more often."""
    value = value.clamp(-65504, 65504)
    near = value.half()
    other = torch.nextafter(near, torch.where(value > near.float(), torch.inf, -torch.inf).half())
    gap = (other.float() - near.float()).abs()
    # how far on the way to the other
    share = torch.where(gap > 0, (value - near.float()).abs() / gap, 0.0)
    return torch.where(torch.rand(value.shape, generator=generator) < share, other, near)


def unpack(arrays: Params) -> Update:
    update: dict[str, Tensor | Rows] = {}
    for name, value in arrays.items():
        base, _, part = name.partition("#")
        if part == "ids":
            update[base] = _unpack_rows(base, arrays)
        elif f"{base}#ids" in arrays:
            continue
        elif part == "fp16":
            update[base] = value.float()
        elif part == "int8":
            update[base] = value.float() * arrays[f"{base}#scale"]
        elif not part:
            update[base] = value
    return update
