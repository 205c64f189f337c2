#!/bin/sh
# Stands in for ffmpeg that reads a device: a device is a file of the test, which gets the number of the process. REAL: ffmpeg.
all="$*"
device=$(printf '%s' "$all" | sed 's/.* -i \([^ ]*\) .*/\1/')
[ -e "$device" ] || { echo "Cannot open device $device: No such file or directory" >&2; exit 1; }
echo $$ > "$device"
case "$all" in
  *"-f v4l2"*) input="-re -f lavfi -i testsrc2=size=160x120:rate=20" ;;
  *) input="-re -f lavfi -i sine=frequency=440:sample_rate=48000" ;;
esac
rest=$(printf '%s' "$all" | sed "s/.* -i [^ ]* //")
exec "$REAL" -hide_banner -nostdin -nostats -loglevel error $input $rest
