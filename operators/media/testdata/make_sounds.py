"""Writes sounds.json: compressed sounds and their samples as decoded by ffmpeg, the references of the tests
in src/compressed.

Needs `pip install numpy` and the path of ffmpeg as its argument; made with ffmpeg 7.0.2.
"""
import json
import os
import subprocess
import sys

import numpy as np

# Format, encoder and options, sample rate, channels.
FILES = {
    "flac": ("flac", ["-c:a", "flac", "-sample_fmt", "s16"], 16000, 1),
    "flac stereo": ("flac", ["-c:a", "flac", "-sample_fmt", "s16"], 22050, 2),
    "flac 24 bits": ("flac", ["-c:a", "flac", "-sample_fmt", "s32"], 8000, 1),
    "ogg vorbis": ("ogg", ["-c:a", "libvorbis", "-q:a", "4"], 16000, 1),
    "ogg vorbis stereo": ("ogg", ["-c:a", "libvorbis", "-q:a", "2"], 22050, 2),
    "mp3": ("mp3", ["-c:a", "libmp3lame", "-b:a", "48k"], 16000, 1),
    "mp3 stereo": ("mp3", ["-c:a", "libmp3lame", "-q:a", "5"], 44100, 2),
    "mp3 without a frame of the encoder": (
        "mp3",
        ["-c:a", "libmp3lame", "-b:a", "32k", "-write_xing", "0", "-id3v2_version", "0"],
        8000,
        1,
    ),
}


def drawn(rate, channels):
    """Two tones that rise, and noise."""
    random = np.random.default_rng(5)
    time = np.arange(rate // 6) / rate
    sound = 0.4 * np.sin(2 * np.pi * (300 + 900 * time) * time) + 0.2 * np.sin(2 * np.pi * 1700 * time)
    sound = sound + 0.05 * random.standard_normal(len(time))
    sound = np.stack([sound, 0.5 * sound[::-1]][:channels], 1)
    return np.clip(sound * 2**31, -(2**31), 2**31 - 1).astype("<i4")


def main():
    lines = []
    for name, (container, options, rate, channels) in FILES.items():
        form = ["-f", "s32le", "-ar", str(rate), "-ac", str(channels)]
        encoded = f"/tmp/sound.{container}"
        # Into a file: what an encoder writes into its first frame at the end needs one.
        command = [sys.argv[1], "-v", "error", "-y", *form, "-i", "-", *options]
        command += ["-fflags", "+bitexact", encoded]
        subprocess.run(command, input=drawn(rate, channels).tobytes(), check=True)
        with open(encoded, "rb") as file:
            data = file.read()
        command = [sys.argv[1], "-v", "error", "-i", encoded, "-f", "f64le", "-c:a", "pcm_f64le", "-"]
        decoded = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        os.remove(encoded)
        samples = np.frombuffer(decoded, "<f8").reshape(-1, channels)
        if container == "ogg":
            # The last page says how long the sound is; ffmpeg does not cut it there when it is the first
            # with sound.
            samples = samples[: rate // 6]
        # In units of 24 bits for FLAC, which is compared to the bit; in such of 16 bits otherwise.
        unit = 1 << 23 if container == "flac" else 1 << 15
        mean = samples.mean(1) * unit
        is_whole = channels == 1 and container == "flac"
        numbers = [int(value) if is_whole else round(value, 2) for value in mean]
        line = {"name": name, "file": data.hex(), "rate": rate, "unit": unit, "samples": numbers}
        lines.append(json.dumps(line, separators=(",", ":")))
    path = os.path.join(os.path.dirname(__file__), "sounds.json")
    with open(path, "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
