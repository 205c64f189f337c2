#!/bin/sh
# Lays out what an image adds to its base: `lay_out.sh PROGRAM FOLDER SECONDS [ADDITION]`. The addition is the library of ONNX Runtime or the
# program ffmpeg, for a second tag. All files get the same time, so that the same program gives the same layers.
set -eu
program=$1 folder=$2 seconds=$3 addition=${4:-}
here=$(cd "$(dirname "$0")/../.." && pwd)

rm -rf "$folder"
umask 022
# The folders of the system that state/ goes through are here too: copied after it, they belong to root again.
mkdir -p "$folder/program/usr/bin" "$folder/program/usr/share/doc/tidemill" "$folder/program/var/lib"
# Names of functions and lines are half of the program; panics say file and line without them.
strip --strip-all -o "$folder/program/usr/bin/tidemill" "$program"
chmod 755 "$folder/program/usr/bin/tidemill"
cp "$here/LICENSE" "$folder/program/usr/share/doc/tidemill/copyright"
chmod 644 "$folder/program/usr/share/doc/tidemill/copyright"
case $(basename "$addition") in
  '') ;;
  libonnxruntime.so*)
    mkdir -p "$folder/addition/usr/lib/tidemill"
    cp "$addition" "$folder/addition/usr/lib/tidemill/libonnxruntime.so"
    chmod 644 "$folder/addition/usr/lib/tidemill/libonnxruntime.so"
    ;;
  ffmpeg*)
    documents=$folder/addition/usr/share/doc/ffmpeg
    mkdir -p "$folder/addition/usr/lib/tidemill" "$documents"
    cp "$addition" "$folder/addition/usr/lib/tidemill/ffmpeg"
    chmod 755 "$folder/addition/usr/lib/tidemill/ffmpeg"
    # Who gives the image to others gives them ffmpeg too: its licence asks for its text and for what the source is.
    {
      "$addition" -version
      echo
      "$addition" -hide_banner -loglevel error -L
      echo
      echo "This static build is the one of the package imageio-ffmpeg of the Python package index. Source code of ffmpeg: https://ffmpeg.org/releases/"
    } >"$documents/copyright"
    cp "$here/deploy/images/GPL-3" "$documents/GPL-3"
    chmod 644 "$documents/copyright" "$documents/GPL-3"
    ;;
  *) echo "lay_out.sh: $addition is nothing that an image is known for" >&2 && exit 1 ;;
esac
# What the user of the containers may write to, where volumes are mounted.
mkdir -p "$folder/state/var/lib/tidemill" "$folder/state/results"
find "$folder" -exec touch --no-dereference --date "@$seconds" {} +
