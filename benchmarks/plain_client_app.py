"""A plain ClientApp, to measure the relay against: it loads torch, lexfed and the texts anew for
every message, as a Flower app usually does. It is shipped in the relay's place by
`flower_messages.py`, and by nobody else: this is what lexfed does not do.
"""

from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("letter")
def answer(message: Message, context: Context) -> Message:
    import torch

    from lexfed.site import site_file, site_log
    from lexfed.site.desk import Desk

    torch.set_num_threads(1)
    mine = site_file.load(Path(str(context.node_config["lexfed-socket"])) / "site.toml")
    desk = Desk(mine, site_log.opened(mine.folder / "site.log"))
    record: Any = message.content["letter"]
    parts = desk.answer(*(bytes(record[name].data) for name in ("head", "body")))
    arrays = {
        name: Array(dtype="uint8", shape=(len(part),), stype="bytes", data=part)
        for name, part in zip(("head", "body"), parts, strict=True)
    }
    return Message(RecordDict({"letter": ArrayRecord(arrays)}), reply_to=message)
