"""``python -m cockpit.launch``."""

import sys

from cockpit.launch.command import main

sys.exit(main())
