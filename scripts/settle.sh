# shellcheck shell=bash
# Sourced by scripts that measure: waits until the machine is quiet.

# What runs after a build on a busy machine measures the machine. The share of the processors in use, in percent, over a second.
busy_percent() {
  local before after
  before=$(awk '/^cpu / {print $2+$3+$4+$7+$8+$9, $5+$6}' /proc/stat)
  sleep 1
  after=$(awk '/^cpu / {print $2+$3+$4+$7+$8+$9, $5+$6}' /proc/stat)
  echo "$before $after" | awk '{used = $3 - $1; all = used + $4 - $2; printf "%d", (all > 0) ? 100 * used / all : 0}'
}
# Waits until the machine is quiet, at most 30 s.
settle() {
  local busy waited=0
  busy=$(busy_percent)
  if [ "$busy" -le 15 ]; then return; fi
  echo
  echo "the processors are $busy % busy: waiting until they are quiet, at most 30 s"
  while [ "$busy" -gt 15 ] && [ "$waited" -lt 30 ]; do
    busy=$(busy_percent)
    waited=$((waited + 1))
  done
  if [ "$busy" -gt 15 ]; then
    echo "they still are $busy % busy after $waited s: what follows may say \`no evidence\`"
  else
    echo "quiet after $waited s"
  fi
}
