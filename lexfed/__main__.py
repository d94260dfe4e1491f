"""`python -m lexfed` is `lexfed`."""

from lexfed.cli import main

main()
