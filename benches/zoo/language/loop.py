"""Writes the most likely text after each prompt with ONNX Runtime in Python, as a program without Tidemill does, and measures
the tokens per second. One thread computes.

    pip install onnxruntime==1.32.0 tokenizers==0.23.3 pyyaml
    python loop.py smollm2/manifest.yaml [--without-cache] [--expected expected.csv]

The prompts are those of prompts.csv. `--without-cache` runs all tokens again for each new one, as a loop without a cache does.
`--expected` writes the texts, which `tidemill run` compares with its own (`ground_truth` of workflow.yaml).
"""
import argparse
import csv
import time
from pathlib import Path

import numpy as np
import onnxruntime
import yaml
from tokenizers import Tokenizer

HERE = Path(__file__).parent


def main():
    options = argparse.ArgumentParser()
    options.add_argument("manifest", type=Path)
    options.add_argument("--without-cache", action="store_true")
    options.add_argument("--expected", type=Path)
    options = options.parse_args()
    manifest = yaml.safe_load(options.manifest.read_text())
    generate = manifest["generate"]
    tokenizer = Tokenizer.from_file(str(options.manifest.parent / "tokenizer.json"))
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(options.manifest.parent / manifest["file"], settings)
    past = generate["cache"]["inputs"]
    empty = {port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32)
             for port in session.get_inputs() if port.name.startswith(past)}
    fresh = [port.name for port in session.get_outputs() if port.name != generate["logits"]]
    wanted = [generate["logits"]] if options.without_cache else [generate["logits"], *fresh]
    end = tokenizer.token_to_id(generate["end"])
    rows = list(csv.DictReader((HERE / "prompts.csv").open()))
    texts, first, later, count = [], 0.0, 0.0, 0
    for row in rows:
        prompt = generate.get("template", "{}").replace("{}", row["prompt"])
        tokens = tokenizer.encode(prompt).ids
        given, read, cache = len(tokens), tokens, empty
        while len(tokens) < given + generate["max_tokens"]:
            begun = time.perf_counter()
            scores, *kept = session.run(wanted, {
                "input_ids": np.array([read]), generate["mask"]: np.ones((1, len(tokens)), np.int64),
                generate["positions"]: np.arange(len(tokens) - len(read), len(tokens))[None], **cache})
            token = int(scores[0, -1].argmax())
            spent = time.perf_counter() - begun
            if len(tokens) == given:
                first += spent
            else:
                later += spent
                count += 1
            if token == end:
                break
            tokens = [*tokens, token]
            read = tokens if options.without_cache else [token]
            if not options.without_cache:
                cache = {past + name.removeprefix(generate["cache"]["outputs"]): value
                         for name, value in zip(fresh, kept)}
        texts.append(tokenizer.decode(tokens[given:]))
        print(repr(texts[-1]), flush=True)
    print(f"{len(rows)} prompts: {1000 * first / len(rows):.0f} ms to the first token, then {count / later:.1f} tokens/s; "
          f"{(count + len(rows)) / (first + later):.1f} tokens/s in all")
    if options.expected:
        with options.expected.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["key", "text"])
            table.writerows((row["key"], text) for row, text in zip(rows, texts))


if __name__ == "__main__":
    main()
