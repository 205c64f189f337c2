#!/usr/bin/env bash
# Installs the S3 server that tests of signatures run against (moto) into target/s3-server. Needs the Python package registry, once;
# some 320 MB. `make test-long` calls it; tests are skipped without it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

version=5.2.5
folder=target/s3-server

if [ -x "$folder/bin/python3" ] && [ "$(cat "$folder/version" 2>/dev/null)" = "$version" ]; then
  line ok "moto $version"
  exit 0
fi
command -v python3 >/dev/null || stop "there is no python3" "sudo apt-get install -y python3 python3-venv"
line get "moto $version into $folder: tests of signatures"
rm -rf "$folder.part" "$folder"
python3 -m venv "$folder.part" || stop "python3 makes no virtual environments" "sudo apt-get install -y python3-venv"
"$folder.part/bin/python3" -m pip --quiet --disable-pip-version-check install "moto[server,s3,iam]==$version" || {
  rm -rf "$folder.part"
  stop "moto could not be installed" "the Python package registry must be reachable the first time"
}
echo "$version" >"$folder.part/version"
# Only now: whoever finds the folder finds all of it. Its python3 is a link, and packages are found beside that.
mv "$folder.part" "$folder"
line ok "moto $version"
