"""The verbs of methods that average a model: train it, and say how good it is."""

import torch

from lexfed.wire.verbs import ANY, BOUND, CLOCK, NAMED, NUMBER, UPDATE, Array, Form, Verb

# texts that a client counts for: what the request says at most
WEIGHT = Array((torch.float32,), low=1, high=1e9, most="most_texts")
BIT = Array((torch.float32,), low=-0.5, high=0.5)
FIGURE = Array((torch.float64,), low=0)
SHARE = Array((torch.float64,), low=0, high=1 + 1e-9)  # a quotient may be a little above 1
LIKELIHOOD = Array((torch.float64,), low=-1)  # and a logarithm a little below 0
COUNT = Array((torch.float64,), low=1)
# -log of a share, which is never taken for less than half a text of those the request speaks of
LOST = Array((torch.float64,), low=0, high=100, most="most_lost")


def training(name: str, open: bool = False) -> Verb:
    """The model goes down, how it moved comes up. Who holds back sends nothing at all."""
    return Verb(
        name,
        down=Form({"model/": ANY}, (*CLOCK, *BOUND, "most_texts", NAMED), ("tokenizer",)),
        up=Form(
            {"delta/": UPDATE, "weight": WEIGHT, "loss": NUMBER, "unclipped": BIT},
            needs=(("weight",), ()),
        ),
        open=open,
        charged=True,
    )


def evaluation(**figures: Array) -> Verb:
    """The model goes down, these figures come up."""
    return Verb(
        "evaluate",
        down=Form({"model/": ANY}, (*CLOCK, "split", "most_lost"), ("tokenizer",)),
        up=Form(figures, needs=(tuple(figures),)),
        kind="figures",
    )


TRAIN = training("train")
# Sums over clients are all that is needed of them: so a spread has its squares.
EVALUATE = evaluation(
    accuracy=SHARE,
    accuracy_square=SHARE,
    accuracy_lost=LOST,
    local_accuracy=SHARE,
    local_accuracy_square=SHARE,
    error=SHARE,
    local_error=SHARE,
    majority_accuracy=SHARE,
    macro_f1=SHARE,
    texts=COUNT,
    parameters_private=FIGURE,
)
EVALUATE_LANGUAGE = evaluation(
    nll=LIKELIHOOD, words=FIGURE, tokens=FIGURE, right=FIGURE, oov=FIGURE
)
