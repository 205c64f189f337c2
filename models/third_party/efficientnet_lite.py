"""EfficientNet-Lite: from a PyTorch state dictionary to ONNX, with a head of ours for scenes.

The network is rebuilt operator by operator from the names of its weights, batch normalisation is folded into
the convolutions, and padding is that of TensorFlow ("same"), where the weights come from. The classifier for
the 1,000 ImageNet classes is left out. In its place comes a small head (`NAME-head.npz`, trained by
train_heads.py on frozen features) which gives the scene descriptor of the shipped image models.
"""

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

REPEATS = [1, 2, 2, 3, 3, 4, 1]
STRIDES = [1, 2, 2, 2, 1, 2, 1]
BATCH_NORM_EPSILON = 1e-3
# The stages after which the head looks at the features: the last one with a cell of 16 pixels, and the
# last one of all.
LOOKED_AT = {4: "middle", 6: "deep"}
DEPTHS = {"efficientnet-lite0": 1.0, "efficientnet-lite1": 1.1, "efficientnet-lite2": 1.2}


class Graph:
    """Nodes and weights that are being put together."""

    def __init__(self):
        self.nodes, self.weights = [], []
        self.weight("zero", np.float32(0))
        self.weight("six", np.float32(6))

    def weight(self, name, values):
        values = np.ascontiguousarray(values)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def convolution(self, source, weights, bias, output, stride=1, size=None, group=1):
        """A convolution with "same" padding for an input of `size` pixels a side."""
        kernel = weights.shape[2]
        before = after = 0
        if kernel > 1:
            whole = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            before, after = whole // 2, whole - whole // 2
        names = [source, self.weight(f"{output}.weight", weights), self.weight(f"{output}.bias", bias)]
        return self.node("Conv", names, output, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                         pads=[before, before, after, after], group=group)


def backbone(graph, state, name, side):
    """Adds the network for images of `side` pixels; gives (map, pixels a side) after each stage that is
    looked at."""
    size = side
    left = {key.rsplit(".", 1)[0] for key in state}

    def folded(source, convolution, normalisation, output, stride=1, depthwise=False, clipped=True):
        nonlocal size
        weights = state[f"{convolution}.weight"]
        left.discard(convolution)
        left.discard(normalisation)
        gamma, beta, mean, variance = (
            state[f"{normalisation}.{part}"] for part in ("weight", "bias", "running_mean", "running_var"))
        scale = gamma / np.sqrt(variance + np.float32(BATCH_NORM_EPSILON))
        result = graph.convolution(
            source, weights * scale[:, None, None, None], beta - mean * scale, output, stride, size,
            group=len(weights) if depthwise else 1)
        size = math.ceil(size / stride)
        return graph.node("Clip", [result, "zero", "six"], f"{output}.clipped") if clipped else result

    x = folded("image", "_conv_stem", "_bn0", "stem", stride=2)
    channels = len(state["_conv_stem.weight"])
    block, found = 0, {}
    for stage, (repeats, stage_stride) in enumerate(zip(REPEATS, STRIDES)):
        # The first and the last stage are as deep in all sizes.
        repeats = repeats if stage in (0, 6) else math.ceil(repeats * DEPTHS[name])
        for number in range(repeats):
            prefix, output, start = f"_blocks.{block}.", f"block{block}", x
            stride = stage_stride if number == 0 else 1
            if f"{prefix}_expand_conv.weight" in state:
                x = folded(x, f"{prefix}_expand_conv", f"{prefix}_bn0", f"{output}.expand")
            x = folded(x, f"{prefix}_depthwise_conv", f"{prefix}_bn1", f"{output}.depthwise", stride,
                       depthwise=True)
            x = folded(x, f"{prefix}_project_conv", f"{prefix}_bn2", f"{output}.project", clipped=False)
            width = len(state[f"{prefix}_project_conv.weight"])
            if stride == 1 and width == channels:
                x = graph.node("Add", [start, x], f"{output}.sum")
            channels, block = width, block + 1
        if stage in LOOKED_AT:
            found[LOOKED_AT[stage]] = (x, size, channels)
    unused = {part for part in left if part.startswith("_blocks.")}
    if unused:
        raise ValueError(f"blocks that {name} should not have: {sorted(unused)[:3]}")
    return found


