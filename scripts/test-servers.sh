#!/usr/bin/env bash
# Installs what some tests talk to and nothing else needs. Fails if it cannot be had; the tests then skip it.
#
#   scripts/test-servers.sh python      a Python with NumPy, pyarrow, gRPC and ONNX Runtime, into .tidemill/test-python
#   scripts/test-servers.sh cameras     GStreamer's RTSP server; needs root and Debian's packages
#   scripts/test-servers.sh mqtt        mosquitto and its clients; the same
#   scripts/test-servers.sh postgres    PostgreSQL; the same
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in
  python)
    python=.tidemill/test-python
    "$python/bin/python" -c 'import numpy, pyarrow, grpc, onnxruntime' 2>/dev/null && exit
    python3 -m venv "$python" >/dev/null
    packages=(numpy==2.4.6 pyarrow==26.0.1 grpcio==1.85.3)
    packages+=(onnxruntime==1.31.1) # of the same version as in scripts/fetch-library.sh: outputs are compared bit for bit
    "$python/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
    ;;
  cameras)
    packages=(gir1.2-gst-rtsp-server-1.0 python3-gi glib-networking)
    packages+=(gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly)
    dpkg -s "${packages[@]}" >/dev/null 2>&1 && exit
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" >/dev/null
    ;;
  mqtt | postgres)
    case "$1" in
      mqtt) packages=(mosquitto mosquitto-clients) ;;
      postgres) packages=(postgresql) ;;
    esac
    dpkg -s "${packages[@]}" >/dev/null 2>&1 && exit
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" >/dev/null
    ;;
  *)
    echo "test-servers: write 'python', 'cameras', 'mqtt' or 'postgres'" >&2
    exit 2
    ;;
esac
