#!/usr/bin/env bash
# Makes the wheel of Tidemill in target/wheels: the command `tidemill` and the package `tidemill`, for `pip install`.
#
#   scripts/wheel.sh                    with a release build (profile `image`; the first time a long while)
#   scripts/wheel.sh --dev              with the development build: for tests
#   scripts/wheel.sh --program FILE     with this program
#
# The last line of the output is the file.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=${CARGO_TARGET_DIR:-target}
how=release program=''
while [ $# -gt 0 ]; do
  case $1 in
    --dev) how=dev ;;
    --program) how=given program=${2:?--program wants a file} && shift ;;
    *) stop "$1 is no option" "$(sed -n '2,9p' "$0")" ;;
  esac
  shift
done
case $how in
  release) build_for_release ;;
  dev)
    cargo build --locked --package tidemill --bin tidemill
    program=$target/debug/tidemill
    ;;
esac
[ -x "$program" ] || stop "there is no program $program"
wheel=$(python3 scripts/build_wheel.py "$program" "$version" "$target/wheels")
line ok "$(($(stat -c %s "$wheel") / 1000000)) MB; try it: python3 -m venv try && try/bin/pip install $wheel && try/bin/tidemill --help"
echo "$wheel"
