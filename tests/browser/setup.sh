#!/bin/sh
# What the browser tests need, installed where it is missing: Chromium (Debian's, when this is root), Playwright, axe-core.
set -eu
folder=$1 python=$2
mkdir -p "$folder"

if ! command -v chromium >/dev/null && [ -z "${CHROMIUM:-}" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Chromium"
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
  else
    echo "The browser tests need Chromium: install it, or set CHROMIUM=/path/to/chrome" >&2
    exit 1
  fi
fi
if ! command -v npm >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends npm >/dev/null
  else
    echo "The browser tests need npm, for axe-core" >&2
    exit 1
  fi
fi
"$python" -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
npm install --silent --no-audit --no-fund --no-save --prefix "$folder" axe-core@4.14.0 2>/dev/null
touch "$folder/.installed"
