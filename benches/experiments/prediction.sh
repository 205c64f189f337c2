#!/usr/bin/env bash
# How far predictions of the example are from emulated runs, at several loads: mean, p90 and p99 of the latency, bytes on links
# and accuracy. The machine should be quiet. LOADS="10 40 80" chooses the records per second, TIMES how often the
# 200 pairs come (p99 of 2000 records is known to about a tenth), PROFILE the profile instead of the shipped one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"

cargo build --release --locked -p tidemill
target=${CARGO_TARGET_DIR:-target}
tidemill=$target/release/tidemill
folder=$target/prediction
example=examples/vqa
rm -rf "$folder/vqa/data"
mkdir -p "$folder/vqa/data"
python3 benches/experiments/prediction.py repeat "$example/data" "$folder/vqa/data" "${TIMES:-5}"
sed "s|\.\./\.\./models|$PWD/models|" "$example/workflow.yaml" > "$folder/vqa/workflow.yaml"
workflow=$folder/vqa/workflow.yaml
infrastructure=$example/infrastructure.yaml
"$tidemill" profile fit "${PROFILE:-$example/profile.yaml}" "$workflow" --infra "$infrastructure" --out "$folder/profile.yaml"
files=(--infra "$infrastructure" --profiles "$folder/profile.yaml")
reports=()
for load in ${LOADS:-10 40 80}; do
  "$tidemill" plan "$workflow" "${files[@]}" --slo "rate=$load/s" --out "$folder/plan-$load.yaml" > "$folder/plan-$load.txt" 2>&1
  "$tidemill" run "$workflow" --plan "$folder/plan-$load.yaml" --emulate "${files[@]}" --dilation "${DILATION:-auto}" \
    --report-json "$folder/run-$load.json" > "$folder/run-$load.txt" 2>&1 || true
  reports+=("$folder/run-$load.json")
done
python3 benches/experiments/prediction.py table "${reports[@]}"
