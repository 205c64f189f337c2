#!/usr/bin/env bash
# Builds Tidemill, plans the visual-question-answering example and runs it. `make demo` calls setup first.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

example=examples/vqa
workflow=$example/workflow.yaml
infrastructure=$example/infrastructure.yaml
shipped=$example/profile.yaml
for file in "$workflow" "$infrastructure" "$shipped"; do
  [ -f "$file" ] || stop "$file is missing from this checkout"
done
target=${CARGO_TARGET_DIR:-target}
tidemill=$target/debug/tidemill
folder=$target/demo
mkdir -p "$folder"

title "Build (the first time some minutes, then seconds)"
start=$SECONDS
cargo build --locked -p tidemill
built=$((SECONDS - start))
start=$SECONDS

cat <<BANNER

== Visual question answering
   Pictures of a few objects and spoken questions about them are read from files.
   One model describes each picture, another writes down each question, a join on the
   key brings the two together, a third model answers, and every answer is compared
   with the truth: $workflow.
   Small machines stand beside the cameras, larger ones in a data centre, and both the
   machines and the links between them have prices: $infrastructure.
BANNER

title "Profile: does the one that is shipped fit this machine?"
"$tidemill" profile fit "$shipped" "$workflow" --infra "$infrastructure" --out "$folder/profile.yaml"

title "Plan: which models on which machines cost least and keep the service levels?"
planning=("$workflow" --infra "$infrastructure" --profiles "$folder/profile.yaml")
"$tidemill" plan "${planning[@]}" --out "$folder/plan.yaml"

title "Explain: why this plan, and what would another cost?"
"$tidemill" explain "${planning[@]}"

title "Compare: everything in the cloud with the most accurate models"
"$tidemill" plan "${planning[@]}" --planner cloud-only --out "$folder/cloud-only.yaml"

emulate() { # name of the plan
  "$tidemill" run "$workflow" --plan "$folder/$1.yaml" --emulate --infra "$infrastructure" \
    --profiles "$folder/profile.yaml" --report "$folder/$1.html" --report-json "$folder/$1.json"
}
status=0
title "Run the plan: its workers at their speeds, its links at theirs, on this machine"
emulate plan || status=$?
title "Run cloud-only the same way"
emulate cloud-only || status=$?

title "Side by side"
python3 scripts/demo_summary.py "$folder/plan.json" "$folder/cloud-only.json"
printf 'build %s, the rest %s; plans, reports and pages in %s\n' "$(duration $built)" "$(duration $((SECONDS - start)))" "$folder"
exit $status
