#!/usr/bin/env python3
"""Writes what ONNX Runtime computes of made-up inputs: scripts/onnx_reference.py MODEL.onnx FOLDER/NAME

NAME.json describes the inputs and outputs, whose values are in NAME.in0, NAME.out0 and so on. Batch of 2, the same inputs each time."""
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": "float32", "tensor(uint8)": "uint8", "tensor(int64)": "int64"}


def made(random, port):
    """Values of an input: pictures as bytes, token numbers as small integers, floats around zero."""
    shape = [size if isinstance(size, int) else 2 for size in port.shape]
    if port.type == "tensor(float)":
        return random.standard_normal(shape, dtype=np.float32)
    return random.integers(0, 256 if port.type == "tensor(uint8)" else 16, shape, dtype=TYPES[port.type])


def main():
    source, target = sys.argv[1], Path(sys.argv[2])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(7)
    inputs = {port.name: made(random, port) for port in session.get_inputs()}
    outputs = session.run(None, inputs)
    names = [port.name for port in session.get_outputs()]
    ports = {"inputs": [], "outputs": []}
    for kind, short, values in (("inputs", "in", inputs.items()), ("outputs", "out", zip(names, outputs))):
        for at, (name, value) in enumerate(values):
            target.with_name(f"{target.name}.{short}{at}").write_bytes(np.ascontiguousarray(value).tobytes())
            ports[kind].append({"name": name, "element": str(value.dtype), "shape": list(value.shape)})
    target.with_name(f"{target.name}.json").write_text(json.dumps(ports, indent=1))


if __name__ == "__main__":
    main()