def save(graph, name, side, outputs, target):
    write(graph, name, [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, side, side])], outputs, target)


def write(graph, name, inputs, outputs, target):
    outputs = [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["batch", *s]) for o, s in outputs]
    model = helper.make_model(
        helper.make_graph(graph.nodes, name, inputs, outputs, graph.weights),
        opset_imports=[helper.make_opsetid("", 17)], producer_name="tidemill-models-fetch")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    with open(target, "wb") as file:
        file.write(model.SerializeToString(deterministic=True))


def pooled(graph, found):
    """What the head sees of each of the 4x4 cells: mean and largest value of the middle features in it, mean
    of the deep ones."""
    (middle, side, _), (deep, deep_side, _) = found["middle"], found["deep"]
    cell, deep_cell = [side // 4] * 2, [deep_side // 4] * 2
    return graph.node("Concat", [
        graph.node("AveragePool", [middle], "middle.mean", kernel_shape=cell, strides=cell),
        graph.node("MaxPool", [middle], "middle.largest", kernel_shape=cell, strides=cell),
        graph.node("AveragePool", [deep], "deep.mean", kernel_shape=deep_cell, strides=deep_cell),
    ], "cells", axis=1)


def convert(state, name, head_file, target):
    """Writes the network and its head as `target`."""
    with np.load(head_file, allow_pickle=False) as head:
        hidden, hidden_bias, last, last_bias = (
            head[part].astype(np.float32) for part in ("hidden", "hidden_bias", "last", "last_bias"))
        groups, side = head["groups"].tolist(), int(head["side"])
    graph = Graph()
    x = pooled(graph, backbone(graph, state, name, side))
    x = graph.convolution(x, hidden[:, :, None, None], hidden_bias, "head.hidden")
    x = graph.node("Relu", [x], "head.relu")
    x = graph.convolution(x, last[:, :, None, None], last_bias, "head.last")
    x = graph.node("Transpose", [x], "head.cells_first", perm=[0, 2, 3, 1])
    x = graph.node("Reshape", [x, graph.weight("cells_shape", np.array([0, 16, len(last)]))], "head.cells")
    # The first value of a cell is the probability that something is there; then come groups of probabilities.
    widths = graph.weight("groups", np.array([1, *groups]))
    parts = [f"head.part{i}" for i in range(len(groups) + 1)]
    graph.nodes.append(helper.make_node("Split", [x, widths], parts, name="head.split", axis=2))
    parts = [graph.node("Softmax" if i else "Sigmoid", [part], f"{part}.probabilities",
                        **({"axis": 2} if i else {})) for i, part in enumerate(parts)]
    x = graph.node("Concat", parts, "head.probabilities", axis=2)
    graph.node("Reshape", [x, graph.weight("features_shape", np.array([0, 16 * len(last)]))], "features")
    save(graph, name, side, [("features", [16 * len(last)])], target)


def convert_to_embedding(state, name, side, target):
    """Writes the network without any head as `target`: bytes in, the mean of its last features out, of length 1."""
    graph = Graph()
    x = graph.node("Cast", ["bytes"], "bytes.float", to=TensorProto.FLOAT)
    x = graph.node("Sub", [x, graph.weight("mean", np.float32(127))], "bytes.centred")
    graph.node("Div", [x, graph.weight("deviation", np.float32(128))], "image")
    x, _, channels = backbone(graph, state, name, side)["deep"]
    x = graph.node("GlobalAveragePool", [x], "pooled")
    x = graph.node("Flatten", [x], "flat")
    length = graph.node("ReduceL2", [x], "length", axes=[1], keepdims=1)
    graph.node("Div", [x, length], "embedding")
    inputs = [helper.make_tensor_value_info("bytes", TensorProto.UINT8, ["batch", 3, side, side])]
    write(graph, name, inputs, [("embedding", [channels])], target)
