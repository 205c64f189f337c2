"""Writes the model of train.py as an ONNX file with a cache.

    pip install onnx==1.23.2
    python export.py [--out trained]

`model.onnx` and `manifest.yaml`, which is trained.manifest.yaml with its sha256, come into the folder `--out`, beside
`tokenizer.json`.
"""
import argparse
import hashlib
import re
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "operators/inference/testdata/language"))
from decoder_graph import build


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=HERE / "trained")
    options = options.parse_args()
    weights = dict(np.load(options.out / "weights.npz"))
    made = build(weights, int(weights.pop("heads")))
    (options.out / "model.onnx").write_bytes(made)
    manifest = (HERE / "trained.manifest.yaml").read_text()
    digest = hashlib.sha256(made).hexdigest()
    (options.out / "manifest.yaml").write_text(re.sub(r"sha256: \w+", f"sha256: {digest}", manifest, count=1))


if __name__ == "__main__":
    main()
