#!/usr/bin/env bash
# Builds Tidemill and runs the visual-question-answering example. `make demo` calls setup first.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

workflow=examples/vqa/workflow.yaml
[ -f "$workflow" ] || stop "$workflow is missing from this checkout"

title "Build (the first time some minutes, then seconds)"
start=$SECONDS
cargo build --locked -p tidemill
built=$((SECONDS - start))

cat <<BANNER

== Visual question answering
   Pictures of a few objects and spoken questions about them are read from files.
   One model describes each picture, another writes down each question, a join on the
   key brings the two together, a third model answers, and every answer is compared
   with the truth. The workflow is $workflow; the table at the
   end gives rate, latency and accuracy.

BANNER
start=$SECONDS
status=0
target/debug/tidemill run "$workflow" || status=$?
ran=$((SECONDS - start))

printf '\nbuild %s, run %s\n' "$(duration $built)" "$(duration $ran)"
exit $status
