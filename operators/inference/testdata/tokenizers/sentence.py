"""Writes a small model of sentences, with the inputs of BERT, and what it gives for some texts.

    pip install tokenizers==0.23.3 onnx==1.23.2 onnxruntime==1.32.0
    python sentence.py

sentence.onnx    the mean of the vectors of a text's tokens, padding left out; the vectors are random. The tokens are
                 those of wordpiece.json. sentence.yaml (texts of any length) and sentence_fixed.yaml (16 tokens)
                 are its manifests; the script corrects their sha256.
sentence.json    `[text, vector, vector of the text cut to 16 tokens]`, by ONNX Runtime from the tokens of the library
                 for Python, one text at a time.
"""
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

HERE = Path(__file__).parent
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def model(vocabulary):
    rng = np.random.default_rng(5)

    def constant(name, values):
        return numpy_helper.from_array(values, name)
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["parts", "token_type_ids"], ["part"]),
        helper.make_node("Add", ["word", "part"], ["token"]),
        helper.make_node("Cast", ["attention_mask"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "two"], ["mask"]),
        helper.make_node("Mul", ["token", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["sentence_embedding"]),
    ]
    graph = helper.make_graph(
        nodes, "sentence",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in INPUTS],
        [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", 4])],
        [constant("words", rng.normal(size=(vocabulary, 4)).round(2).astype(np.float32)),
         constant("parts", rng.normal(size=(2, 4)).round(2).astype(np.float32)),
         constant("one", np.array([1])), constant("two", np.array([2]))])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def main():
    tokenizer = Tokenizer.from_file(str(HERE / "wordpiece.json"))
    tokenizer.no_padding()
    written = model(tokenizer.get_vocab_size())
    (HERE / "sentence.onnx").write_bytes(written)
    for name in ("sentence.yaml", "sentence_fixed.yaml"):
        manifest = HERE / name
        digest = hashlib.sha256(written).hexdigest()
        manifest.write_text(re.sub(r"sha256: \w+", f"sha256: {digest}", manifest.read_text(), count=1))
    session = onnxruntime.InferenceSession(written)
    texts = [text for text in json.loads((HERE / "texts.json").read_text()) if isinstance(text, str)]
    rows = []
    for text in texts[::8]:
        vectors = []
        for most in (512, 16):
            tokenizer.enable_truncation(most)
            found = tokenizer.encode(text)
            feed = dict(zip(INPUTS, (found.ids, found.attention_mask, found.type_ids)))
            [[vector]] = session.run(None, {name: np.array([values]) for name, values in feed.items()})
            vectors.append([round(float(value), 6) for value in vector])
        rows.append([text, *vectors])
    lines = ",\n".join(json.dumps(row) for row in rows)
    (HERE / "sentence.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
