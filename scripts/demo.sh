#!/usr/bin/env bash
# Builds Tidemill, plans the visual-question-answering example and runs it. `make demo` calls setup first.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
. scripts/settle.sh

# A step that is interrupted ends by itself; no further one begins.
trap 'printf "\ninterrupted; \`make demo\` starts again, without the build\n" >&2; exit 130' INT TERM

example=examples/vqa
workflow=$example/demo/workflow.yaml
infrastructure=$example/demo/infrastructure.yaml
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
build_for_demo "$tidemill"
built=$((SECONDS - start))
start=$SECONDS

cat <<BANNER

== Visual question answering
   Pictures of a few objects and spoken questions about them are read from files.
   One model describes each picture, another writes down each question, a join on the
   key brings the two together, a third model answers, and every answer is compared
   with the truth: $workflow.
   A small machine stands beside the cameras, larger ones at a hub and in a data centre,
   and both the machines and the links between them have prices: $infrastructure.
BANNER

settle
title "Profile: does the one that is shipped fit this machine?"
"$tidemill" profile fit "$shipped" "$workflow" --infra "$infrastructure" --out "$folder/profile.yaml"

title "Plan: which models on which machines cost least and keep the service levels?"
planning=("$workflow" --infra "$infrastructure" --profiles "$folder/profile.yaml")
"$tidemill" plan "${planning[@]}" --out "$folder/plan.yaml"

title "Explain: why this plan, and what would another cost?"
"$tidemill" explain "${planning[@]}"

title "Compare: everything in the cloud with the most accurate models"
"$tidemill" plan "${planning[@]}" --planner cloud-only --out "$folder/cloud-only.yaml"

run() { # name of the plan, dilation
  "$tidemill" run "$workflow" --plan "$folder/$1.yaml" --emulate --infra "$infrastructure" --dilation "$2" --for 4s \
    --profiles "$folder/profile.yaml" --report "$folder/$1.html" --report-json "$folder/$1.json" || status=$?
  if [ "$status" -eq 130 ]; then exit 130; fi
}
emulate() { # name of the plan
  local proposed
  run "$1" auto
  if [ ! -s "$folder/$1.json" ]; then return; fi
  proposed=$(python3 scripts/demo_summary.py --dilation "$folder/$1.json")
  if [ -n "$proposed" ]; then
    printf '\nThis machine did not keep up with that run, so it is repeated once, %s times slower than real time.\n\n' "$proposed"
    settle
    run "$1" "$proposed"
  fi
}
status=0
title "Run the plan: its workers at their speeds, its links at theirs, on this machine"
emulate plan
title "Run cloud-only the same way"
emulate cloud-only

title "Side by side"
python3 scripts/demo_summary.py "$folder/plan.json" "$folder/cloud-only.json"
printf 'build %s, the rest %s; plans, reports and pages in %s\n' "$(duration $built)" "$(duration $((SECONDS - start)))" "$folder"
exit $status
