"""Video files: frames to H.264 and back, by ffmpeg."""

import shutil
import subprocess

import numpy as np

from city import cameras


def ffmpeg():
    """The program: of the system, or the one in the package imageio-ffmpeg."""
    found = shutil.which("ffmpeg")
    if found:
        return found
    import imageio_ffmpeg

    return imageio_ffmpeg.get_ffmpeg_exe()


class Writer:
    """H.264 in MP4 with a key frame at least every 50 frames; the same frames give the same bytes."""

    def __init__(self, path, fps, quality, preset="medium"):
        size = f"{cameras.WIDTH}x{cameras.HEIGHT}"
        self.process = subprocess.Popen(
            [ffmpeg(), "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-",
             "-c:v", "libx264", "-preset", preset, "-crf", str(quality), "-g", "50", "-bf", "0", "-threads", "1",
             "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-fflags", "+bitexact", "-flags:v", "+bitexact",
             str(path)], stdin=subprocess.PIPE)

    def write(self, frame):
        self.process.stdin.write(frame.tobytes())

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise OSError("ffmpeg could not write the clip")


def read(path):
    """All frames [n, h, w, 3] of a clip."""
    done = subprocess.run([ffmpeg(), "-v", "error", "-threads", "1", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
                          stdout=subprocess.PIPE, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, cameras.HEIGHT, cameras.WIDTH, 3)
