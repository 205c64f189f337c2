#!/usr/bin/env bash
# Profiles the examples on this machine: examples/vqa/profile.yaml. At most 15 minutes; the machine should be quiet. With a release build:
# what the engine takes for itself is measured too.
# What was measured so far is kept in target/profiles: after an interruption it goes on, BUDGET=30min makes it more certain.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

cargo build --release --locked -p tidemill
target=${CARGO_TARGET_DIR:-target}
"$target/release/tidemill" profile examples/vqa/workflow.yaml --infra examples/vqa/infrastructure.yaml \
  --out "$target/profiles/vqa" --budget "${BUDGET:-14min}" "$@"
# The first line lets editors check the file.
{
  echo "# yaml-language-server: \$schema=../../spec/schemas/profile.schema.json"
  cat "$target/profiles/vqa/profile.yaml"
} > examples/vqa/profile.yaml.partial
# The example's own pairs are for runs to be judged by.
python3 scripts/profile_accuracy.py examples/vqa/profile.yaml.partial
mv examples/vqa/profile.yaml.partial examples/vqa/profile.yaml
"$target/release/tidemill" validate examples/vqa/workflow.yaml examples/vqa/infrastructure.yaml examples/vqa/profile.yaml
