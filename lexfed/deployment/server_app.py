"""The ServerApp, which runs beside the SuperLink: it drives the run that the environment names.

This file is the app: `bundle.py` copies it as it is. All it holds is the way to lexfed, which must
be installed where the SuperLink runs.
"""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

RUN = "LEXFED_SERVER_RUN"  # the run's directory, on the server's own disk

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from lexfed.deployment.driving import drive
    from lexfed.runtime.flower.grid_carrier import GridCarrier

    drive(GridCarrier(grid), Path(os.environ[RUN]))
