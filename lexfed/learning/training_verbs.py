"""The verbs of methods that average a model: train it, and say how good it is."""

import torch

from lexfed.wire.verbs import ANY, BOUND, CLOCK, NUMBER, UPDATE, Array, Form, Verb

# texts that a client counts for: what the request says at most
WEIGHT = Array((torch.float32,), low=1, high=1e9, most="most_texts")
BIT = Array((torch.float32,), low=-0.5, high=0.5)
FIGURE = Array((torch.float64,), low=0)
SHARE = Array((torch.float64,), low=0, high=1 + 1e-9)  # a quotient may be a little above 1
LIKELIHOOD = Array((torch.float64,), low=-1)  # and a logarithm a little below 0
COUNT = Array((torch.float64,), low=1)


def training(name: str, open: bool = False) -> Verb:
    """The model goes down, how it moved comes up. Who holds back sends nothing at all."""
    return Verb(
        name,
        down=Form({"model/": ANY}, (*CLOCK, *BOUND, "most_texts"), ("tokenizer",)),
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
        down=Form({"model/": ANY}, (*CLOCK, "split"), ("tokenizer",)),
        up=Form(figures, needs=(tuple(figures),)),
        kind="figures",
    )


TRAIN = training("train")
EVALUATE = evaluation(
    accuracy=SHARE,
    local_accuracy=SHARE,
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
