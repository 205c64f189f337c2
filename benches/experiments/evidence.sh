# shellcheck shell=bash
# Sourced by the scripts that plan, run and compare: environment.sh, `binary` (TIDEMILL_BINARY, or what is built here), and a
# folder `work` that is removed at the end.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"

target=${CARGO_TARGET_DIR:-target}
# shellcheck disable=SC2034 # the scripts that source this use it
binary=${TIDEMILL_BINARY:-}
if [ -z "$binary" ]; then
  cargo build --release --locked -p tidemill
  binary=$target/release/tidemill
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
