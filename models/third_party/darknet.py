"""Darknet: from a network's description (.cfg) and weights to ONNX, with the boxes already decoded.

The file is a list of sections; convolutions (batch normalisation folded in), max pooling, routes, upsampling and the heads
`yolo` and `region` are known, anything else is refused. One file of weights serves any size of picture.

The result reads bytes `[batch, 3, side, side]` and gives `[batch, places, 6]`: middle and size in fractions of the picture,
score, class. A head predicts, for each place of its grid and each of its anchors, where in the place the middle is, by
how much the anchor is stretched, whether anything is there, and of which class (Redmon, Farhadi, 2017 and
2018; Bochkovskiy, Wang, Liao, 2020). In a `region` anchors are counted in places, not pixels, and classes exclude each other.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# COCO's classes that are met on roads, by their places among its 80.
ROAD_CLASSES = {"person": 0, "bicycle": 1, "car": 2, "motorcycle": 3, "bus": 5, "truck": 7}
VARIANCE_FLOOR = 1e-6  # what darknet adds to a standard deviation


class Unknown(ValueError):
    """Something in the description that this cannot convert."""


def sections(text):
    """(kind, settings) of each section."""
    found = []
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("["):
            found.append((line.strip("[]"), {}))
        elif line:
            key, value = line.split("=", 1)
            found[-1][1][key.strip()] = value.strip()
    return found


def values(data):
    """The numbers of a file of weights. Its header has three version numbers and how many pictures were seen."""
    major, minor, _ = np.frombuffer(data[:12], "<i4")
    seen = 8 if major * 10 + minor >= 2 else 4
    return np.frombuffer(data[12 + seen:], "<f4")


class Reader:
    def __init__(self, numbers):
        self.numbers, self.at = numbers, 0

    def take(self, *shape):
        count = int(np.prod(shape))
        if self.at + count > len(self.numbers):
            raise Unknown("there are fewer weights than the description needs")
        part = self.numbers[self.at:self.at + count]
        self.at += count
        return part.reshape(shape)


class Graph:
    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output


def convolution(graph, reader, settings, source, channels, name):
    filters, kernel, stride = (int(settings[key]) for key in ("filters", "size", "stride"))
    padding = kernel // 2 if int(settings.get("pad", 0)) else int(settings.get("padding", 0))
    bias = reader.take(filters)
    if int(settings.get("batch_normalize", 0)):
        scale, mean, variance = (reader.take(filters) for _ in range(3))
        factor = scale / (np.sqrt(variance) + np.float32(VARIANCE_FLOOR))
        bias = bias - mean * factor
    else:
        factor = np.ones(filters, np.float32)
    weights = reader.take(filters, channels, kernel, kernel) * factor[:, None, None, None]
    result = graph.node("Conv", [source, graph.constant(f"{name}.weight", weights), graph.constant(f"{name}.bias", bias)],
                        f"{name}.sum", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)
    if settings["activation"] == "leaky":
        result = graph.node("LeakyRelu", [result], name, alpha=0.1)
    elif settings["activation"] != "linear":
        raise Unknown(f"the activation {settings['activation']}")
    return result, filters


def decoded(graph, settings, source, grid, side, classes, name):
    """A head's boxes [batch, anchors * grid * grid, 6]."""
    is_region = "mask" not in settings
    pairs = np.array([float(n) for n in settings["anchors"].split(",")], np.float32).reshape(-1, 2)
    if is_region:
        if settings.get("softmax") != "1":
            raise Unknown("a region whose classes do not exclude each other")
        mask, pairs = range(len(pairs)), pairs * np.float32(side / grid)
    else:
        mask = [int(n) for n in settings["mask"].split(",")]
        pairs = pairs[mask]
    count, width = len(mask), 5 + int(settings["classes"])
    stretch = float(settings.get("scale_x_y", 1.0))
    shape = graph.constant(f"{name}.shape", np.array([0, count, width, grid * grid], np.int64))
    x = graph.node("Reshape", [source, shape], f"{name}.anchors")
    x = graph.node("Transpose", [x], f"{name}.places", perm=[0, 1, 3, 2])

    def part(low, high, what):
        bounds = [graph.constant(f"{name}.{what}.{key}", np.array([value], np.int64))
                  for key, value in (("from", low), ("to", high), ("axis", 3))]
        return graph.node("Slice", [x, *bounds], f"{name}.{what}")

    rows, columns = np.divmod(np.arange(grid * grid), grid)
    offset = np.stack([columns, rows], axis=1).astype(np.float32) - np.float32((stretch - 1) / 2)
    middle = graph.node("Sigmoid", [part(0, 2, "middle")], f"{name}.in_place")
    middle = graph.node("Mul", [middle, graph.constant(f"{name}.stretch", np.float32(stretch / grid))], f"{name}.stretched")
    middle = graph.node("Add", [middle, graph.constant(f"{name}.grid", offset[None, None] / np.float32(grid))], f"{name}.at")
    size = graph.node("Exp", [part(2, 4, "size")], f"{name}.factor")
    size = graph.node("Mul", [size, graph.constant(f"{name}.anchor", pairs[None, :, None] / np.float32(side))], f"{name}.wide")
    there = graph.node("Sigmoid", [part(4, 5, "there")], f"{name}.is_there")
    if is_region:
        every = graph.node("Softmax", [part(5, width, "every")], f"{name}.of_class", axis=3)
        wanted = graph.constant(f"{name}.wanted", np.array(classes, np.int64))
        kinds = graph.node("Gather", [every, wanted], f"{name}.classes", axis=3)
    else:
        wanted = graph.constant(f"{name}.wanted", np.array([5 + number for number in classes], np.int64))
        kinds = graph.node("Gather", [x, wanted], f"{name}.classes", axis=3)
        kinds = graph.node("Sigmoid", [kinds], f"{name}.of_class")
    best = graph.node("ReduceMax", [kinds], f"{name}.best", axes=[3], keepdims=1)
    score = graph.node("Mul", [there, best], f"{name}.score")
    kind = graph.node("ArgMax", [kinds], f"{name}.which", axis=3, keepdims=1)
    kind = graph.node("Cast", [kind], f"{name}.class", to=TensorProto.FLOAT)
    whole = graph.node("Concat", [middle, size, score, kind], f"{name}.rows", axis=3)
    flat = graph.constant(f"{name}.flat", np.array([0, count * grid * grid, 6], np.int64))
    return graph.node("Reshape", [whole, flat], f"{name}.boxes"), count * grid * grid


