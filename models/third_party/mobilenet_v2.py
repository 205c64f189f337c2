"""MobileNetV2 without its classifier, from a PyTorch state dictionary to ONNX: a picture becomes a vector of length 1.

Sandler et al., 2018: an expansion, a convolution by channel and a projection make a block; batch normalisation is folded
into the convolutions. Bytes go in; the graph subtracts the mean and divides by the deviation of ImageNet.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper

from darknet import Graph

# factor of the expansion, channels, blocks, stride of the first
STAGES = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
EPSILON = 1e-5
MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32) * 255


def normalised(graph, mean, deviation):
    """From bytes to what the network was trained with."""
    x = graph.node("Cast", ["image"], "input.float", to=TensorProto.FLOAT)
    x = graph.node("Sub", [x, graph.constant("input.mean", mean.reshape(1, 3, 1, 1))], "input.centred")
    return graph.node("Div", [x, graph.constant("input.deviation", deviation.reshape(1, 3, 1, 1))], "input.scaled")


def of_length_one(graph, x):
    """The mean of each channel, divided by the Euclidean length of all of them, as `embedding`."""
    x = graph.node("GlobalAveragePool", [x], "pooled")
    x = graph.node("Flatten", [x], "flat")
    length = graph.node("ReduceL2", [x], "length", axes=[1], keepdims=1)
    graph.node("Div", [x, length], "embedding")


def save(graph, name, side, width, target):
    inputs = [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 3, side, side])]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", width])]
    model = helper.make_model(helper.make_graph(graph.nodes, name, inputs, outputs, graph.constants),
                              opset_imports=[helper.make_opsetid("", 17)], producer_name="tidemill-models-fetch")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    target.write_bytes(model.SerializeToString(deterministic=True))


def convert(state, side, target):
    graph = Graph()
    graph.constant("zero", np.float32(0))
    graph.constant("six", np.float32(6))

    def folded(x, convolution, normalisation, stride=1, by_channel=False, clipped=True):
        weights = state[f"{convolution}.weight"]
        scale, shift, mean, variance = (
            state[f"{normalisation}.{part}"] for part in ("weight", "bias", "running_mean", "running_var"))
        factor = scale / np.sqrt(variance + np.float32(EPSILON))
        kernel = weights.shape[2]
        name = convolution
        names = [x, graph.constant(f"{name}.weight", weights * factor[:, None, None, None]),
                 graph.constant(f"{name}.bias", shift - mean * factor)]
        x = graph.node("Conv", names, f"{name}.sum", kernel_shape=[kernel] * 2, strides=[stride] * 2,
                       pads=[kernel // 2] * 4, group=len(weights) if by_channel else 1)
        return graph.node("Clip", [x, "zero", "six"], f"{name}.clipped") if clipped else x

    x = folded(normalised(graph, MEAN, DEVIATION), "features.0.0", "features.0.1", stride=2)
    channels, block = 32, 1
    for expansion, width, blocks, first in STAGES:
        for number in range(blocks):
            stride = first if number == 0 else 1
            prefix, start, at = f"features.{block}.conv", x, 0
            if expansion != 1:
                x = folded(x, f"{prefix}.0", f"{prefix}.1")
                at = 3
            x = folded(x, f"{prefix}.{at}", f"{prefix}.{at + 1}", stride, by_channel=True)
            x = folded(x, f"{prefix}.{at + 3}", f"{prefix}.{at + 4}", clipped=False)
            if stride == 1 and channels == width:
                x = graph.node("Add", [start, x], f"{prefix}.added")
            channels, block = width, block + 1
    x = folded(x, "features.18.0", "features.18.1")
    of_length_one(graph, x)
    save(graph, "mobilenet-v2", side, len(state["features.18.0.weight"]), target)
