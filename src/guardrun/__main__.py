"""`python -m guardrun` is `guardrun`."""

import sys

from guardrun.launcher.main import main

if __name__ == "__main__":
    sys.exit(main())
