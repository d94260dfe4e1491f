"""What language models of users share: reading, training, scoring, and switching the tokenizer."""
