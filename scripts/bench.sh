#!/usr/bin/env bash
# Runs the benches and writes their results, with the facts of this machine, to docs/benchmarks.
# Arguments are those of the program: one question and options, for instance
#   scripts/bench.sh vqa-loop --pairs 300 --rounds 2
# Without any, all questions but `transport`, which is a workspace of its own (its tonic and iceoryx2 would burden the build
# of everybody else) and is asked alone: scripts/bench.sh transport --quick. The first time, cargo fetches its crates.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if ! cargo metadata --no-deps --offline --format-version 1 | grep -q '"name":"tidemill-benches"'; then
  stop "there are no benches yet: the package tidemill-benches does not exist"
fi
target=${CARGO_TARGET_DIR:-target}
if [ "${1:-}" = transport ]; then
  shift
  cargo build --release --locked --manifest-path benches/transport/Cargo.toml --target-dir "$target"
  if [ -x "$target/release/tidemill" ]; then set -- "$@" --release-binary "$target/release/tidemill"; fi
  exec "$target/release/tidemill-bench-transport" "$@"
fi
cargo build --release --locked -p tidemill -p tidemill-benches
if [ $# -eq 0 ]; then set -- all; fi
"$target/release/tidemill-benches" "$@" --release-binary "$target/release/tidemill"
