#!/usr/bin/env bash
# Runs the benches and writes their results, with the facts of this machine, to docs/benchmarks.
# Arguments are those of the program: one question and options, for instance
#   scripts/bench.sh vqa-loop --pairs 300 --rounds 2
# Without any, all questions.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if ! cargo metadata --no-deps --offline --format-version 1 | grep -q '"name":"tidemill-benches"'; then
  stop "there are no benches yet: the package tidemill-benches does not exist"
fi
target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked -p tidemill -p tidemill-benches
if [ $# -eq 0 ]; then set -- all; fi
"$target/release/tidemill-benches" "$@" --release-binary "$target/release/tidemill"
