"""The live page: a server that only reads runs, for this machine alone unless told otherwise.

`serve` blocks until Ctrl-C, `serve_in_background` returns at once; both are used through ``cockpit show`` and
``Run.show()``.
"""

from cockpit.web.announcement import announce
from cockpit.web.serving import Serving, serve, serve_in_background

__all__ = ["Serving", "announce", "serve", "serve_in_background"]
