"""Windows of text8 by topic, for one organisation alone: `data.name = "text8_windows:finance"`.

text8.parquet lies in the folder LEXFED_DATA; its topics are weak labels, from seed words.
"""

import os
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import Table


def finance() -> Table:
    """What one organisation of finance could know: half of the windows of its topic."""
    windows = topics()
    return windows.filter(pc.equal(windows["topic"], "finance"))[::2]


def topics() -> Table:
    """Every window that has a topic, in one place."""
    windows = pq.read_table(Path(os.environ["LEXFED_DATA"]) / "text8.parquet")
    return windows.filter(pc.is_valid(windows["topic"]))
