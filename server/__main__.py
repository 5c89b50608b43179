"""`python -m server`: the same as the console script `rejoinder`."""

import sys

from server.cli import main

sys.exit(main())
