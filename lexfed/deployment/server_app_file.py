"""Where the ServerApp's file lies, and what it is told. Importing the file itself takes Flower."""

from pathlib import Path

PATH = Path(__file__).with_name("server_app.py")
RUN = "LEXFED_SERVER_RUN"  # the run's directory, on the server's own disk
