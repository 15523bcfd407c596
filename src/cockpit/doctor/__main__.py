"""``python -m cockpit.doctor``."""

import sys

try:
    from cockpit.doctor.command import main

    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
