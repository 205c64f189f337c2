"""Writes spectra.json: mel spectra as librosa computes them, the references of the tests in src/mel.rs.

Needs `pip install numpy librosa`; made with librosa 0.11.0. The window of librosa is in the middle of `n_fft` samples.
"""
import json
import os

import librosa
import numpy as np

# Settings, and those of librosa for the same.
CASES = [
    ({"sample_rate": 16000, "window": 400, "hop": 160, "fft": 512, "mels": 10, "low": 0, "high": 8000, "floor": 1e-10,
      "adds_floor": True, "log10": True, "scale": "slaney", "taper": "hamming"},
     {"htk": False, "norm": "slaney", "window": "hamming"}),
    ({"sample_rate": 22050, "window": 512, "hop": 256, "fft": 512, "mels": 8, "low": 50, "high": 11000, "floor": 1e-5,
      "adds_floor": False, "log10": False, "scale": "slaney", "taper": "hann"},
     {"htk": False, "norm": "slaney", "window": "hann"}),
    ({"sample_rate": 8000, "window": 201, "hop": 90, "fft": 300, "mels": 6, "low": 60, "high": 3900, "floor": 1e-6,
      "adds_floor": True, "log10": False, "scale": "htk", "taper": "hann_symmetric"},
     {"htk": True, "norm": None, "window": np.hanning(201)}),
]


def samples(rate):
    """Two tones and a little noise, in 16-bit steps; a quiet end shows the floor."""
    t = np.arange(1100) / rate
    noise = (np.arange(1100) * 7919 % 101 - 50) / 5000
    sound = 0.4 * np.sin(2 * np.pi * 440 * t) + 0.2 * np.sin(2 * np.pi * 1900 * t) + noise
    sound[900:] *= 1e-4
    return np.round(sound * 32767).astype(int)


spectra = []
for settings, theirs in CASES:
    sound = samples(settings["sample_rate"])
    energy = librosa.feature.melspectrogram(
        y=(sound / 32768).astype(np.float64), sr=settings["sample_rate"], n_fft=settings["fft"], hop_length=settings["hop"],
        win_length=settings["window"], center=False, power=2.0, n_mels=settings["mels"], fmin=settings["low"],
        fmax=settings["high"], dtype=np.float64, **theirs)
    floor = settings["floor"]
    energy = energy + floor if settings["adds_floor"] else np.maximum(energy, floor)
    values = np.log10(energy) if settings["log10"] else np.log(energy)
    spectra.append({**settings, "samples": sound.tolist(), "values": np.round(values.T, 5).tolist()})
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spectra.json")
with open(path, "w", encoding="utf-8") as file:
    file.write("[\n" + ",\n".join(json.dumps(spectrum) for spectrum in spectra) + "\n]\n")
