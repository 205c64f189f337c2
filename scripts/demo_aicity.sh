#!/usr/bin/env bash
# Builds Tidemill and follows vehicles across the four cameras of examples/aicity. `make demo-aicity` calls setup first.
#
# AICITY_CITY=FOLDER takes the clips of another city, DETECT and APPEARANCE other sizes of the models (tiny to huge).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# The run ends by itself when it is interrupted, and leaves whole files or none.
trap 'printf "\ninterrupted; \`make demo-aicity\` starts again, without the build\n" >&2; exit 130' INT TERM

example=examples/aicity
workflow=$example/annotated.yaml
[ -f "$workflow" ] || stop "$workflow is missing from this checkout"
detect=${DETECT:-medium}
appearance=${APPEARANCE:-medium}
target=${CARGO_TARGET_DIR:-target}
tidemill=$target/debug/tidemill
folder=$target/demo
mkdir -p "$folder"

title "Build (the first time some minutes, then seconds)"
build_for_demo "$tidemill"
scripts/fetch-library.sh ffmpeg
start=$SECONDS

cat <<BANNER

== Vehicles followed across cameras
   Four cameras of a city, a minute each. One model finds the vehicles in each frame
   (vehicles-$detect), a second one says what each looks like (appearance-$appearance),
   a tracker follows them, and tracks of different cameras that look alike become one
   vehicle: $workflow.
BANNER

title "Run"
status=0
"$tidemill" run "$workflow" --rate max --quiet --set "detect=vehicles-$detect" --set "appearance=appearance-$appearance" \
  --report "$folder/aicity.html" --report-json "$folder/aicity.json" > /dev/null || status=$?
if [ "$status" -ne 0 ]; then exit "$status"; fi

title "What came of it"
python3 scripts/aicity_summary.py "$folder/aicity.json" "$example/out"
printf '\nreport  %s\n' "$folder/aicity.html"
for video in "$example"/out/*.mp4; do printf 'video   %s\n' "$video"; done
printf '\n%s after the build\n' "$(duration $((SECONDS - start)))"
