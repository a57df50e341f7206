"""`python -m clearhead` is the command `clearhead`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
