#!/usr/bin/env bash
# Installs what some tests talk to and nothing else needs: an RTSP server of GStreamer, arecord, and a Python with NumPy and
# pyarrow. Fails if a part cannot be had; the tests then skip it. Needs root and Debian's packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=(gir1.2-gst-rtsp-server-1.0 python3-gi alsa-utils)
packages+=(gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly)
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 1
dpkg -s "${packages[@]}" >/dev/null 2>&1 || {
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
} >/dev/null || exit 1
python=.tidemill/test-python
"$python/bin/python" -c 'import numpy, pyarrow' 2>/dev/null || {
  python3 -m venv "$python"
  "$python/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pyarrow==26.0.1
} || exit 1
