"""What can go wrong in a way a user can mend. The command line prints each as one line and exits
with 2.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class LexfedError(Exception):
    """An error of use: the message says what is wrong and what to do."""


class ConfigError(LexfedError):
    """A configuration that can't be meant."""


class DataError(LexfedError):
    """A corpus that is missing, empty or not what the configuration says."""


class WireError(LexfedError):
    """A message that does not have the form its verb allows."""


class PrivacyError(LexfedError):
    """Something private was about to be sent. Nothing was."""


class NotAgreedError(PrivacyError):
    """A client was asked for what its own configuration does not allow. It sends nothing."""


class DivergedError(LexfedError):
    """Training left the numbers. What was good before it is kept."""


class BudgetSpent(LexfedError):  # noqa: N818 - it is no fault: training ends here
    """The next release would cost more privacy than was granted."""


class CheckpointError(LexfedError):
    """A checkpoint that is damaged, missing or of another run."""


class WorkerDied(LexfedError):  # noqa: N818 - it says what happened
    """A worker process ended before its work. What was good before it is kept."""


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
