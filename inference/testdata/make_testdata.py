"""Makes the tiny ONNX models of this folder, used by the tests of the crate.

    python make_testdata.py            (needs: pip install onnx numpy)

The weights come from a fixed seed; running it again gives the same models.
"""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def tensor(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, values, kind):
    return numpy_helper.from_array(np.array(values, dtype=kind), name)


def save(name, nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, name, inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                              producer_name="tidemill-testdata")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    (HERE / f"{name}.onnx").write_bytes(model.SerializeToString())


def identity():
    """[batch, 4] float to the same."""
    save("identity", [helper.make_node("Identity", ["x"], ["y"])],
         [tensor("x", FLOAT, ["batch", 4])], [tensor("y", FLOAT, ["batch", 4])])


def fixed_batch():
    """The same with a batch dimension of 1: 2 * x."""
    save("fixed_batch", [helper.make_node("Add", ["x", "x"], ["y"])],
         [tensor("x", FLOAT, [1, 4])], [tensor("y", FLOAT, [1, 4])])


def linear():
    """[batch, 4] float to the logits of 3 classes: class i is the sum of x with weights i."""
    weights = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0.5]]
    save("linear", [helper.make_node("Gemm", ["x", "w", "b"], ["logits"])],
         [tensor("x", FLOAT, ["batch", 4])], [tensor("logits", FLOAT, ["batch", 3])],
         [constant("w", weights, np.float32), constant("b", [0, 0, 0.25], np.float32)])


def image_means():
    """[batch, 3, 8, 8] image to the mean of each channel: [batch, 3]."""
    save("image_means",
         [helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0)],
         [tensor("image", FLOAT, ["batch", 3, 8, 8])], [tensor("means", FLOAT, ["batch", 3])])


def convolution():
    """[batch, 3, 8, 8] through a random convolution, ReLU and a mean: [batch, 5]."""
    rng = np.random.default_rng(3)
    save("convolution",
         [helper.make_node("Conv", ["image", "w", "b"], ["c"], kernel_shape=[3, 3],
                           pads=[1, 1, 1, 1], strides=[2, 2]),
          helper.make_node("Relu", ["c"], ["r"]),
          helper.make_node("GlobalAveragePool", ["r"], ["p"]),
          helper.make_node("Flatten", ["p"], ["features"], axis=1)],
         [tensor("image", FLOAT, ["batch", 3, 8, 8])], [tensor("features", FLOAT, ["batch", 5])],
         [constant("w", rng.normal(0, 0.4, (5, 3, 3, 3)), np.float32),
          constant("b", rng.normal(0, 0.1, 5), np.float32)])


def text_sum():
    """[batch, 6] characters (0 = none) and [batch, 2] float: looks the characters up in a random
    table, adds them over the text, and appends the floats: [batch, 5]."""
    rng = np.random.default_rng(5)
    table = rng.normal(0, 1, (5, 3))
    table[0] = 0
    save("text_sum",
         [helper.make_node("Gather", ["table", "text"], ["looked_up"], axis=0),
          helper.make_node("ReduceSum", ["looked_up", "axis"], ["sums"], keepdims=0),
          helper.make_node("Concat", ["sums", "extra"], ["features"], axis=1)],
         [tensor("text", INT64, ["batch", 6]), tensor("extra", FLOAT, ["batch", 2])],
         [tensor("features", FLOAT, ["batch", 5])],
         [constant("table", table, np.float32), constant("axis", [1], np.int64)])


def ctc():
    """[batch, 2, 5] sound features (mels, frames) to [batch, 5, 3] logits: the two features and
    a blank that wins where both are small."""
    save("ctc",
         [helper.make_node("Transpose", ["log_mel"], ["t"], perm=[0, 2, 1]),
          helper.make_node("ReduceMax", ["t"], ["m"], axes=[2], keepdims=1),
          helper.make_node("Sub", ["half", "m"], ["blank"]),
          helper.make_node("Concat", ["blank", "t"], ["logits"], axis=2)],
         [tensor("log_mel", FLOAT, ["batch", 2, 5])],
         [tensor("logits", FLOAT, ["batch", 5, 3])],
         [constant("half", [[[0.5]]], np.float32)])


def counter():
    """A decoder step that counts: it emits the token first + state + 3, or 1 (the end) once that
    passes 5, and adds one to the state. So a record with `first` 0 emits 3, 4, 5, end. Tokens are
    given as logits [batch, 7] over 7 tokens. `token` [batch, 1] is the previous one; it is read
    (multiplied by zero) so that it stays an input."""
    save("counter",
         [helper.make_node("Cast", ["token"], ["token_f"], to=FLOAT),
          helper.make_node("Mul", ["token_f", "zero"], ["nothing"]),
          helper.make_node("Add", ["state", "first"], ["reached"]),
          helper.make_node("Add", ["reached", "three"], ["wanted"]),
          helper.make_node("Greater", ["wanted", "five"], ["over"]),
          helper.make_node("Where", ["over", "one", "wanted"], ["emitted"]),
          helper.make_node("Sub", ["classes", "emitted"], ["difference"]),
          helper.make_node("Abs", ["difference"], ["distance"]),
          helper.make_node("Sub", ["nothing", "distance"], ["logits"]),
          helper.make_node("Add", ["state", "one"], ["next_state"])],
         [tensor("first", FLOAT, ["batch", 1]), tensor("token", INT64, ["batch", 1]),
          tensor("state", FLOAT, ["batch", 1])],
         [tensor("logits", FLOAT, ["batch", 7]), tensor("next_state", FLOAT, ["batch", 1])],
         [constant("zero", [[0]], np.float32), constant("one", [[1]], np.float32),
          constant("three", [[3]], np.float32), constant("five", [[5]], np.float32),
          constant("classes", [range(7)], np.float32)])


if __name__ == "__main__":
    for make in (identity, fixed_batch, linear, image_means, convolution, text_sum, ctc,
                 counter):
        make()
