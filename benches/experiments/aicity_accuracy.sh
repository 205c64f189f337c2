#!/usr/bin/env bash
# How well combinations of models follow the vehicles of examples/aicity: IDF1 with its 95 % interval, IDP and IDR over all cameras,
# MOTA and HOTA of the tracks, and how many links between cameras are right; one line each.
#
#   benches/experiments/aicity_accuracy.sh [DETECTOR/EMBEDDING ...]       default: all five sizes of both
#
# AICITY_CITY=FOLDER (from where this is called, or absolute) measures on other clips, LIKENESS=NUMBER with another `likeness`, WAYS=no without the ways between the cameras, which
# are those of the example's city; WAYS=FILE with those that scripts/camera_ways.py printed. TIDEMILL=FILE takes another binary.
set -euo pipefail
data=$(realpath "${AICITY_CITY:-$(dirname "${BASH_SOURCE[0]}")/../../examples/aicity/data}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tidemill=$(realpath -q "${TIDEMILL:-target/debug/tidemill}") || true
[ -x "$tidemill" ] || { echo "there is no build: cargo build -p tidemill, or TIDEMILL=FILE" >&2; exit 1; }
[ "$#" -gt 0 ] || set -- tiny/tiny small/small medium/medium large/large huge/huge
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$folder/workflow.yaml" "${LIKENESS:-}" "${WAYS:-yes}" <<'PROGRAM'
import pathlib
import re
import sys

out, likeness, ways = sys.argv[1:]
text = pathlib.Path("examples/aicity/workflow.yaml").read_text().replace("../../models", str(pathlib.Path("models").resolve()))
if likeness:
    text = re.sub(r"(?m)^( +likeness: ).*", rf"\g<1>{likeness}", text)
if ways != "yes":
    text = re.sub(r"(?m)^      boxes: path\n      transitions:.*\n(?:        - .*\n)+", "", text)
if ways not in ("yes", "no"):
    listed = "".join(f"      {line}\n" for line in pathlib.Path(ways).read_text().splitlines())
    text = re.sub(r"(?m)^(      within: 40s\n)", rf"\g<1>      boxes: path\n{listed}", text)
pathlib.Path(out).write_text(text)
PROGRAM
for pair in "$@"; do
  AICITY_CITY=$data "$tidemill" run "$folder/workflow.yaml" --rate max --quiet --report-json "$folder/report.json" \
    --set "detect=vehicles-${pair%/*}" --set "appearance=appearance-${pair#*/}" > /dev/null
  links=$(benches/experiments/links_judged.py "$data" "$folder/out/vehicles.jsonl")
  python3 - "$pair" "$folder/report.json" "$links" <<'PROGRAM'
import json
import sys

sink = next(sink for sink in json.load(open(sys.argv[2]))["sinks"] if sink.get("accuracy_percent") is not None)
low, high = sink["accuracy_interval_percent"]
of = sink["tracks"]
print(
    f"{sys.argv[1]:16} IDF1 {sink['accuracy_percent']:.1f} % ({low:.1f} to {high:.1f})  IDP {of['idp_percent']:.1f}  IDR {of['idr_percent']:.1f}"
    f"  MOTA {of['mota_percent']:.1f}  HOTA {of['hota_percent']:.1f}  DetA {of['deta_percent']:.1f}  AssA {of['assa_percent']:.1f}"
    f"  switches {of['switches']}  {sys.argv[3]}"
)
PROGRAM
done
