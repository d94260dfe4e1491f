"""The verbs of methods that average a model: train it, and say how good it is."""

import torch

from lexfed.wire.verbs import ANY, BOUND, CLOCK, NUMBER, UPDATE, Array, Form, Verb

FIGURE = Array((torch.float64,))


def training(name: str, open: bool = False) -> Verb:
    """The model goes down, how it moved comes up."""
    return Verb(
        name,
        down=Form({"model/": ANY}, (*CLOCK, *BOUND), ("tokenizer",)),
        up=Form({"delta/": UPDATE, "weight": NUMBER, "loss": NUMBER, "unclipped": NUMBER}),
        open=open,
        charged=True,
    )


def evaluation(*figures: str) -> Verb:
    """The model goes down, these figures come up."""
    return Verb(
        "evaluate",
        down=Form({"model/": ANY}, (*CLOCK, "split"), ("tokenizer",)),
        up=Form(dict.fromkeys(figures, FIGURE)),
        kind="figures",
    )


TRAIN = training("train")
EVALUATE = evaluation(
    "accuracy",
    "local_accuracy",
    "error",
    "local_error",
    "majority_accuracy",
    "macro_f1",
    "texts",
    "parameters_private",
)
EVALUATE_LANGUAGE = evaluation("nll", "words", "tokens", "right", "oov")
