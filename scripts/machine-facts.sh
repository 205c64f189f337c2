#!/usr/bin/env bash
# The facts of this machine and checkout that a result needs beside it, as rows of a Markdown table.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

row() { printf '| %s | %s |\n' "$1" "$2"; }
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit and changes not committed"
row commit "$commit"
row processor "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(nproc) cores"
row memory "$(awk '/^MemTotal/ {printf "%.1f GiB", $2 / 1048576}' /proc/meminfo)"
row system "$(. /etc/os-release && echo "$PRETTY_NAME"), Linux $(uname -r)"
row load "$(cut -d ' ' -f 1-3 /proc/loadavg) (1, 5, 15 minutes) at the end"
row compiler "$(rustc --version)"
