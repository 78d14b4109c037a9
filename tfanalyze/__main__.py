"""``python -m tfanalyze``."""

from tfanalyze.cli import main

main()
