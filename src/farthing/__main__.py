"""`python -m farthing`: the command line."""

import sys

from farthing.cli import main

sys.exit(main())
