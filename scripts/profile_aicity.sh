#!/usr/bin/env bash
# Profiles examples/aicity on this machine with other traffic before the same cameras (seed 7100), so that runs of the example judge vehicles
# that their profile has not seen: examples/aicity/profile.yaml, and machines.yaml after it. The machine should be quiet.
#
#   PYTHON=python CITY=FOLDER scripts/profile_aicity.sh [OPTION OF tidemill profile ...]
#
# TIDEMILL_BINARY names another program than the one that is built here. CITY holds the clips; where it does not exist they are rendered
# there by PYTHON, which needs numpy, Pillow and imageio-ffmpeg (5 minutes).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/evidence.sh"

binary=$(realpath "$binary")
target=$(realpath "$target")
city=${CITY:-$target/profiles/other-traffic}
[ -f "$city/camera-4.txt" ] || (
  cd models/training
  "${PYTHON:-python3}" generate_city.py --out "$city" --seed 3004 --traffic 7100 --cameras 4 --seconds 60 --quality 27 --shipped
)
# The same workflow, byte for byte, in a tree where `data` is the other traffic: so the digest is that of the example.
tree=$target/profiles/aicity-tree
rm -rf "$tree"
mkdir -p "$tree/examples/aicity"
ln -s "$PWD/models" "$tree/models"
[ ! -d .tidemill ] || ln -s "$PWD/.tidemill" "$tree/.tidemill"
ln -s "$(realpath "$city")" "$tree/examples/aicity/data"
cp examples/aicity/workflow.yaml examples/aicity/infrastructure.yaml "$tree/examples/aicity"
(
  cd "$tree/examples/aicity"
  "$binary" profile workflow.yaml --infra infrastructure.yaml --out "$target/profiles/aicity" \
    --budget "${BUDGET:-14min}" --samples 2400 "$@"
)
python3 scripts/profile_city.py "$target/profiles/aicity/profile.yaml" examples/aicity/profile.yaml
python3 scripts/aicity_machines.py
"$binary" validate examples/aicity/workflow.yaml examples/aicity/profile.yaml examples/aicity/machines.yaml
