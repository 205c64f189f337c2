#!/usr/bin/env bash
# Plans the example in ten ways, runs every plan emulated on this machine, and writes predicted, simulated and measured
# figures to docs/benchmarks/plans-measured.{json,md}. About 15 minutes; the machine should be quiet. What was profiled
# is kept in target/evidence. BUDGET=5min profiles longer, `--seconds 60` runs longer, `--only NAME` runs one plan.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

target=${CARGO_TARGET_DIR:-target}
binary=${TIDEMILL_BINARY:-}
if [ -z "$binary" ]; then
  cargo build --release --locked -p tidemill
  binary=$target/release/tidemill
fi
work=$PWD/$target/evidence
mkdir -p "$work"
"$binary" profile examples/vqa/workflow.yaml --infra examples/vqa/infrastructure.yaml --out "$work/here" \
  --budget "${BUDGET:-4min}"
"$binary" profile examples/vqa/workflow.yaml --infra scripts/evidence_elsewhere.yaml --out "$work/elsewhere" \
  --factor gateway=3 --factor server=0.8 --budget "${BUDGET:-4min}"
"$binary" profile merge "$work/here/profile.yaml" "$work/elsewhere/profile.yaml" --out "$work/profile.yaml"
python3 scripts/evidence_plans.py --binary "$binary" --profile "$work/profile.yaml" --work "$work" \
  --machine "$(scripts/machine-facts.sh | sed '1i | | |\n|---|---|')" "$@"