def build(text, data, side, classes):
    """The model for pictures of `side` pixels, a multiple of 32."""
    if side % 32:
        raise Unknown(f"a side of {side} pixels; it must be a multiple of 32")
    (kind, network), *layers = sections(text)
    if kind not in ("net", "network") or network.get("channels", "3") != "3":
        raise Unknown("this is no network for pictures of three colours")
    graph, reader = Graph(), Reader(values(data))
    x = graph.node("Cast", ["image"], "input.float", to=TensorProto.FLOAT)
    x = graph.node("Mul", [x, graph.constant("input.scale", np.float32(1 / 255))], "input.scaled")
    channels, size = 3, side
    names, widths, sizes, heads, places = [], [], [], [], 0
    for number, (kind, settings) in enumerate(layers):
        name = f"layer{number}"
        if kind == "convolutional":
            x, channels = convolution(graph, reader, settings, x, channels, name)
            size //= int(settings["stride"])
        elif kind == "maxpool":
            kernel, stride = int(settings["size"]), int(settings["stride"])
            before, after = (kernel - 1) // 2, kernel - 1 - (kernel - 1) // 2
            if stride > 1:
                before, after = 0, max(kernel - stride, 0)
            x = graph.node("MaxPool", [x], name, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                           pads=[before, before, after, after])
            size //= stride
        elif kind == "route":
            sources = [int(n) if int(n) >= 0 else number + int(n) for n in settings["layers"].split(",")]
            size = sizes[sources[0]]
            if "groups" in settings:
                channels = widths[sources[0]] // int(settings["groups"])
                first = channels * int(settings["group_id"])
                bounds = [graph.constant(f"{name}.{key}", np.array([value], np.int64))
                          for key, value in (("from", first), ("to", first + channels), ("axis", 1))]
                x = graph.node("Slice", [names[sources[0]], *bounds], name)
            elif len(sources) == 1:
                x, channels = names[sources[0]], widths[sources[0]]
            else:
                x = graph.node("Concat", [names[n] for n in sources], name, axis=1)
                channels = sum(widths[n] for n in sources)
        elif kind == "upsample":
            factor = int(settings["stride"])
            scales = graph.constant(f"{name}.scales", np.array([1, 1, factor, factor], np.float32))
            x = graph.node("Resize", [x, "", scales], name, mode="nearest", coordinate_transformation_mode="asymmetric",
                           nearest_mode="floor")
            size *= factor
        elif kind in ("yolo", "region"):
            boxes, count = decoded(graph, settings, x, size, side, classes, name)
            heads.append(boxes)
            places += count
        else:
            raise Unknown(f"a section [{kind}]")
        names.append(x)
        widths.append(channels)
        sizes.append(size)
    if reader.at != len(reader.numbers):
        raise Unknown(f"{len(reader.numbers) - reader.at} weights are left over")
    graph.node("Concat", heads, "boxes", axis=1)
    outputs = [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["batch", places, 6])]
    inputs = [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 3, side, side])]
    model = helper.make_model(helper.make_graph(graph.nodes, "darknet", inputs, outputs, graph.constants),
                              opset_imports=[helper.make_opsetid("", 17)], producer_name="tidemill-models-fetch")
    model.ir_version = 8
    return model


def convert(description, weights, side, target):
    model = build(description.read_text(), weights.read_bytes(), side, list(ROAD_CLASSES.values()))
    onnx.checker.check_model(model, full_check=True)
    target.write_bytes(model.SerializeToString(deterministic=True))
