"""Writes a small language model with random weights, and what it writes after some prompts.

    pip install tokenizers==0.23.3 onnx==1.23.2 onnxruntime==1.32.0
    python make.py

writer.onnx         a decoder of 2 layers with a cache, see decoder_graph.py. writer.yaml is its manifest.
writer_whole.onnx   the same without a cache, with an input `shift` that is added to the scores: writer_whole.yaml. The
                    script corrects the sha256 of both manifests.
tokenizer.json      a token for each of 62 characters; 0 is `<|end|>`, 1 is an unknown character.
texts.json          a list of `{prompt, greedy, penalty, sampled}`: tokens after the prompt by ONNX Runtime and the loop below,
                    with the cache: the most likely ones, those with a repetition penalty of 1.5, and random ones.
"""
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
from decoder_graph import build
from tokenizers import Tokenizer, decoders, models

HERE = Path(__file__).parent
WIDTH, HEADS, LAYERS, CONTEXT = 16, 2, 2, 64
CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?!:;'-\n"
PROMPTS = ["The tide", "Hello, world!", "a", "What is it?\n", "mill: 100"]
END, MOST = 0, 24
TEMPERATURE, TOP_K, TOP_P, SEED, PENALTY = 0.9, 20, 0.9, 7, 1.5


def weights():
    rng = np.random.default_rng(87)

    def random(*shape, scale):
        return rng.normal(0, scale, shape).round(3)

    def norm():
        return np.stack([np.ones(WIDTH), np.zeros(WIDTH)])
    tokens = random(len(CHARACTERS) + 2, WIDTH, scale=1)
    # No token is likelier than others everywhere.
    tokens = (2 * tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).round(3)
    made = {"tokens": tokens, "norm": norm(), "positions": random(CONTEXT, WIDTH, scale=0.5)}
    for layer in range(LAYERS):
        made |= {
            f"{layer}.norm1": norm(), f"{layer}.read": random(WIDTH, 3 * WIDTH, scale=0.6),
            f"{layer}.write": random(WIDTH, WIDTH, scale=0.5), f"{layer}.norm2": norm(),
            f"{layer}.up": random(WIDTH, 2 * WIDTH, scale=0.5), f"{layer}.down": random(2 * WIDTH, WIDTH, scale=0.5)}
    return made


class Random:
    """SplitMix64, from a seed and the FNV-1a hash of the prompt's tokens."""

    def __init__(self, seed, tokens):
        record = 0xcbf29ce484222325
        for byte in b"".join(token.to_bytes(4, "little") for token in tokens):
            record = (record ^ byte) * 0x100000001b3 % 2**64
        self.state = seed
        self.state = self.number() ^ record

    def number(self):
        self.state = (self.state + 0x9e3779b97f4a7c15) % 2**64
        mixed = self.state
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb % 2**64
        return mixed ^ mixed >> 31

    def share(self):
        return (self.number() >> 11) / 2**53


def likeliest(scores, _tokens):
    first, second = np.sort(scores)[:-3:-1]
    assert first - second > 1e-4, "a backend may decide otherwise"
    return int(scores.argmax())


def penalised(scores, tokens):
    changed = scores.copy()
    for token in set(tokens):
        changed[token] = changed[token] * PENALTY if changed[token] < 0 else changed[token] / PENALTY
    return likeliest(changed, tokens)


def sampler(prompt):
    random = Random(SEED, prompt)

    def sampled(scores, _tokens):
        order = np.argsort(-scores, kind="stable")[:TOP_K]
        shares = np.exp((scores[order].astype(float) - scores.max()) / TEMPERATURE)
        kept = int((np.cumsum(shares / shares.sum()) < TOP_P).sum()) + 1
        sums = np.cumsum(shares[:kept])
        wanted = random.share() * sums[-1]
        assert np.abs(sums - wanted).min() > 1e-6, "a backend may decide otherwise"
        return int(order[int((sums <= wanted).sum())])
    return sampled


def text(session, prompt, choose):
    """The tokens after a prompt."""
    tokens = list(prompt)
    outputs = [port.name for port in session.get_outputs()]
    cache = {port.name: np.zeros((1, HEADS, 0, WIDTH // HEADS), np.float32)
             for port in session.get_inputs() if port.name.startswith("past")}
    read = tokens
    while len(tokens) < len(prompt) + MOST:
        found = session.run(None, {
            "input_ids": np.array([read]), "attention_mask": np.ones((1, len(tokens)), np.int64),
            "position_ids": np.arange(len(tokens) - len(read), len(tokens))[None], **cache})
        token = choose(found[0][0, -1], tokens)
        if token == END:
            break
        tokens.append(token)
        read = [token]
        cache = {name.replace("present", "past_key_values"): value for name, value in zip(outputs[1:], found[1:])}
    return tokens[len(prompt):]


def main():
    vocabulary = {"<|end|>": 0, "<unk>": 1, **{c: at + 2 for at, c in enumerate(CHARACTERS)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(HERE / "tokenizer.json"))
    made = weights()
    for name, file in (("writer", build(made, HEADS)), ("writer_whole", build(made, HEADS, False, True))):
        (HERE / f"{name}.onnx").write_bytes(file)
        manifest = HERE / f"{name}.yaml"
        digest = hashlib.sha256(file).hexdigest()
        manifest.write_text(re.sub(r"sha256: \w+", f"sha256: {digest}", manifest.read_text(), count=1))
    session = onnxruntime.InferenceSession(HERE / "writer.onnx")
    rows = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        rows.append({"prompt": prompt, "greedy": text(session, ids, likeliest),
                     "penalty": text(session, ids, penalised), "sampled": text(session, ids, sampler(ids))})
    (HERE / "texts.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
