"""Texts of one's own, from a list or a data frame: who holds what, a run, and its results in
Python.
"""

import lexfed

GOOD, BAD = "a fine and moving film", "a dull film without a story"
texts = {
    "text": [f"{GOOD if i % 2 else BAD}, number {i}" for i in range(400)],
    "label": ["good" if i % 2 else "bad" for i in range(400)],
    "user": [f"critic {i % 20}" for i in range(400)],
}  # or a pandas frame with these columns, or a Hugging Face data set

people = lexfed.partition(texts, clients=10, partition="user")
print(len(people), "clients; the first has", len(people.client(0).train), "texts")

setup = {
    "name": "critics",
    "method": "fedevocab",
    "rounds": 3,
    "data": {"clients": 10, "partition": "user"},
    "model": {"embedding": 8, "hidden": 8},
    "cohort": {"size": 5},
}
run = lexfed.run(setup, corpus=texts, workers=2)
print(run.summary["global_accuracy"], run.summary["bytes_up"])
print(run.rounds)
