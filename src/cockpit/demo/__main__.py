"""``python -m cockpit.demo``."""

import sys

try:
    from cockpit.demo.command import main

    sys.exit(main())
except KeyboardInterrupt:  # while torch is imported there is nothing to save
    sys.exit(130)
