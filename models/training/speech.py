"""Spoken questions: espeak-ng, then 8 kHz mono 16-bit samples with some noise."""

import functools
import io
import subprocess
import wave

import numpy as np

RATE = 8000
MAX_SECONDS = 4.0

# Voices never cross the sets.
VOICES = {
    "train": ["en-us", "en-gb", "en-us+m3", "en-us+f2", "en-gb+m4", "en-gb+f4",
              "en-gb-x-rp+m2", "en-us+f1"],
    "tune": ["en-us+m6", "en-gb+f3"],
    "validation": ["en-us+m7", "en-gb+f5"],
}


def _resample(samples, rate):
    """Band-limited resampling to 8 kHz in the frequency domain."""
    count = int(len(samples) * RATE / rate)
    spectrum = np.fft.rfft(samples)[: count // 2 + 1].copy()
    return np.fft.irfft(spectrum, n=count) * (count / len(samples))


@functools.lru_cache(maxsize=4096)
def _espeak(text, voice, speed, pitch):
    output = subprocess.run(
        ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ).stdout
    with wave.open(io.BytesIO(output)) as source:
        rate = source.getframerate()
        raw = source.readframes(1 << 30)
    samples = np.frombuffer(raw[: len(raw) // 2 * 2], dtype="<i2").astype(np.float64) / 32768
    samples = _resample(samples, rate)
    loud = np.nonzero(np.abs(samples) > 0.01)[0]
    return samples[loud[0] : loud[-1] + 1]


def speak(text, voices, rng):
    """The question as int16 samples."""
    voice = voices[int(rng.integers(len(voices)))]
    speed = int(rng.integers(14, 21)) * 10
    pitch = int(rng.integers(3, 8)) * 10
    samples = _espeak(text, voice, speed, pitch)
    lead, tail = (rng.uniform(0.03, 0.15, size=2) * RATE).astype(int)
    if len(samples) + lead + tail > MAX_SECONDS * RATE:
        samples = _espeak(text, voice, 260, pitch)
    samples = np.concatenate([np.zeros(lead), samples, np.zeros(tail)])
    samples = samples[: int(MAX_SECONDS * RATE)]
    samples = samples / np.sqrt(np.mean(samples**2)) * rng.uniform(0.05, 0.12)
    snr = rng.uniform(14, 30)
    noise = rng.normal(0, 1, size=len(samples))
    if rng.random() < 0.5:  # a duller noise
        noise = np.convolve(noise, [0.25, 0.5, 0.25], "same")
    noise *= np.sqrt(np.mean(samples**2) / np.mean(noise**2)) * 10 ** (-snr / 20)
    return np.clip((samples + noise) * 32767, -32768, 32767).astype("<i2")


def write_wav(path, samples):
    with wave.open(str(path), "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(RATE)
        target.writeframes(samples.tobytes())


def read_wav(path):
    with wave.open(str(path)) as source:
        if (source.getframerate(), source.getnchannels(), source.getsampwidth()) != (RATE, 1, 2):
            raise ValueError(f"{path}: expected 8 kHz, mono, 16 bit")
        return np.frombuffer(source.readframes(source.getnframes()), dtype="<i2")
