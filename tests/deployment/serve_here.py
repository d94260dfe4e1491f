"""`lexfed server RUN --resume` as a process of its own, for a test to kill."""

import sys
from pathlib import Path

from lexfed.deployment import serving

if __name__ == "__main__":
    place = serving.Place(port=int(sys.argv[2]))
    serving.serve(Path(sys.argv[1]), place, lambda line: print(line, flush=True))
