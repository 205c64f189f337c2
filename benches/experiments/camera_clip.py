"""Makes the clip of the cameras' experiments: a clip of the example at 640x360, with the number of each frame drawn into it.

    target/vehicles/bin/python benches/experiments/camera_clip.py FFMPEG VIDEO CLIP.h264 FRAMES_PER_SECOND

Sixteen bits of the number stand in the first row of blocks of 16 pixels, the lowest at the left: white is 1.
"""
import subprocess
import sys

import cv2

BLOCK, BITS, WIDTH, HEIGHT, FRAMES = 16, 16, 640, 360, 600
ffmpeg, video, clip, rate = sys.argv[1:5]
encode = [ffmpeg, "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "bgr24", "-s", f"{WIDTH}x{HEIGHT}", "-r", rate, "-i", "-"]
encode += ["-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-pix_fmt", "yuv420p", "-crf", "23"]
encode += ["-x264-params", f"aud=1:keyint={rate}:min-keyint={rate}:scenecut=0:bframes=0:sliced-threads=0", "-f", "h264", clip]
pipe = subprocess.Popen(encode, stdin=subprocess.PIPE)
capture = cv2.VideoCapture(video)
for number in range(FRAMES):
    there, picture = capture.read()
    if not there:
        capture = cv2.VideoCapture(video)
        there, picture = capture.read()
    picture = cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    for bit in range(BITS):
        picture[0:BLOCK, bit * BLOCK:(bit + 1) * BLOCK] = 255 if number >> bit & 1 else 0
    pipe.stdin.write(picture.tobytes())
pipe.stdin.close()
sys.exit(pipe.wait())
