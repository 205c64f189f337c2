#!/usr/bin/env bash
# Takes the picture of a report page for docs/report.md anew: the beginning of the page as a browser shows it.
#
#   scripts/screenshot-report.sh [REPORT.html]      default: runs examples/vqa and takes its report
#
# Needs Chromium (apt-get install chromium) and, without REPORT.html, the program built by `make demo`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

picture=docs/images/report.png
most=150000 # bytes: the picture is part of every clone
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  stop "no Chromium on this machine" "apt-get install chromium"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
page=${1:-$work/report.html}
if [ $# -eq 0 ]; then
  program=${CARGO_TARGET_DIR:-target}/debug/tidemill
  [ -x "$program" ] || stop "$program is not built" "make demo"
  "$program" run examples/vqa/workflow.yaml --report "$page" >/dev/null
fi
[ -f "$page" ] || stop "$page does not exist"

# Root may not use Chromium's sandbox, and the page is our own.
"$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1180,1180 \
  --user-data-dir="$work/browser" --screenshot="$work/report.png" "file://$(realpath "$page")" >"$work/log" 2>&1 ||
  { tail -n 5 "$work/log" >&2; stop "Chromium could not draw $page"; }
size=$(stat -c %s "$work/report.png")
[ "$size" -le $most ] || stop "the picture has $size bytes, more than $most: make the window smaller"
cp "$work/report.png" "$picture"
line ok "$picture, $((size / 1000)) kB"
