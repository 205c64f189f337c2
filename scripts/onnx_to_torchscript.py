#!/usr/bin/env python3
"""Writes an ONNX file as TorchScript, which libtorch reads: scripts/onnx_to_torchscript.py MODEL.onnx MODEL.pt

PyTorch is not needed (its package takes 5 GB): a TorchScript file is a zip with code as text, and weights. Each operator becomes one
line of code; shapes that depend on the batch are read when the model runs. An operator that is missing here is an error.
TorchScript is legacy in PyTorch, which has moved to packages of `torch.export`; libtorch still reads it."""
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

STORAGES = {"float32": "Float", "float64": "Double", "int64": "Long", "int32": "Int", "int8": "Char", "uint8": "Byte", "bool": "Bool"}
# Numbers of element types: those of ONNX, and what torch calls them.
CASTS = {1: 6, 2: 0, 3: 1, 6: 3, 7: 4, 9: 11, 10: 5, 11: 7}
PLAIN = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Exp": "exp", "Sqrt": "sqrt", "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div",
    "MatMul": "matmul", "GreaterOrEqual": "ge",
}  # fmt: skip


class Unsupported(Exception):
    """An operator, or a form of one, that is not converted."""


class Converter:
    """The code and weights of one model."""

    def __init__(self, model):
        model = onnx.shape_inference.infer_shapes(model)
        graph = model.graph
        self.known = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
        known_ports = [*graph.input, *graph.value_info, *graph.output]
        self.shapes = {port.name: port.type.tensor_type.shape.dim for port in known_ports}
        self.names, self.weights, self.lists, self.lines = {}, {}, {}, []
        self.inputs = [port.name for port in graph.input if port.name not in self.known]
        for name in self.inputs:
            self.names[name] = f"x{len(self.names)}"
        for node in graph.node:
            self.node(node)
        self.results = [self.tensor(port.name) for port in graph.output]

    def tensor(self, name):
        """Code of a tensor."""
        if name in self.names:
            return self.names[name]
        if name not in self.known:
            raise Unsupported(f"the value {name} is not computed by code")
        value = self.known[name]
        if str(value.dtype) not in STORAGES:
            raise Unsupported(f"a weight of {value.dtype}")
        attribute = f"w{len(self.weights)}"
        self.weights[attribute] = value
        self.names[name] = f"self.{attribute}"
        return self.names[name]

    def numbers(self, name):
        """A constant as numbers."""
        if name not in self.known:
            raise Unsupported(f"{name} must be a constant")
        return self.known[name].tolist()

    def rank(self, name):
        """Number of dimensions."""
        if name in self.known:
            return self.known[name].ndim
        if name not in self.shapes:
            raise Unsupported(f"the number of dimensions of {name} is not known")
        return len(self.shapes[name])

    def parts(self, name):
        """A list of integers, each a number or code."""
        if name in self.lists:
            return self.lists[name]
        numbers = self.numbers(name)
        return numbers if isinstance(numbers, list) else [numbers]

    def put(self, name, code):
        """Adds a line."""
        self.names[name] = f"v{len(self.lines)}"
        self.lines.append(f"    {self.names[name]} = {code}")

    def node(self, node):
        """Adds the code of an operator."""
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        inputs, output = list(node.input), node.output[0]
        if node.domain not in ("", "ai.onnx"):
            raise Unsupported(f"the operator {node.domain}.{node.op_type}")
        if node.op_type == "Constant":
            self.known[output] = numpy_helper.to_array(attributes["value"])
        elif node.op_type in PLAIN:
            self.put(output, f"torch.{PLAIN[node.op_type]}({', '.join(map(self.tensor, inputs))})")
        else:
            convert = getattr(self, f"of_{node.op_type.lower()}", None)
            if convert is None:
                raise Unsupported(f"the operator {node.op_type}")
            code = convert(node, inputs, attributes)
            if code is not None:
                self.put(output, code)

    def padded(self, name, pads, value="0."):
        """Code of a picture with the paddings that its operator does not do, and those that it does."""
        half = len(pads) // 2
        if pads[:half] == pads[half:]:
            return self.tensor(name), pads[:half]
        each = [number for axis in reversed(range(half)) for number in (pads[axis], pads[half + axis])]
        return f"torch.constant_pad_nd({self.tensor(name)}, {each}, {value})", [0] * half

    def of_conv(self, _, inputs, a):
        if a.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise Unsupported("Conv with auto_pad")
        size = self.rank(inputs[1]) - 2
        x, pads = self.padded(inputs[0], list(a.get("pads", [0] * 2 * size)))
        bias = self.tensor(inputs[2]) if len(inputs) > 2 else "None"
        strides, dilations = list(a.get("strides", [1] * size)), list(a.get("dilations", [1] * size))
        weight, group = self.tensor(inputs[1]), a.get("group", 1)
        return f"torch.conv{size}d({x}, {weight}, {bias}, {strides}, {pads}, {dilations}, {group})"

    def of_gemm(self, _, inputs, a):
        if (a.get("alpha", 1.0), a.get("beta", 1.0), a.get("transA", 0), a.get("transB", 0)) != (1.0, 1.0, 0, 1):
            raise Unsupported("Gemm other than of a layer")
        return f"torch.linear({', '.join(map(self.tensor, inputs))})"

    def of_batchnormalization(self, _, inputs, a):
        x, scale, bias, mean, variance = map(self.tensor, inputs)
        return f"torch.batch_norm({x}, {scale}, {bias}, {mean}, {variance}, False, 0., {a.get('epsilon', 1e-5)!r}, False)"

    def pool(self, inputs, a):
        size = len(a["kernel_shape"])
        pads, ceil = list(a.get("pads", [0] * 2 * size)), bool(a.get("ceil_mode", 0))
        if size != 2 or pads[:2] != pads[2:] or a.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise Unsupported("a pool other than of pictures with equal paddings")
        return self.tensor(inputs[0]), list(a["kernel_shape"]), list(a.get("strides", [1, 1])), pads[:2], ceil

    def of_averagepool(self, _, inputs, a):
        x, kernel, strides, pads, ceil = self.pool(inputs, a)
        counts = bool(a.get("count_include_pad", 0))
        return f"torch.avg_pool2d({x}, {kernel}, {strides}, {pads}, {ceil}, {counts})"

    def of_maxpool(self, _, inputs, a):
        x, kernel, strides, pads, ceil = self.pool(inputs, a)
        return f"torch.max_pool2d({x}, {kernel}, {strides}, {pads}, {list(a.get('dilations', [1, 1]))}, {ceil})"

    def of_softmax(self, _, inputs, a):
        return f"torch.softmax({self.tensor(inputs[0])}, {a.get('axis', -1)})"

    def of_reducesum(self, _, inputs, a):
        axes = self.numbers(inputs[1])
        return f"torch.sum({self.tensor(inputs[0])}, {axes}, {bool(a.get('keepdims', 1))})"

    def of_transpose(self, _, inputs, a):
        return f"torch.permute({self.tensor(inputs[0])}, {list(a['perm'])})"

    def of_flatten(self, _, inputs, a):
        if a.get("axis", 1) != 1:
            raise Unsupported("Flatten of another axis than 1")
        return f"torch.flatten({self.tensor(inputs[0])}, 1)"

    def of_unsqueeze(self, node, inputs, a):
        axes = self.numbers(inputs[1])
        if inputs[0] in self.lists:
            self.lists[node.output[0]] = self.lists[inputs[0]]
            return None
        if len(axes) != 1:
            raise Unsupported("Unsqueeze of several axes")
        return f"torch.unsqueeze({self.tensor(inputs[0])}, {axes[0]})"

    def of_shape(self, node, inputs, a):
        sizes = range(self.rank(inputs[0]))
        self.lists[node.output[0]] = [f"torch.size({self.tensor(inputs[0])}, {axis})" for axis in sizes]

    def of_slice(self, node, inputs, a):
        starts, ends, axes = (self.numbers(name) for name in inputs[1:4])
        steps = self.numbers(inputs[4]) if len(inputs) > 4 else [1] * len(axes)
        if min(steps) < 1:
            raise Unsupported("Slice backwards")
        if inputs[0] in self.lists:
            self.lists[node.output[0]] = self.lists[inputs[0]][starts[0] : ends[0] : steps[0]]
            return None
        code = self.tensor(inputs[0])
        for axis, start, end, step in zip(axes, starts, ends, steps):
            code = f"torch.slice({code}, {axis}, {start}, {end}, {step})"
        return code

    def of_concat(self, node, inputs, a):
        if any(name in self.lists for name in inputs):
            self.lists[node.output[0]] = [part for name in inputs for part in self.parts(name)]
            return None
        return f"torch.cat([{', '.join(map(self.tensor, inputs))}], {a['axis']})"

    def of_reshape(self, _, inputs, a):
        x, parts = self.tensor(inputs[0]), self.parts(inputs[1])
        parts = [f"torch.size({x}, {at})" if part == 0 else str(part) for at, part in enumerate(parts)]
        return f"torch.reshape({x}, [{', '.join(parts)}])"

    def of_split(self, node, inputs, a):
        start, x = 0, self.tensor(inputs[0])
        for output, size in zip(node.output, self.numbers(inputs[1])):
            self.put(output, f"torch.slice({x}, {a.get('axis', 0)}, {start}, {start + size}, 1)")
            start += size

    def of_gather(self, _, inputs, a):
        if a.get("axis", 0) != 0 or self.rank(inputs[0]) != 2 or self.rank(inputs[1]) == 0:
            raise Unsupported("Gather other than of rows of a table")
        return f"torch.embedding({self.tensor(inputs[0])}, {self.tensor(inputs[1])})"

    def of_cast(self, _, inputs, a):
        if a["to"] not in CASTS:
            raise Unsupported(f"Cast to the element type {a['to']}")
        return f"torch.to({self.tensor(inputs[0])}, {CASTS[a['to']]})"

    def of_clip(self, _, inputs, a):
        bounds = [repr(self.numbers(name)) if name else "None" for name in inputs[1:3]]
        return f"torch.clamp({self.tensor(inputs[0])}, {', '.join(bounds)})"

    def of_argmax(self, _, inputs, a):
        return f"torch.argmax({self.tensor(inputs[0])}, {a.get('axis', 0)}, {bool(a.get('keepdims', 1))})"

    def of_resize(self, _, inputs, a):
        form = a.get("coordinate_transformation_mode"), a.get("mode"), a.get("nearest_mode")
        scales = self.numbers(inputs[2]) if len(inputs) == 3 else []
        if form != (b"asymmetric", b"nearest", b"floor") or scales[:2] != [1.0, 1.0] or len(scales) != 4:
            raise Unsupported("Resize other than of pictures to the nearest pixel")
        return f"torch.upsample_nearest2d({self.tensor(inputs[0])}, None, {scales[2:]})"

    def of_quantizelinear(self, _, inputs, a):
        scale, zero = self.numbers(inputs[1]), self.known[inputs[2]]
        if zero.ndim != 0:
            raise Unsupported("QuantizeLinear by channel")
        range_ = np.iinfo(zero.dtype)
        code = f"torch.add(torch.round(torch.div({self.tensor(inputs[0])}, {scale!r})), {int(zero)})"
        return f"torch.clamp({code}, {range_.min}, {range_.max})"

    def of_dequantizelinear(self, node, inputs, a):
        scale, zero = self.known[inputs[1]], self.known[inputs[2]]
        if inputs[0] in self.known:
            # Weights are stored as the floats that they stand for.
            value = self.known[inputs[0]]
            if scale.ndim:
                sides = [-1 if axis == a.get("axis", 1) else 1 for axis in range(value.ndim)]
                scale, zero = scale.reshape(sides), zero.reshape(sides)
            whole = value.astype(np.int32) - zero.astype(np.int32)
            self.known[node.output[0]] = (whole * scale).astype(np.float32)
            return None
        if scale.ndim:
            raise Unsupported("DequantizeLinear of values by channel")
        return f"torch.mul(torch.sub({self.tensor(inputs[0])}, {int(zero)}), {float(scale)!r})"

    def code(self):
        """The module as source text."""
        ports = "".join(f", {self.names[name]}: Tensor" for name in self.inputs)
        one = len(self.results) == 1
        kinds = "Tensor" if one else f"Tuple[{', '.join(['Tensor'] * len(self.results))}]"
        results = self.results[0] if one else f"({', '.join(self.results)})"
        lines = ["class Net(Module):", "  __parameters__ = []"]
        names = "".join(f'"{name}", ' for name in self.weights)
        lines.append(f"  __buffers__ = [{names}]")
        lines += ["  training : bool", *(f"  {name} : Tensor" for name in self.weights)]
        lines += [f"  def forward(self: __torch__.Net{ports}) -> {kinds}:", *self.lines, f"    return {results}"]
        return "\n".join(lines) + "\n"


