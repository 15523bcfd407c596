"""What ``cockpit show`` says when it is ready: one line with the address; and the browser, where there is a desktop."""

from __future__ import annotations

import json
import os
import sys
import threading
import webbrowser
from typing import TextIO

from cockpit.web.serving import Serving

WARNING = """\
cockpit: WARNING: everybody who can reach this machine at {host}, port {port}, can reach this server.
cockpit: WARNING: only the token keeps them out, and it travels unencrypted: who listens on the network reads it.
cockpit: WARNING: to look from elsewhere, `ssh -L {port}:localhost:{port} THIS-MACHINE` without --host is safer."""


def announce(
    serving: Serving, as_json: bool = False, browser: bool = True, file: TextIO | None = None
) -> None:
    """Print the address on standard output, warnings on standard error, and open a browser where one can be seen."""
    if not serving.is_local:
        print(WARNING.format(host=serving.host, port=serving.port), file=sys.stderr, flush=True)
    count = len(serving.library.entries())
    if as_json:
        facts = {"address": serving.address, "host": serving.host, "port": serving.port}
        print(json.dumps(facts | {"token": serving.token, "runs": count}), flush=True)
    else:
        places = ", ".join(str(root) for root in serving.library.roots)
        found = f"{count} run{'s' if count > 1 else ''}" if count else f"no runs yet in {places}"
        end = "ends with this program, or by .stop()" if serving.in_background else "Ctrl-C ends it"
        print(f"cockpit: {serving.address} ({found}; {end})", file=file, flush=True)
    if browser and sys.stdout is not None and sys.stdout.isatty() and has_desktop():
        # in a thread: some browsers keep whoever starts them waiting
        threading.Thread(target=webbrowser.open, args=(serving.invitation(),), daemon=True).start()


def has_desktop() -> bool:
    """Say whether a browser started here would be seen: not over ssh, and not without a screen."""
    if os.environ.get("SSH_CONNECTION") or os.environ.get("CI"):
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
