#!/bin/sh
# Lays out what an image adds to its base: `lay_out.sh PROGRAM FOLDER SECONDS [LIBRARY]`. All files get the same time, so that
# the same program gives the same layers.
set -eu
program=$1 folder=$2 seconds=$3 library=${4:-}
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
if [ -n "$library" ]; then
  mkdir -p "$folder/program/usr/lib/tidemill"
  cp "$library" "$folder/program/usr/lib/tidemill/libonnxruntime.so"
  chmod 644 "$folder/program/usr/lib/tidemill/libonnxruntime.so"
fi
# What the user of the containers may write to, where volumes are mounted.
mkdir -p "$folder/state/var/lib/tidemill" "$folder/state/results"
find "$folder" -exec touch --no-dereference --date "@$seconds" {} +
