"""Makes the tiny ONNX models of this folder, used by the tests of the crate.

    python make_testdata.py            (needs: pip install onnx numpy onnxruntime)

The weights come from a fixed seed; running it again gives the same models.
"""

import hashlib
import json
import math
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


def save(name, nodes, inputs, outputs, constants=(), metadata=None):
    graph = helper.make_graph(nodes, name, inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                              producer_name="tidemill-testdata")
    model.ir_version = 8
    helper.set_model_props(model, metadata or {})
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


def line_reader():
    """[batch, 3, 4, width] image, blue first, to scores of 5 classes for each column: blank, `r`, `g`, `b`, white.
    The letters stand in the file's metadata, one a line, as recognisers of text have them."""
    blue, green, red, white = [0, 0, 0, 1, 0.6], [0, 0, 1, 0, 0.6], [0, 1, 0, 0, 0.6], [0.1, 0, 0, 0, 0]
    save("line_reader",
         [helper.make_node("ReduceMean", ["image"], ["columns"], axes=[2], keepdims=0),
          helper.make_node("Transpose", ["columns"], ["steps"], perm=[0, 2, 1]),
          helper.make_node("MatMul", ["steps", "weights"], ["products"]),
          helper.make_node("Add", ["products", "bias"], ["scores"])],
         [tensor("image", FLOAT, ["batch", 3, 4, "width"])], [tensor("scores", FLOAT, ["batch", "steps", 5])],
         [constant("weights", [blue, green, red], np.float32), constant("bias", white, np.float32)],
         {"character": "r\ng\nb"})


