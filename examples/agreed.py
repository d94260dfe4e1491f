"""Federated Word2Vec: ten organisations agree on a word list and train vectors together."""

from pathlib import Path

import lexfed

QUICK = Path(__file__).parent.parent / "experiments" / "quick"
small = {"data.limit": 3000, "rounds": 4, "word2vec.dimension": 32, "agreement.minimum": 5}

run = lexfed.run(QUICK / "agreed.toml", settings=small, workers=2, quiet=True)
figures = run.summary
print(f"{figures['vocabulary_size']:,} words that at least two of them hold")
print(
    f"loss together {figures['heldout_loss']:.3f}, the best one alone "
    f"{figures['alone_heldout_loss']:.3f}"
)
print("neighbours of funny:", figures["neighbours"]["funny"]["federated"])
