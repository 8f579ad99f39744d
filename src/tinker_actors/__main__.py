"""`python -m tinker_actors`: the command line."""

import sys

from tinker_actors.cli import main

if __name__ == "__main__":
    sys.exit(main())
