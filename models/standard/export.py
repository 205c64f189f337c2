"""Writes standard models with random weights: `export.py [NAME...]`, all of them without a name.

They are as large, and compute as much, as the models that the publication measured; what they say means nothing. Each
goes to `models/NAME` in Tidemill's cache folder, or to NAME in the folder of --out, with its manifest beside it.

Needs Python 3.11 or later and the packages of models/third_party/requirements.txt.
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import sys

import answerer
import resnet
import wav2vec2

HERE = pathlib.Path(__file__).resolve().parent
# The length of the published sounds: their messages are of 24,825 samples of 4 bytes.
SAMPLES = 24800

# Name, seed, network.
MODELS = {
    **{f"resnet{depth}": (depth, lambda depth=depth: resnet.build(depth)) for depth in resnet.BLOCKS},
    "wav2vec2-base-960h": (1, lambda: wav2vec2.build("base", SAMPLES)),
    "wav2vec2-large-960h-lv60-self": (2, lambda: wav2vec2.build("large", SAMPLES)),
    "vqa-default": (3, answerer.build),
}


def cache():
    """The folder that Tidemill looks into."""
    for variable, below in (("TIDEMILL_CACHE", ""), ("XDG_CACHE_HOME", "tidemill"), ("HOME", ".cache/tidemill")):
        folder = os.environ.get(variable)
        if folder and os.path.isabs(folder):
            return pathlib.Path(folder) / below
    raise SystemExit("there is no home folder: give --out")


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tried(path, network):
    """Runs the file on two records of noise."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(0)
    given = {}
    for name, shape, kind in network.inputs:
        sizes = [2, *shape]
        given[name] = (numbers.integers(0, 32, sizes, dtype=np.int64) if kind == "int64"
                       else numbers.standard_normal(sizes, dtype=np.float32))
    (result,) = session.run(None, given)
    wanted = (2, *network.outputs[0].shape)
    if result.shape != wanted or not np.isfinite(result).all():
        raise SystemExit(f"{path.name}: expected finite numbers of shape {wanted}, got {result.shape}")
    return float(result.std())


def export(name, folder, run, refresh):
    manifest = HERE / f"{name}.yaml"
    seed, build = MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.onnx"
    wanted = re.search(r"(?m)^sha256: (\w+)$", manifest.read_text()).group(1)
    if refresh or not (target.is_file() and digest(target) == wanted):
        import onnx_file

        onnx_file.write(build(), seed, target)
    found = digest(target)
    if refresh:
        network, text = build(), manifest.read_text()
        for key, value in (("sha256", found), ("parameters", network.parameters), ("seed", seed),
                           ("flops", 2 * network.multiplications)):
            text = re.sub(rf"(?m)^( *{key}:) \w+$", rf"\1 {value}", text)
        manifest.write_text(text)
    elif found != wanted:
        raise SystemExit(f"{target} has the sha256 {found}, the manifest {manifest.name} says {wanted}: "
                         "were the packages of models/third_party/requirements.txt used?")
    shutil.copyfile(manifest, folder / manifest.name)
    spread = f", outputs of standard deviation {tried(target, build()):.3g}" if run else ""
    print(f"{name}: {target} ({target.stat().st_size / 2**20:.0f} MiB{spread})", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    arguments.add_argument("--out", type=pathlib.Path, help="instead of the cache folder")
    arguments.add_argument("--try", dest="run", action="store_true", help="run each in ONNX Runtime on noise")
    arguments.add_argument("--refresh-manifests", action="store_true", help="write checksum and sizes into the manifests")
    options = arguments.parse_args()
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        arguments.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        requirements = HERE.parent / "third_party" / "requirements.txt"
        sys.exit(f"the package onnx is missing: python3 -m venv ENV && ENV/bin/pip install -r {requirements}, "
                 f"then ENV/bin/python {pathlib.Path(__file__).name} again")
    folder = options.out or cache() / "models"
    for name in options.names or MODELS:
        export(name, folder / name, options.run, options.refresh_manifests)


if __name__ == "__main__":
    main()
