"""Writes a decoder-only transformer as an ONNX file, with the inputs and outputs that Hugging Face Optimum gives one:
`input_ids`, `attention_mask`, `position_ids`, `past_key_values.N.key` and `.value`; `logits`, `present.N.key` and `.value`.

The form is that of GPT-2 with ReLU: learned positions, layer norms before each part, scores by the table of tokens.
`weights` is a dictionary of float32 arrays: `tokens` [vocabulary, width], `positions` [context, width], for each layer N
`N.norm1`, `N.norm2` [2, width] (scale, shift), `N.read` [width, 3 width], `N.write` [width, width], `N.up` [width, inner],
`N.down` [inner, width], and `norm` [2, width].
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def build(weights, heads, with_cache=True, with_shift=False):
    """Returns the bytes of the file. `with_shift`: a further input `shift` [batch, vocabulary], which is added to the scores."""
    vocabulary, width = weights["tokens"].shape
    layers = 1 + max(int(name.split(".")[0]) for name in weights if name[0].isdigit())
    size = width // heads
    nodes, constants = [], []

    def constant(name, values):
        constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def weight(name):
        return constant(f"w.{name}", weights[name].astype(np.float32))

    zero, one = (constant(name, np.array([value])) for name, value in (("i0", 0), ("i1", 1)))
    scalars = [constant(f"s{value}", np.array(value)) for value in (0, 1)]
    heads_shape = constant("heads_shape", np.array([0, 0, heads, size]))
    flat_shape = constant("flat_shape", np.array([0, 0, width]))
    none = constant("none", np.float32(0))
    far = constant("far", np.float32(-1e9))

    # A token sees those up to itself, where the mask has a 1.
    given = node("Gather", [node("Shape", ["input_ids"], "ids_shape"), scalars[1]], "given")
    total = node("Gather", [node("Shape", ["attention_mask"], "mask_shape"), scalars[1]], "total")
    columns = node("Range", [scalars[0], total, scalars[1]], "columns")
    rows = node("Range", [node("Sub", [total, given], "seen"), total, scalars[1]], "rows")
    later = node("Greater", [node("Unsqueeze", [columns, zero], "columns_row"),
                             node("Unsqueeze", [rows, one], "rows_column")], "later")
    hidden = node("Where", [later, far, none], "hidden_later")
    kept = node("Cast", ["attention_mask"], "mask_floats", to=FLOAT)
    lost = node("Mul", [node("Sub", [constant("f1", np.float32(1)), kept], "mask_off"), far], "mask_far")
    lost = node("Unsqueeze", [lost, constant("i12", np.array([1, 2]))], "mask_places")
    mask = node("Add", [lost, hidden], "mask")

    def norm(value, name, output):
        scale, shift = weights[name]
        return node("LayerNormalization", [value, constant(f"w.{name}.scale", scale.astype(np.float32)),
                                           constant(f"w.{name}.shift", shift.astype(np.float32))],
                    output, axis=-1, epsilon=1e-5)

    table = weight("tokens")
    value = node("Add", [node("Gather", [table, "input_ids"], "words"),
                         node("Gather", [weight("positions"), "position_ids"], "places")], "x0")
    scale = constant("scale", np.float32(size ** -0.5))
    inputs, outputs = [], []
    for layer in range(layers):
        def own(name, layer=layer):
            return f"l{layer}.{name}"
        read = node("MatMul", [norm(value, f"{layer}.norm1", own("normed")), weight(f"{layer}.read")], own("read"))
        parts = [own(name) for name in ("query", "key", "value")]
        nodes.append(helper.make_node("Split", [read], parts, axis=2, num_outputs=3))
        parts = [node("Transpose", [node("Reshape", [part, heads_shape], f"{part}.heads")], f"{part}.turned",
                      perm=[0, 2, 1, 3]) for part in parts]
        query, *fresh = parts
        for at, name in enumerate(("key", "value")):
            past, present = f"past_key_values.{layer}.{name}", f"present.{layer}.{name}"
            if with_cache:
                fresh[at] = node("Concat", [past, fresh[at]], present, axis=2)
                inputs.append(helper.make_tensor_value_info(past, FLOAT, ["batch", heads, "past", size]))
                outputs.append(helper.make_tensor_value_info(present, FLOAT, ["batch", heads, "total", size]))
        turned = node("Transpose", [fresh[0]], own("key.columns"), perm=[0, 1, 3, 2])
        scores = node("Mul", [node("MatMul", [query, turned], own("products")), scale], own("scaled"))
        shares = node("Softmax", [node("Add", [scores, mask], own("scores"))], own("shares"), axis=-1)
        seen = node("Transpose", [node("MatMul", [shares, fresh[1]], own("seen"))], own("seen.turned"),
                    perm=[0, 2, 1, 3])
        seen = node("Reshape", [seen, flat_shape], own("seen.flat"))
        written = node("MatMul", [seen, weight(f"{layer}.write")], own("written"))
        value = node("Add", [value, written], own("attended"))
        inner = node("MatMul", [norm(value, f"{layer}.norm2", own("normed2")), weight(f"{layer}.up")], own("up"))
        down = node("MatMul", [node("Relu", [inner], own("relu")), weight(f"{layer}.down")], own("down"))
        value = node("Add", [value, down], own("out"))
    last = norm(value, "norm", "normed")
    columns = node("Transpose", [table], "columns_of_tokens", perm=[1, 0])
    node("MatMul", [last, columns], "unshifted" if with_shift else "logits")
    if with_shift:
        node("Add", ["unshifted", node("Unsqueeze", ["shift", one], "shift_of_each")], "logits")
        inputs.append(helper.make_tensor_value_info("shift", FLOAT, ["batch", vocabulary]))

    places = ["batch", "length"]
    graph = helper.make_graph(
        nodes, "decoder",
        [helper.make_tensor_value_info("input_ids", INT64, places),
         helper.make_tensor_value_info("attention_mask", INT64, ["batch", "total"]),
         helper.make_tensor_value_info("position_ids", INT64, places), *inputs],
        [helper.make_tensor_value_info("logits", FLOAT, [*places, vocabulary]), *outputs], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()
