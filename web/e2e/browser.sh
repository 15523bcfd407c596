#!/usr/bin/env bash
# Prints the path of a Chromium for the browser tests; installs Debian's if there is none.
# Prints nothing, with the reason on stderr, where none can be had: an error under CI=true, a skip elsewhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
own="${VENV:-.venv}/chromium"

found() {
    if [ -n "${CHROMIUM:-}" ]; then
        [ -x "$CHROMIUM" ] && { echo "$CHROMIUM"; return; }
        echo "browser tests: CHROMIUM=$CHROMIUM is not a program" >&2
        exit 1
    fi
    local mac="/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
    command -v chromium || command -v chromium-browser || command -v google-chrome || command -v chrome ||
        { [ -x "$mac" ] && echo "$mac"; } || { [ -x "$own/run" ] && echo "$PWD/$own/run"; }
}

# Without root: the packages and those they need, unpacked beside the environment.
unpack() {
    mkdir -p "$own/archives/partial" "$own/lists/partial"
    local apt=(apt-get -qq -o Debug::NoLocking=1 -o "Dir::State::lists=$PWD/$own/lists"
        -o "Dir::Cache=$PWD/$own" -o "Dir::Cache::archives=$PWD/$own/archives")
    "${apt[@]}" update || return
    "${apt[@]}" install --yes --no-install-recommends --download-only chromium || return
    local package
    for package in "$own"/archives/*.deb; do dpkg -x "$package" "$own/root" || return; done
    rm -rf "$own/archives" "$own/lists" "$own"/*.bin
    cat >"$own/run" <<'RUN'
#!/bin/sh
root="$(dirname "$(readlink -f "$0")")/root"
libraries="$(find "$root/usr/lib" "$root/lib" -name '*.so*' -printf '%h\n' 2>/dev/null | sort -u | tr '\n' ':')"
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}" exec "$root/usr/lib/chromium/chromium" "$@"
RUN
    chmod +x "$own/run"
}

found && exit
if command -v apt-get >/dev/null; then
    echo "Installing chromium for the browser tests (about 100 MB, once)." >&2
    if [ "$(id -u)" = 0 ]; then
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium; } >&2 || true
    else
        unpack >&2 || true
    fi
    found && exit
fi
echo "browser tests: no Chromium here; install one, or name it: CHROMIUM=/path/to/chromium" >&2
[ "${CI:-}" != true ]
