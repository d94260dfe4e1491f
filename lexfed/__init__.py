"""lexfed: federated NLP in which the vocabulary is the subject."""

__version__ = "0.1.0"
