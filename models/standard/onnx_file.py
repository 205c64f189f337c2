"""Writes a network as ONNX, with random weights: the same bytes each time, with any version of numpy.

The random numbers are the raw ones of PCG64, which numpy promises to keep, one generator for each weight.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


def values(weight, seed, number):
    """The values of the weight of this number: whole multiples of 2^-23 between -1 and 1, times the bound."""
    count = int(np.prod(weight.shape, dtype=np.int64))
    if not weight.bound:
        return np.full(weight.shape, weight.value, np.float32)
    raw = np.random.PCG64([seed, number]).random_raw((count + 1) // 2).view(np.uint32)[:count]
    signed = (raw >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return (signed * np.float32(weight.bound)).reshape(weight.shape)


def any_sizes(shape, fixed):
    return ["batch", *(size if fixed else f"size{place}" for place, size in enumerate(shape))]


def model(network, seed):
    """The whole file as a message. A sound may have any length."""
    fixed = not network.name.startswith("wav2vec2")
    weights = [numpy_helper.from_array(values(weight, seed, number), weight.name)
               for number, weight in enumerate(network.weights)]
    weights += [numpy_helper.from_array(np.array(known.values, np.int64), known.name) for known in network.constants]
    nodes = [helper.make_node(node.kind, node.inputs, node.outputs, name=node.outputs[0], **node.attributes)
             for node in network.nodes]
    inputs = [helper.make_tensor_value_info(name, KINDS[kind], any_sizes(shape, fixed))
              for name, shape, kind in network.inputs]
    outputs = [helper.make_tensor_value_info(output.name, TensorProto.FLOAT, any_sizes(output.shape, fixed))
               for output in network.outputs]
    whole = helper.make_model(helper.make_graph(nodes, network.name, inputs, outputs, weights),
                              opset_imports=[helper.make_opsetid("", OPSET)], producer_name="tidemill-models-standard")
    whole.ir_version = 8
    return whole


def write(network, seed, target):
    """Checks the network and writes it under its name only when it is whole."""
    whole = model(network, seed)
    onnx.checker.check_model(whole, full_check=True)
    partial = target.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(whole.SerializeToString(deterministic=True))
    partial.replace(target)
