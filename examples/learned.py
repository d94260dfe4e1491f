"""Tokenizer for free: a change of the tokenizer costs no privacy."""

from pathlib import Path

import lexfed

QUICK = Path(__file__).parent.parent / "experiments" / "quick"
small = {
    "data.clients": 400, "data.unseen": 20, "rounds": 6,
    "tokenizer.size": 800, "language_model.width": 48,
    "tokenizer_for_free.switch": [3], "tokenizer_for_free.sample_words": 5000,
}  # fmt: skip

run = lexfed.run(QUICK / "learned.toml", settings=small, workers=2, quiet=True)
before, after = run.summary["before_switch"], run.summary["after_switch"]
print(
    f"tokens per word: {before['tokens_per_word']:.3f} before, {after['tokens_per_word']:.3f} "
    "after the switch"
)
print(run.summary["privacy"])
