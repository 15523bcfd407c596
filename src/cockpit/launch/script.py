"""Running a script or a module as the interpreter itself would."""

from __future__ import annotations

import io
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

OURS = (str(Path(__file__).parent), runpy.__file__, "<frozen runpy>")
"""Where the frames come from that are none of the script's."""


def execute(script: str, arguments: list[str], is_module: bool) -> None:
    """Run a file, or (``is_module``) a module by its name, as ``__main__``; whatever it raises is raised.

    An exception that nobody catches is printed as without us, because its traceback begins in the script.
    """
    sys.argv = [script, *arguments]
    try:
        if is_module:
            _first_on_path(os.getcwd())
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        elif Path(script).is_dir() or not _is_source(script):  # a folder or an archive with a __main__.py
            if sys.path and not sys.flags.safe_path:
                del sys.path[0]
            runpy.run_path(script, run_name="__main__")
        else:
            _run_file(script)
    except SystemExit:
        raise
    except BaseException:
        told = sys.excepthook

        def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            own = without_ours(trace)
            told(kind, error.with_traceback(own), own)

        sys.excepthook = tell
        raise


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames, wherever they are; None if nothing else is there (a syntax error)."""
    kept, step = [], trace
    while step is not None:
        if not step.tb_frame.f_code.co_filename.startswith(OURS):
            kept.append(step)
        step = step.tb_next
    found: TracebackType | None = None
    for part in reversed(kept):
        found = TracebackType(found, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return found


def _run_file(script: str) -> None:
    """Run a source file in a module that stays: threads and handlers of the script may outlive its last line."""
    main, path = ModuleType("__main__"), os.path.join(os.getcwd(), script)
    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    vars(main).update(__builtins__=__builtins__, __cached__=None, __annotations__={})
    _first_on_path(str(Path(os.path.realpath(script)).parent))
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    global _before
    _before, sys.modules["__main__"] = sys.modules.get("__main__"), main
    exec(code, vars(main))


_before: ModuleType | None = None
"""Our own ``__main__``: a module that nobody holds loses what its functions need."""


def _first_on_path(folder: str) -> None:
    """Put a folder in the place of the one that the interpreter put there for us."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def _is_source(script: str) -> bool:
    with open(script, "rb") as file:
        return file.read(4) != b"PK\x03\x04"
