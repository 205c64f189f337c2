#!/usr/bin/env bash
# Runs the benches and writes their results, with the facts of this machine, to docs/benchmarks.
# Arguments are those of the program: one question and options, for instance
#   scripts/bench.sh vqa-loop --pairs 300 --rounds 2
# Without any, all questions but two that are asked alone. `transport` is a workspace of its own (its tonic and iceoryx2 would
# burden the build of everybody else): scripts/bench.sh transport --quick. The first time, cargo fetches its crates. `collectives`
# needs root and network namespaces: scripts/bench.sh collectives --only change. `jobs` measures the queue, trainings and aggregators;
# with options, `jobs`, `trainings` and `aggregation` are one script each: scripts/bench.sh jobs --only live.
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
case "${1:-}" in
  jobs | trainings | aggregation)
    part=$1
    shift
    cargo build --release --locked -p tidemill --bin tidemill
    parts=("$part")
    if [ "$part" = jobs ] && [ $# -eq 0 ]; then parts=(jobs trainings aggregation); fi
    failed=0
    for part in "${parts[@]}"; do
      python3 "benches/experiments/$part.py" --binary "$target/release/tidemill" --out docs/benchmarks "$@" || failed=1
    done
    exit "$failed"
    ;;
esac
if [ "${1:-}" = collectives ]; then
  shift
  [ "$(id -u)" = 0 ] || stop "collectives makes network namespaces, which needs root" "sudo -E make bench BENCH=collectives"
  cargo build --release --locked -p tidemill --bin tidemill
  cargo build --release --locked -p tidemill-collective --example member --example predict
  cargo build --release --locked -p tidemill-hints --example choose
  exec python3 benches/experiments/collectives.py --programs "$target/release" "$@"
fi
cargo build --release --locked -p tidemill -p tidemill-benches
if [ $# -eq 0 ]; then set -- all; fi
"$target/release/tidemill-benches" "$@" --release-binary "$target/release/tidemill"