def ort_format():
    """The line reader in ONNX Runtime's own format."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(HERE / "line_reader.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(HERE / "line_reader.onnx"), options, providers=["CPUExecutionProvider"])


def two_boxes():
    """[batch, 3, 8, 8] image to the same three boxes for each, [batch, 3, 6]: middle, width and height as shares of the
    picture, score, class. The last has a low score. The names of the classes stand in the metadata, as Ultralytics writes
    them."""
    boxes = [[0.5, 0.5, 0.5, 0.25, 0.875, 1], [0.25, 0.125, 0.25, 0.125, 0.5, 0], [0.5, 0.5, 0.25, 0.25, 0.0625, 0]]
    save("two_boxes",
         [helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0),
          helper.make_node("Unsqueeze", ["means", "last"], ["columns"]),
          helper.make_node("Mul", ["columns", "zero"], ["nothing"]),
          helper.make_node("Add", ["nothing", "boxes"], ["found"])],
         [tensor("image", FLOAT, ["batch", 3, 8, 8])], [tensor("found", FLOAT, ["batch", 3, 6])],
         [constant("last", [2], np.int64), constant("zero", 0, np.float32), constant("boxes", [boxes], np.float32)],
         {"names": "{0: 'cat', 1: 'dog'}"})


def running_sum():
    """[batch, 2] float plus a state of that shape, which becomes the next state."""
    save("running_sum",
         [helper.make_node("Add", ["x", "before"], ["sum"]), helper.make_node("Identity", ["sum"], ["after"])],
         [tensor("x", FLOAT, ["batch", 2]), tensor("before", FLOAT, ["batch", 2])],
         [tensor("sum", FLOAT, ["batch", 2]), tensor("after", FLOAT, ["batch", 2])])


def parrot():
    """An encoder-decoder that says back what it hears, with everything that a real one has: a mask, a
    cache that grows, one that stays, and a flag that says which branch runs.

    parrot_encoder: samples [batch, n] and a mask of the same shape to hidden [batch, n, 1], the samples
    times the mask and 8.
    parrot_decoder: the first token (flag false) copies hidden, times the mask, into present.0.encoder, which stays, and
    begins present.0.decoder with a 0. Every later one (flag true) reads both from the cache and adds a
    value to the second, so its length tells how many tokens there were. Token i is hidden i: the scores
    are -|class - hidden i|. Beyond the last sample it is 2, the end. What it is fed as `token` must be
    the token before, else it gives the end at once."""
    save("parrot_encoder",
         [helper.make_node("Cast", ["mask"], ["mask_f"], to=FLOAT),
          helper.make_node("Mul", ["samples", "mask_f"], ["masked"]),
          helper.make_node("Mul", ["masked", "eight"], ["numbers"]),
          helper.make_node("Unsqueeze", ["numbers", "last"], ["hidden"])],
         [tensor("samples", FLOAT, ["batch", "n"]), tensor("mask", INT64, ["batch", "n"])],
         [tensor("hidden", FLOAT, ["batch", "n", 1])], [constant("last", [2], np.int64), constant("eight", 8, np.float32)])

    def step(kept, number, previous):
        """Nodes from the cache to the scores, the same in both branches."""
        return [
            helper.make_node("Squeeze", [kept, "two"], [f"{kept}_flat"]),
            # One sample more than there are: the end.
            helper.make_node("Concat", [f"{kept}_flat", "end"], [f"{kept}_ended"], axis=1),
            helper.make_node("Gather", [f"{kept}_ended", number], [f"{kept}_one"], axis=1),
            helper.make_node("Cast", ["token"], [f"{kept}_token"], to=FLOAT),
            helper.make_node("Sub", [f"{kept}_token", previous], [f"{kept}_off"]),
            helper.make_node("Abs", [f"{kept}_off"], [f"{kept}_far"]),
            helper.make_node("Greater", [f"{kept}_far", "half"], [f"{kept}_wrong"]),
            helper.make_node("Where", [f"{kept}_wrong", "end", f"{kept}_one"], [f"{kept}_said"]),
            helper.make_node("Sub", ["classes", f"{kept}_said"], [f"{kept}_difference"]),
            helper.make_node("Abs", [f"{kept}_difference"], [f"{kept}_distance"]),
            helper.make_node("Neg", [f"{kept}_distance"], [f"{kept}_row"]),
            helper.make_node("Unsqueeze", [f"{kept}_row", "middle"], [f"{kept}_scores"]),
        ]

    def branch(name, nodes, outputs):
        return helper.make_graph(nodes, name, [], [
            tensor(outputs[0], FLOAT, None), tensor(outputs[1], FLOAT, None),
            tensor(outputs[2], FLOAT, None)])

    first = branch("first", [
        helper.make_node("Cast", ["mask"], ["first_mask"], to=FLOAT),
        helper.make_node("Unsqueeze", ["first_mask", "two"], ["first_masks"]),
        helper.make_node("Mul", ["hidden", "first_masks"], ["first_kept"]),
        helper.make_node("Identity", ["nought"], ["first_grown"]),
        *step("first_kept", "zero", "start")],
        ["first_kept_scores", "first_kept", "first_grown"])
    later = branch("later", [
        helper.make_node("Identity", ["past.0.encoder"], ["later_kept"]),
        helper.make_node("Shape", ["past.0.decoder"], ["later_shape"]),
        helper.make_node("Gather", ["later_shape", "one"], ["later_number"], axis=0),
        helper.make_node("Squeeze", ["later_number"], ["later_scalar"]),
        helper.make_node("Sub", ["later_scalar", "single"], ["later_before"]),
        helper.make_node("Squeeze", ["later_kept", "two"], ["later_samples"]),
        helper.make_node("Gather", ["later_samples", "later_before"], ["later_previous"], axis=1),
        helper.make_node("Concat", ["past.0.decoder", "nought"], ["later_grown"], axis=1),
        helper.make_node("Unsqueeze", ["later_previous", "one"], ["later_previous_column"]),
        helper.make_node("Unsqueeze", ["later_scalar", "naught"], ["later_position"]),
        *step("later_kept", "later_position", "later_previous_column")],
        ["later_kept_scores", "later_kept", "later_grown"])
    save("parrot_decoder",
         [helper.make_node("If", ["flag"], ["scores", "present.0.encoder", "present.0.decoder"],
                           then_branch=later, else_branch=first)],
         [tensor("token", INT64, ["batch", 1]), tensor("hidden", FLOAT, ["batch", "n", 1]),
          tensor("mask", INT64, ["batch", "n"]), tensor("past.0.decoder", FLOAT, ["batch", "tokens", 1]),
          tensor("past.0.encoder", FLOAT, ["batch", "n", 1]),
          tensor("flag", TensorProto.BOOL, [1])],
         [tensor("scores", FLOAT, ["batch", 1, 7]),
          tensor("present.0.encoder", FLOAT, ["batch", "n", 1]),
          tensor("present.0.decoder", FLOAT, ["batch", "more", 1])],
         [constant("zero", [0], np.int64), constant("one", [1], np.int64),
          constant("naught", [0], np.int64), constant("single", 1, np.int64),
          constant("two", [2], np.int64), constant("middle", [1], np.int64),
          constant("start", [[1]], np.float32), constant("end", [[2]], np.float32),
          constant("half", [[0.5]], np.float32), constant("nought", [[[0]]], np.float32),
          constant("classes", [range(7)], np.float32)])
    tokens = [b"<unk>", b"<s>", b"</s>", b"\xe2\x96\x81What", b"\xe2\x96\x81is", b"n't", b"?"]
    (HERE / "parrot_tokens.bin").write_bytes(b"".join(bytes([len(t)]) + t for t in tokens))


def resampled():
    """Sounds and what they are at another rate: a polyphase filter with a Kaiser window, as
    scipy.signal.resample_poly has it, written out."""
    rng = np.random.default_rng(9)
    cases = []
    for old, new, length in [(8000, 16000, 60), (44100, 16000, 150), (16000, 8000, 75),
                             (22050, 16000, 3), (48000, 16000, 100)]:
        sound = np.round(rng.uniform(-1, 1, length), 4)
        divisor = math.gcd(old, new)
        up, down = new // divisor, old // divisor
        half = 10 * max(up, down)
        places = np.arange(-half, half + 1)
        taps = np.sinc(places / max(up, down)) * np.kaiser(2 * half + 1, 5.0)
        taps *= up / taps.sum()
        filled = np.zeros(length * up)
        filled[::up] = sound
        whole = np.convolve(filled, taps)[half:]
        count = -(-length * up // down)
        values = np.concatenate([whole, np.zeros(down * count)])[:down * count:down]
        cases.append({"from": old, "to": new, "sound": sound.tolist(),
                      "resampled": [round(float(v), 7) for v in values]})
    (HERE.parent.parent / "media/testdata/resampled.json").write_text(json.dumps(cases) + "\n")


def write_digests(manifest, names):
    """Puts the sha256 of files into a manifest, in the order in which it has them."""
    path = HERE / manifest
    digests = iter(hashlib.sha256((HERE / name).read_bytes()).hexdigest() for name in names)
    lines = path.read_text().split("sha256: ")
    path.write_text(lines[0] + "".join(
        f"sha256: {next(digests)}{line[64:]}" for line in lines[1:]))


if __name__ == "__main__":
    for make in (identity, fixed_batch, linear, image_means, convolution, text_sum, ctc,
                 counter, line_reader, ort_format, two_boxes, running_sum, parrot, resampled):
        make()
    write_digests("two_boxes.yaml", ["two_boxes.onnx"])
    write_digests("running_sum.yaml", ["running_sum.onnx"])
    write_digests("parrot.yaml", ["parrot_encoder.onnx", "parrot_decoder.onnx", "parrot_tokens.bin"])
