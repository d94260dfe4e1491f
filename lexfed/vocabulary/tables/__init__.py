"""Public word vectors: files of them, turned, or brought together."""
