"""Spoken questions: espeak-ng, then 8 kHz mono 16-bit samples with noise."""

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
    "validation": ["en-us+m7", "en-gb+f5", "en-gb+m5"],
}
SPEEDS = (130, 230)  # words per minute
PITCHES = (20, 80)
NOISE_LEVELS = [5, 8, 12, 18, 26]  # dB of signal over noise
NOISE_SLOPES = [0, -0.5, -1, 0.5]  # spectrum ~ frequency^slope: white, pink, brown, blue


def _resample(samples, rate):
    """Band-limited resampling to 8 kHz in the frequency domain."""
    count = int(len(samples) * RATE / rate)
    spectrum = np.fft.rfft(samples)[: count // 2 + 1].copy()
    return np.fft.irfft(spectrum, n=count) * (count / len(samples))


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


def _noise(count, rng):
    """Coloured noise, in one of three cases with the hum of a power line."""
    slope = NOISE_SLOPES[int(rng.integers(len(NOISE_SLOPES)))]
    spectrum = np.fft.rfft(rng.normal(0, 1, size=count))
    frequency = np.maximum(np.fft.rfftfreq(count, 1 / RATE), 60)
    noise = np.fft.irfft(spectrum * frequency**slope, n=count)
    noise /= np.sqrt(np.mean(noise**2))
    if rng.random() < 1 / 3:
        phase = 2 * np.pi * rng.choice([50, 60]) * np.arange(count) / RATE
        noise += rng.uniform(0.3, 1.0) * (np.sin(phase) + 0.6 * np.sin(3 * phase))
    return noise / np.sqrt(np.mean(noise**2))


def speak(text, voices, rng):
    """The question as int16 samples."""
    voice = voices[int(rng.integers(len(voices)))]
    speed = int(rng.integers(SPEEDS[0], SPEEDS[1] + 1))
    pitch = int(rng.integers(PITCHES[0], PITCHES[1] + 1))
    samples = _espeak(text, voice, speed, pitch)
    lead, tail = (rng.uniform(0.03, 0.15, size=2) * RATE).astype(int)
    if len(samples) + lead + tail > MAX_SECONDS * RATE:
        samples = _espeak(text, voice, 260, pitch)
    samples = np.concatenate([np.zeros(lead), samples, np.zeros(tail)])
    samples = samples[: int(MAX_SECONDS * RATE)]
    samples = samples / np.sqrt(np.mean(samples**2)) * rng.uniform(0.04, 0.12)
    level = NOISE_LEVELS[int(rng.integers(len(NOISE_LEVELS)))] + rng.uniform(-1.5, 1.5)
    noise = _noise(len(samples), rng)
    noise *= np.sqrt(np.mean(samples**2)) * 10 ** (-level / 20)
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
