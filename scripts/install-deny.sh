#!/usr/bin/env bash
# Installs cargo-deny in the pinned version, from source: about two minutes on two cores, once.
set -eu
version=0.20.2
if [ "$(cargo deny --version 2>/dev/null)" = "cargo-deny $version" ]; then
    exit 0
fi
printf 'installing cargo-deny %s from source; this takes a few minutes, once\n' "$version"
# Niced: a build that nobody waits for should not slow down the rest.
exec nice -n 19 cargo install --quiet --locked cargo-deny --version "=$version"
