#!/usr/bin/env bash
# Runs the benches and writes their results, with the facts of this machine, to docs/benchmarks.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if ! cargo metadata --no-deps --offline --format-version 1 | grep -q '"name":"tidemill-benches"'; then
  stop "there are no benches yet: the package tidemill-benches does not exist"
fi
cargo run --release --locked -p tidemill-benches -- all --out docs/benchmarks
