"""``python -m benchmarks``."""

import sys

from benchmarks.command import main

try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
