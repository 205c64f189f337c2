#!/usr/bin/env bash
# From nothing to an example on three tiers of containers: builds, plans, deploys, runs, and puts what was predicted beside what is
# measured. Everything that it starts is gone when it ends, however it ends. The make targets call setup first.
#
#   scripts/demo_cluster.sh           questions about pictures (`make demo-cluster`)
#   scripts/demo_cluster.sh aicity    vehicles across cameras, to the end of the clips (`make demo-cluster-aicity`)
#
#   SECONDS_OF_RUN=45     how long it is measured
#   TIDEMILL_PORT=7420    the port of the controller on this machine
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
. scripts/settle.sh

example=${1:-vqa}
case $example in
  # `addition`: what the image has besides the program. `how`: more options of `deploy`.
  vqa) addition=onnxruntime how=() ;;
  # The plan has no work for the cloud, but it is where people look from.
  aicity) addition=ffmpeg how=(--controller cloud) ;;
  *) stop "there is no example $example" "$(sed -n '5,6p' "$0")" ;;
esac
workflow=examples/$example/three-tiers/workflow.yaml
infrastructure=examples/$example/three-tiers/infrastructure.yaml
measured=${SECONDS_OF_RUN:-45}
target=${CARGO_TARGET_DIR:-target}
tidemill=${TIDEMILL_PROGRAM:-$target/debug/tidemill}
folder=$target/demo-cluster-$example
deployment=$folder/deployment
image=tidemill-demo:$$

command -v docker >/dev/null || stop "docker is missing" "apt-get install docker.io docker-compose, or https://docs.docker.com/engine/install/"
docker info >/dev/null 2>&1 || stop "no container engine answers" "start it (systemctl start docker), or let this user reach its socket (group docker)"

# --- whatever happens from here on, nothing is left behind
# shellcheck disable=SC2317,SC2329 # the trap calls it
finish() {
  local code=$?
  trap - EXIT
  # A second Ctrl-C does not leave half of it behind.
  trap 'printf "\n     cleaning up: a few seconds more\n" >&2' INT TERM HUP
  if [ -f "$deployment/deployment.json" ]; then
    title "Clean up"
    if sheltered "$tidemill" down "$deployment" --quiet >"$folder/down.log" 2>&1; then
      line ok "containers, networks and volumes are gone"
    else
      line '!!' "not everything could be removed: $(tail -n 1 "$folder/down.log"); try: $tidemill down $deployment"
    fi
  fi
  sheltered docker image rm --force "$image" "$image-$addition" >/dev/null 2>&1 || true
  exit "$code"
}
trap finish EXIT
trap 'printf "\ninterrupted\n" >&2; exit 130' INT TERM HUP

title "Build (the first time some minutes, then seconds)"
begin=$SECONDS
[ -n "${TIDEMILL_PROGRAM:-}" ] || cargo build --locked --package tidemill --bin tidemill
built=$((SECONDS - begin))
begin=$SECONDS
# One that was killed has left its containers, and the folder is what they can be removed with.
if [ -f "$deployment/deployment.json" ]; then
  "$tidemill" down "$deployment" --quiet || stop "what an earlier demo left cannot be removed" "docker ps; then $tidemill down $deployment"
fi
rm -rf "$folder"
mkdir -p "$folder"

printf '\n== Three tiers\n'
case $example in
  vqa)
    cat <<BANNER
   Pictures are taken at the edge, spoken questions about them come in at a data centre, and answers are wanted at a hub
   between the two: $workflow, with the rate, the accuracy and the latency that are wanted.
BANNER
    ;;
  aicity)
    cat <<BANNER
   Four cameras at three crossings see vehicles for a minute. Each crossing has a machine that finds and follows them, and at a hub it is
   known which tracks of different cameras are one vehicle: $workflow.
BANNER
    ;;
esac
cat <<BANNER
   What machines there are, what they and the links between them cost: $infrastructure.
   Each location becomes a Compose project of its own, each machine a container with the processors and the memory of its type.
BANNER

title "Image: the program, in a container without rights"
scripts/image.sh --program "$tidemill" --tag "$image" "--$addition" --no-sbom

settle
title "Profile: does the one that is shipped fit this machine?"
"$tidemill" profile fit "examples/$example/profile.yaml" "$workflow" --infra "$infrastructure" --out "$folder/profile.yaml"

title "Plan: which models on which machines cost least and keep the service levels?"
"$tidemill" plan "$workflow" --infra "$infrastructure" --profiles "$folder/profile.yaml" --out "$folder/plan.yaml"
"$tidemill" plan "$workflow" --infra "$infrastructure" --profiles "$folder/profile.yaml" --output json >"$folder/plan.json" 2>/dev/null

title "Deploy: the files"
"$tidemill" deploy "$folder/plan.yaml" --out "$deployment" --infra "$infrastructure" --workflow "$workflow" --image "$image-$addition" "${how[@]}"

title "Up: the containers, and the run"
"$tidemill" up "$deployment"

status=0
watch=(python3 scripts/demo_cluster_summary.py "$tidemill" "$deployment" "$folder/plan.json" --seconds "$measured")
if [ "$example" = aicity ]; then
  title "Run: measured for $measured s, and then to the end of the clips"
  "${watch[@]}" --rate-of sources --results "$folder/results" || status=$?
  title "What came of it"
  rows=$(find "$folder/results" -name vehicles.jsonl 2>/dev/null | head -n 1)
  [ -n "$rows" ] || stop "the run has left no vehicles" "see above what it ended with"
  python3 scripts/aicity_summary.py "$(dirname "$rows")"
else
  title "Run: measured for $measured s"
  "${watch[@]}" || status=$?
fi
printf '\nbuild %s, the rest %s\n' "$(duration $built)" "$(duration $((SECONDS - begin)))"
if [ -t 0 ] && [ -t 1 ] && [ "$example" = vqa ]; then
  printf '\nThe run goes on, and its page is at the address above. Enter ends it. '
  read -r _ || true
fi
exit $status
