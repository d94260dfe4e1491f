"""Where words come from: vocabularies, and the tokenizers that use them."""
