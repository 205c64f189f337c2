#!/usr/bin/env bash
# Installs the command `tidemill` with all features into cargo's folder of programs. It is built as `make demo` builds it: much of what
# it runs is optimised, and the build takes less time than a release build.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

title "Install (the first time some minutes)"
cargo install --path cli --locked --debug --force "${optimised[@]}"
