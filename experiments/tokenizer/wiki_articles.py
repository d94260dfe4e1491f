"""WikiText-2 with an article for a user: `data.name = "wiki_articles:load"`.

wikitext2.parquet lies in the folder LEXFED_DATA. All of it is public, so what a language model
quotes of these users may be shown.
"""

import os
from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import Table


def load() -> Table:
    lines = pq.read_table(Path(os.environ["LEXFED_DATA"]) / "wikitext2.parquet")
    return Table.from_arrays([lines["text"], lines["article"]], names=["text", "user"])
