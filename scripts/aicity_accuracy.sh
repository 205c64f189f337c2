#!/usr/bin/env bash
# How well combinations of models follow the vehicles of examples/aicity: IDF1 with its 95 % interval, IDP and IDR over all cameras, and
# MOTA and HOTA of the tracks; one line each.
#
#   scripts/aicity_accuracy.sh [DETECTOR/EMBEDDING ...]       default: the smallest, the middle and the largest of both
#
# AICITY_CITY=FOLDER measures on the clips of another city, TIDEMILL=FILE with another binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tidemill=${TIDEMILL:-target/debug/tidemill}
[ "$#" -gt 0 ] || set -- tiny/tiny medium/medium huge/huge
report=$(mktemp)
trap 'rm -f "$report"' EXIT
for pair in "$@"; do
  "$tidemill" run examples/aicity/workflow.yaml --rate max --quiet --report-json "$report" \
    --set "detect=vehicles-${pair%/*}" --set "appearance=appearance-${pair#*/}" > /dev/null
  python3 - "$pair" "$report" <<'PROGRAM'
import json
import sys

sink = next(sink for sink in json.load(open(sys.argv[2]))["sinks"] if sink.get("accuracy_percent") is not None)
low, high = sink["accuracy_interval_percent"]
of = sink["tracks"]
print(
    f"{sys.argv[1]:16} IDF1 {sink['accuracy_percent']:.1f} % ({low:.1f} to {high:.1f})  IDP {of['idp_percent']:.1f}  IDR {of['idr_percent']:.1f}"
    f"  MOTA {of['mota_percent']:.1f}  HOTA {of['hota_percent']:.1f}  DetA {of['deta_percent']:.1f}  AssA {of['assa_percent']:.1f}"
    f"  switches {of['switches']}"
)
PROGRAM
done
