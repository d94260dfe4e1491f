"""TensorBoard events beside rounds.jsonl, for who watches many runs."""

from importlib.util import find_spec
from pathlib import Path

from lexfed.core.errors import ConfigError
from lexfed.report.progress import Ahead, Events, Scoring


def require() -> None:
    if find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs: pip install 'lexfed[tensorboard]'")


def with_events(records: Events, folder: Path) -> Events:
    """Pass the records on, and write every number in them as a scalar."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for record in records:
            if isinstance(record, Scoring | Ahead):
                yield record
                continue
            figures = {
                **{k: v for k, v in record.items() if k not in ("round", "metrics")},
                **record["metrics"],
            }
            for name, value in figures.items():
                if isinstance(value, int | float):
                    writer.add_scalar(name, value, record["round"])
            yield record
