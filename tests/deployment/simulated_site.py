"""An organisation's process for parity tests: the real site process and its SuperNode, with the
texts and the secrets of a simulation put in.

    python -m tests.deployment.simulated_site SITE CONFIG.toml HOST:PORT PORT [--insecure]
"""

import sys
from pathlib import Path

from lexfed.deployment import attending
from lexfed.experiment import config as configuration
from lexfed.site import site_file
from tests.organisations import simulated


def main(folder: str, config: str, address: str, port: str, *more: str) -> None:
    mine = site_file.load(Path(folder) / "site.toml")
    node = attending.node_of(mine, address, int(port), "--insecure" in more)
    open_with = simulated(configuration.load(Path(config)))
    attending.attend(mine, node, lambda line: print(line, flush=True), open_with=open_with)


if __name__ == "__main__":
    main(*sys.argv[1:])
