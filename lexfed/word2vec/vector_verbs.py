"""The verbs of word vectors.

A client says which version of the tables it holds, gets the vocabulary once, then the rows that
changed since.
"""

from lexfed.learning.training_verbs import FIGURE
from lexfed.wire import Form, Verb
from lexfed.wire.verbs import ANY, CLOCK, NUMBER, UPDATE

# rows that changed since which version, and the shape of their table
_ROWS = ("since", "version", "rows", "width")

VERSION = Verb(
    "version", down=Form(meta=CLOCK), up=Form(meta=("version",)), kind="list", prepares=True
)
VOCABULARY = Verb(
    "vocabulary",
    down=Form(meta=CLOCK, blobs=("vocabulary",)),
    up=Form(),
    kind="list",
    prepares=True,
)
SKIPGRAM = Verb(
    "skipgram",
    down=Form({"rows/": ANY}, (*CLOCK, *_ROWS)),
    up=Form({"delta/": UPDATE, "weight": NUMBER, "loss": NUMBER, "nodes": NUMBER}),
)
# who lacks more than the rows it was sent says which version it holds, and is asked again
EVALUATE = Verb(
    "evaluate",
    down=Form({"rows/": ANY}, (*CLOCK, *_ROWS), ("vocabulary",)),
    up=Form({"heldout_loss": FIGURE, "pairs": FIGURE}, ("version",)),
    kind="figures",
)