def text(word):
    """A string of a pickle."""
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def integer(number):
    """An integer of a pickle."""
    return b"J" + struct.pack("<i", number)


def pickled(weights):
    """The module's values as a pickle."""
    out = [b"\x80\x02c__torch__\nNet\n)\x81}(", text("training"), b"\x89"]
    for key, (name, value) in enumerate(weights.items()):
        sides = b"".join(map(integer, value.shape))
        strides = b"".join(integer(stride // value.itemsize) for stride in np.ascontiguousarray(value).strides[: value.ndim])
        out += [text(name), b"ctorch._utils\n_rebuild_tensor_v2\n((", text("storage")]
        out += [f"ctorch\n{STORAGES[str(value.dtype)]}Storage\n".encode(), text(str(key)), text("cpu"), integer(value.size)]
        out += [b"tQ", integer(0), b"(", sides, b"t(", strides, b"t\x89ccollections\nOrderedDict\n)RtR"]
    return b"".join([*out, b"ub."])


def write(converter, path):
    """Writes the file; the same model gives the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:

        def put(name, content):
            archive.writestr(zipfile.ZipInfo(f"{path.stem}/{name}"), content)

        put("data.pkl", pickled(converter.weights))
        put("code/__torch__.py", converter.code())
        for key, value in enumerate(converter.weights.values()):
            put(f"data/{key}", np.ascontiguousarray(value).tobytes())
        put("constants.pkl", b"\x80\x02).")
        put("version", "10\n")


def main():
    source, target = map(Path, sys.argv[1:3])
    try:
        write(Converter(onnx.load(source)), target)
    except Unsupported as error:
        sys.exit(f"{source.name}: {error} is not converted")


if __name__ == "__main__":
    main()
