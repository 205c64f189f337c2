"""A network as a list of nodes and weights: shapes, numbers of weights and of operations are known before anything is
computed, so that they can be checked without any package. `onnx_file.py` writes it.

Shapes are those of one record, the batch is left out.
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What a node gives."""

    name: str
    shape: tuple


@dataclasses.dataclass(frozen=True)
class Weight:
    """A tensor of the file: uniform between -bound and bound, or `value` everywhere."""

    name: str
    shape: tuple
    bound: float = 0.0
    value: float = 0.0


@dataclasses.dataclass(frozen=True)
class Integers:
    """A list of whole numbers, such as a shape; no weights."""

    name: str
    values: tuple


@dataclasses.dataclass(frozen=True)
class Node:
    kind: str
    inputs: tuple
    outputs: tuple
    attributes: dict


class Network:
    def __init__(self, name):
        self.name = name
        self.inputs, self.outputs = [], []
        self.nodes, self.weights, self.constants = [], [], []
        # What training learns: the running mean and variance of a normalisation are not counted, as elsewhere.
        self.parameters = 0
        self.multiplications = 0  # of one record, each with its addition: convolutions and matrices

    def input(self, name, *shape, kind="float32"):
        self.inputs.append((name, shape, kind))
        return Tensor(name, shape)

    def output(self, tensor, name):
        """Gives a tensor its name as an output."""
        self.nodes.append(Node("Identity", (tensor.name,), (name,), {}))
        self.outputs.append(Tensor(name, tensor.shape))

    def weight(self, name, *shape, deviation=0.0, value=0.0, learned=True):
        """A weight of this standard deviation, or constant."""
        self.weights.append(Weight(name, shape, deviation * math.sqrt(3), value))
        self.parameters += math.prod(shape) if learned else 0
        return name

    def integers(self, name, *values):
        if not any(known.name == name for known in self.constants):
            self.constants.append(Integers(name, values))
        return name

    def node(self, kind, inputs, name, shape, **attributes):
        names = tuple(part.name if isinstance(part, Tensor) else part for part in inputs)
        self.nodes.append(Node(kind, names, (name,), attributes))
        return Tensor(name, tuple(shape))

    def node_with_outputs(self, kind, inputs, outputs, **attributes):
        """A node that gives all of these."""
        self.nodes.append(Node(kind, tuple(inputs), tuple(output.name for output in outputs), attributes))

    def convolution(self, source, name, channels, kernel, stride=1, padding=0, groups=1, bias=False):
        """As many dimensions as the source has behind its channels; variance is kept through a rectifier."""
        inside, *sides = source.shape
        fan_in = inside // groups * kernel ** len(sides)
        weights = self.weight(f"{name}.weight", channels, inside // groups, *[kernel] * len(sides),
                              deviation=math.sqrt(2 / fan_in))
        inputs = [source, weights]
        if bias:
            inputs.append(self.weight(f"{name}.bias", channels))
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
        self.multiplications += channels * fan_in * math.prod(sides)
        return self.node("Conv", inputs, name, (channels, *sides), kernel_shape=[kernel] * len(sides),
                         strides=[stride] * len(sides), pads=[padding] * (2 * len(sides)), group=groups)

    def linear(self, source, name, width, deviation=None):
        """On the last dimension, with bias; variance is kept unless a deviation is given."""
        *before, inside = source.shape
        deviation = 1 / math.sqrt(inside) if deviation is None else deviation
        weights = self.weight(f"{name}.weight", inside, width, deviation=deviation)
        self.multiplications += math.prod(before) * inside * width
        product = self.node("MatMul", [source, weights], f"{name}.product", (*before, width))
        return self.node("Add", [product, self.weight(f"{name}.bias", width)], name, product.shape)

    def product(self, left, right, name):
        """Matrix by matrix."""
        *before, rows, inside = left.shape
        self.multiplications += math.prod(before) * rows * inside * right.shape[-1]
        return self.node("MatMul", [left, right], name, (*before, rows, right.shape[-1]))

    def batch_normalisation(self, source, name, scale=1.0):
        channels = source.shape[0]
        inputs = [source, self.weight(f"{name}.weight", channels, value=scale), self.weight(f"{name}.bias", channels)]
        inputs += [self.weight(f"{name}.mean", channels, learned=False),
                   self.weight(f"{name}.variance", channels, value=1.0, learned=False)]
        return self.node("BatchNormalization", inputs, name, source.shape, epsilon=1e-5)

    def channel_normalisation(self, source, name):
        """Group normalisation with as many groups as channels."""
        channels = source.shape[0]
        inputs = [source, self.weight(f"{name}.weight", channels, value=1.0), self.weight(f"{name}.bias", channels)]
        return self.node("InstanceNormalization", inputs, name, source.shape, epsilon=1e-5)

    def layer_normalisation(self, source, name):
        width = source.shape[-1]
        inputs = [source, self.weight(f"{name}.weight", width, value=1.0), self.weight(f"{name}.bias", width)]
        return self.node("LayerNormalization", inputs, name, source.shape, axis=-1, epsilon=1e-5)

    def rectified(self, source):
        return self.node("Relu", [source], f"{source.name}.rectified", source.shape)

    def gelu(self, source):
        """x (1 + erf(x / sqrt 2)) / 2, in the form that runtimes look for."""
        name = source.name
        for constant, value in (("sqrt_two", math.sqrt(2)), ("one", 1.0), ("half", 0.5)):
            if not any(known.name == constant for known in self.weights):
                self.weight(constant, value=value, learned=False)
        x = self.node("Div", [source, "sqrt_two"], f"{name}.scaled", source.shape)
        x = self.node("Erf", [x], f"{name}.erf", source.shape)
        x = self.node("Add", [x, "one"], f"{name}.above_zero", source.shape)
        x = self.node("Mul", [source, x], f"{name}.weighted", source.shape)
        return self.node("Mul", [x, "half"], f"{name}.gelu", source.shape)

    def sum(self, left, right, name):
        return self.node("Add", [left, right], name, left.shape)

    def transposed(self, source, name, *order):
        """`order` of the dimensions of one record, counted from 1."""
        return self.node("Transpose", [source], name, [source.shape[place - 1] for place in order], perm=[0, *order])
