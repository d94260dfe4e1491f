"""The verbs of word vectors.

A client says which version of the tables it holds, gets the vocabulary once, then the rows that
changed since.
"""

import torch

from lexfed.learning.training_verbs import FIGURE
from lexfed.wire import Array, Form, Verb
from lexfed.wire.verbs import ANY, CLOCK, NUMBER, TOGETHER

# rows that changed since which version, and the shape of their table
_ROWS = ("since", "version", "rows", "width")
# of the tables that a client holds; -1: of none. Nobody is ahead of the server
_HELD = {"version": Array(low=-1, most="version")}
# A word vector in good health is shorter than 20: who moves one of its numbers by more than there
# and back has left the numbers, or lies.
LONGEST_MOVE = 40.0
MOVES = Array(like="rows", low=-LONGEST_MOVE, high=LONGEST_MOVE)

VERSION = Verb(
    "version",
    down=Form(meta=(*CLOCK, "version")),
    up=Form(meta=_HELD, needs=(("version",),)),
    kind="list",
    prepares=True,
)
VOCABULARY = Verb(
    "vocabulary",
    down=Form(meta=CLOCK, blobs=("vocabulary",)),
    up=Form(),
    kind="list",
    prepares=True,
)
# where sums are secure, everybody sends the same rows: all, or only these
_TRAINS = Form({"rows/": ANY, "only/": ANY}, (*CLOCK, *_ROWS, "most_pairs", TOGETHER))
SKIPGRAM = Verb(
    "skipgram",
    down=_TRAINS,
    up=Form(
        {
            "delta/": MOVES,
            "weight": Array((torch.float32,), low=0),
            "loss": NUMBER,
            "nodes": Array((torch.float32,), low=1, high=1),
        },
        needs=(("weight", "loss", "nodes"),),
    ),
    unlike=True,
)
# which rows would be moved, for a secure sum of it
_TOUCHED = Array((torch.int64,), ("rows",), low=0, high=1)
TOUCH = Verb(
    "touch",
    down=_TRAINS,
    up=Form({"input": _TOUCHED, "output": _TOUCHED}, needs=(("input", "output"),)),
    unlike=True,
)
# who lacks more than the rows it was sent says which version it holds, and is asked again
EVALUATE = Verb(
    "evaluate",
    down=Form({"rows/": ANY}, (*CLOCK, *_ROWS), ("vocabulary",)),
    up=Form(
        {"heldout_loss": FIGURE, "pairs": FIGURE},
        _HELD,
        needs=(("heldout_loss", "pairs"), ("version",)),
    ),
    kind="figures",
    unlike=True,
)
