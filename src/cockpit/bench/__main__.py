"""``python -m cockpit.bench``."""

import sys

try:
    from cockpit.bench.command import main

    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
