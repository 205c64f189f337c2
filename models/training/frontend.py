"""Reference of the audio front end: WAV samples to standardised log-mel features.

The engine computes the same from a model's manifest. Exactly:

1. `pad_or_trim`: int16 samples / 32768 as float; cut, or filled with zeros at the end, to
   `seconds * sample_rate` samples.
2. `log_mel`: frame i holds the samples [i*hop, i*hop + window); only full frames, so there are
   1 + (samples - window) // hop of them. Each frame is multiplied by the periodic Hann window of
   `window` points, w[n] = 0.5 - 0.5*cos(2*pi*n/window), then filled with zeros at the end to `fft`
   points. Power spectrum |rfft|^2 (no scaling) of fft/2+1 bins; bin k is at k*sample_rate/fft Hz.
   Filter edges: mels+2 points, equally spaced on the mel scale 2595*log10(1 + f/700) from `low`
   to `high`, converted back to Hz. Filter m rises linearly in Hz from edge m to 1 at edge m+1 and
   falls to 0 at edge m+2, no area normalisation. Value: ln(max(energy, floor)).
   Result: [frames, mels].
3. `standardize`: (x - mean) / max(std, 1e-5), both over all values of the utterance, padding
   included; population standard deviation.
"""

import argparse
import json
import pathlib

import numpy as np

SETTINGS = {"sample_rate": 8000, "window": 200, "hop": 80, "fft": 256, "mels": 40,
            "low": 60, "high": 3900, "floor": 1.0e-6}
SECONDS = 4.0


def pad_or_trim(samples, seconds=SECONDS, sample_rate=8000):
    samples = np.asarray(samples, dtype=np.float64)
    wanted = int(round(seconds * sample_rate))
    samples = samples[:wanted]
    return np.concatenate([samples, np.zeros(wanted - len(samples))])


def mel_filters(sample_rate, fft, mels, low, high):
    """[bins, mels]"""
    to_mel = lambda f: 2595 * np.log10(1 + f / 700)
    edges = np.linspace(to_mel(low), to_mel(high), mels + 2)
    edges = 700 * (10 ** (edges / 2595) - 1)
    bins = np.arange(fft // 2 + 1)[:, None] * sample_rate / fft
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    rise = (bins - left) / (center - left)
    fall = (right - bins) / (right - center)
    return np.maximum(0, np.minimum(rise, fall))


def log_mel(samples, sample_rate, window, hop, fft, mels, low, high, floor):
    """[frames, mels]"""
    count = 1 + (len(samples) - window) // hop
    starts = np.arange(count)[:, None] * hop
    frames = samples[starts + np.arange(window)[None, :]]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.abs(np.fft.rfft(frames * hann, n=fft, axis=1)) ** 2
    energy = power @ mel_filters(sample_rate, fft, mels, low, high)
    return np.log(np.maximum(energy, floor))


def standardize(values):
    return (values - values.mean()) / max(values.std(), 1e-5)


def features(samples):
    """int16 samples to [frames, mels] float32, as the recognisers of this folder want them."""
    audio = pad_or_trim(np.asarray(samples) / 32768.0)
    return standardize(log_mel(audio, **SETTINGS)).astype(np.float32)


def write_reference(path):
    """A short waveform and its log-mel values, for tests of other implementations."""
    n = np.arange(840)
    wave = 9000 * np.sin(2 * np.pi * 440 * n / 8000) + 4000 * np.sin(2 * np.pi * 1900 * n / 8000)
    samples = np.round(wave * (n >= 200)).astype(np.int16)
    audio = np.asarray(samples) / 32768.0
    values = log_mel(audio, **SETTINGS)
    reference = {
        "description": "samples are int16; log_mel is of samples/32768 without padding, "
                       "[frames][mels]; standardized is the same after `standardize`",
        "settings": SETTINGS,
        "samples": samples.tolist(),
        "log_mel": np.round(values, 5).tolist(),
        "standardized": np.round(standardize(values), 5).tolist(),
    }
    pathlib.Path(path).write_text(json.dumps(reference) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the reference vector for tests.")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    write_reference(parser.parse_args().out)
