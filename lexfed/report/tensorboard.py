"""TensorBoard events beside rounds.jsonl, for who watches many runs."""

from collections.abc import Iterator
from pathlib import Path

from lexfed.errors import ConfigError
from lexfed.rundir import Record


def with_events(records: Iterator[Record], folder: Path) -> Iterator[Record]:
    """Pass the records on, and write every number in them as a scalar."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs: pip install 'lexfed[tensorboard]'") from error
    return _written(records, SummaryWriter(str(folder)))


def _written(records: Iterator[Record], writer: "SummaryWriter") -> Iterator[Record]:  # type: ignore[name-defined] # noqa: F821
    with writer:
        for record in records:
            figures = {**{k: v for k, v in record.items() if k not in ("round", "metrics")}, **record["metrics"]}
            for name, value in figures.items():
                if value is not None:
                    writer.add_scalar(name, value, record["round"])
            yield record
