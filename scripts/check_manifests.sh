#!/usr/bin/env bash
# Checks Kubernetes manifests against the schemas that the project publishes, without a cluster and without a network.
# usage: scripts/check_manifests.sh FOLDER
# Needs kubernetes-validate, which has the schemas in it: python3 -m venv v; v/bin/pip install kubernetes-validate; and
# v/bin in PATH, or KUBERNETES_VALIDATE=v/bin/kubernetes-validate. Exit codes: 0 all are right, 1 one is not, 69 it is not there.
set -euo pipefail

folder=${1:?usage: scripts/check_manifests.sh FOLDER}
validate=${KUBERNETES_VALIDATE:-kubernetes-validate}
version=${KUBERNETES_VERSION:-1.31}

if ! command -v "$validate" > /dev/null; then
  echo "kubernetes-validate is not here: python3 -m venv v && v/bin/pip install kubernetes-validate, then KUBERNETES_VALIDATE=v/bin/kubernetes-validate" >&2
  exit 69
fi
shopt -s nullglob
manifests=("$folder"/*.yaml)
if [ ${#manifests[@]} = 0 ]; then
  echo "there are no manifests in $folder" >&2
  exit 1
fi
"$validate" --strict --kubernetes-version "$version" "${manifests[@]}" || exit 1
echo "${#manifests[@]} files are as the schemas of Kubernetes $version say"
