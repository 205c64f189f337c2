#!/usr/bin/env python3
"""Compiles an ONNX file to a package of PyTorch for this processor: scripts/onnx_to_package.py MODEL.onnx MODEL.pt2

It needs PyTorch 2.13 (5 GB), onnx, and a C++ compiler. The model is exported by `torch.export`, and AOTInductor compiles it for one
thread: the package holds machine code for processors with the instructions of this one. Sizes without a number in the ONNX file, such
as the batch, stay free."""
import sys
from pathlib import Path

import onnx
import torch
from onnx_to_torchscript import CASTS, Converter, Unsupported

# Element types by the numbers that TorchScript has for them.
TYPES = {0: torch.uint8, 1: torch.int8, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32, 7: torch.float64, 11: torch.bool}

# Sizes that stay free may be 1, although torch.export assumes 2 or more of them.
OPTIONS = {"aot_inductor.check_lowerbound": False}


class Operators:
    """The operators that the converter's code names, as functions of Python."""

    def __getattr__(self, name):
        return getattr(torch.ops.aten, name)

    @staticmethod
    def to(value, kind):
        return value.to(TYPES[kind])


def module(converter):
    """The converted model as a module."""
    ports = ", ".join(converter.names[name] for name in converter.inputs)
    results = converter.results[0] if len(converter.results) == 1 else f"({', '.join(converter.results)})"
    scope = {"torch": Operators()}
    exec("\n".join([f"def forward(self, {ports}):", *converter.lines, f"    return {results}"]), scope)
    net = type("Net", (torch.nn.Module,), {"forward": scope["forward"]})()
    for name, value in converter.weights.items():
        net.register_buffer(name, torch.from_numpy(value.copy()))
    return net.eval()


def example(port):
    """A value of an input, and which of its sizes are free."""
    tensor = port.type.tensor_type
    sizes = [size.dim_value for size in tensor.shape.dim]
    free = {at: torch.export.Dim.DYNAMIC for at, size in enumerate(sizes) if not size}
    value = torch.zeros([size or 2 for size in sizes], dtype=TYPES[CASTS[tensor.elem_type]])
    return value, free


def main():
    source, target = map(Path, sys.argv[1:3])
    # It is compiled for as many threads as there are now.
    torch.set_num_threads(1)
    model = onnx.load(source)
    try:
        converter = Converter(model)
    except Unsupported as error:
        sys.exit(f"{source.name}: {error} is not converted")
    ports = {port.name: port for port in model.graph.input}
    values, free = zip(*(example(ports[name]) for name in converter.inputs))
    with torch.no_grad():
        try:
            exported = torch.export.export(module(converter), values, dynamic_shapes=free)
        except torch._dynamo.exc.UserError as error:
            sys.exit(f"{source.name}: it is not exported: {str(error).splitlines()[0]}")
        torch._inductor.aoti_compile_and_package(exported, package_path=str(target), inductor_configs=OPTIONS)


if __name__ == "__main__":
    main()
