"""Trains a small language model on texts in English: the documents of this repository, or the files that are named.

    pip install jax==0.10.2 tokenizers==0.23.3
    python train.py [--minutes 10] [--out trained] [FILE ...]

Writes `tokenizer.json` (BPE on bytes, 1024 tokens, `<|end|>` is token 0) and `weights.npz` for export.py into the folder
`--out`. The model has the form of GPT-2 (testdata/language/decoder_graph.py of the package inference), 4 layers and 2
million weights. The last tenth of the texts is kept for the loss that is printed. One thread of a processor is used.
"""
import argparse
import math
import os
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[3]
WIDTH, LAYERS, HEADS, CONTEXT, VOCABULARY, SEED = 192, 4, 6, 256, 1024, 7
BATCH = 8


def weights():
    rng = np.random.default_rng(SEED)

    def random(*shape, scale=0.02):
        return rng.normal(0, scale, shape).astype(np.float32)

    def norm():
        return np.stack([np.ones(WIDTH), np.zeros(WIDTH)]).astype(np.float32)
    made = {"tokens": random(VOCABULARY, WIDTH), "positions": random(CONTEXT, WIDTH), "norm": norm()}
    small = 0.02 / math.sqrt(2 * LAYERS)
    for layer in range(LAYERS):
        made |= {
            f"{layer}.norm1": norm(), f"{layer}.read": random(WIDTH, 3 * WIDTH),
            f"{layer}.write": random(WIDTH, WIDTH, scale=small), f"{layer}.norm2": norm(),
            f"{layer}.up": random(WIDTH, 4 * WIDTH), f"{layer}.down": random(4 * WIDTH, WIDTH, scale=small)}
    return made


def scores(w, ids):
    def norm(x, of):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * of[0] + of[1]
    batch, length = ids.shape
    x = w["tokens"][ids] + w["positions"][:length]
    hidden = jnp.where(jnp.tril(jnp.ones((length, length), bool)), 0, -1e9)
    for layer in range(LAYERS):
        read = norm(x, w[f"{layer}.norm1"]) @ w[f"{layer}.read"]
        query, key, value = (part.reshape(batch, length, HEADS, -1) for part in jnp.split(read, 3, -1))
        shares = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (WIDTH // HEADS) ** -0.5 + hidden
        seen = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(shares, -1), value)
        x = x + seen.reshape(batch, length, WIDTH) @ w[f"{layer}.write"]
        x = x + jax.nn.relu(norm(x, w[f"{layer}.norm2"]) @ w[f"{layer}.up"]) @ w[f"{layer}.down"]
    return norm(x, w["norm"]) @ w["tokens"].T


def loss(w, ids):
    found = jax.nn.log_softmax(scores(w, ids[:, :-1]), -1)
    return -jnp.take_along_axis(found, ids[:, 1:, None], -1).mean()


@partial(jax.jit, donate_argnums=(0, 1, 2))
def step(w, first, second, ids, rate, at):
    """One step of Adam."""
    value, slope = jax.value_and_grad(loss)(w, ids)
    size = jnp.sqrt(sum((s * s).sum() for s in slope.values()))
    slope = {k: s * jnp.minimum(1, 1 / size) for k, s in slope.items()}
    first = {k: 0.9 * first[k] + 0.1 * s for k, s in slope.items()}
    second = {k: 0.99 * second[k] + 0.01 * s * s for k, s in slope.items()}
    moved = {k: w[k] * (1 - 0.05 * rate) - rate * (first[k] / (1 - 0.9 ** at))
             / (jnp.sqrt(second[k] / (1 - 0.99 ** at)) + 1e-8) for k in w}
    return moved, first, second, value


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "trained")
    options.add_argument("files", type=Path, nargs="*")
    options = options.parse_args()
    files = options.files or sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("docs/decisions/*.md"))
    texts = [file.read_text() for file in files]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out / "tokenizer.json"))
    pieces = [part for text in texts for part in text.split("\n## ")]
    ids = np.concatenate([np.array([*tokenizer.encode(piece).ids, 0]) for piece in pieces])
    kept = ids[-len(ids) // 10:]
    ids = ids[:-len(ids) // 10]
    print(f"{sum(map(len, texts))} characters, {len(ids) + len(kept)} tokens", flush=True)

    rng = np.random.default_rng(SEED)
    w = {name: jnp.asarray(values) for name, values in weights().items()}
    print(f"{sum(v.size for v in w.values())} weights", flush=True)
    first, second = ({k: jnp.zeros_like(v) for k, v in w.items()} for _ in range(2))
    begun, limit, at, seen = time.monotonic(), options.minutes * 60, 0, []
    while (spent := time.monotonic() - begun) < limit:
        at += 1
        rate = 2e-3 * min(1, at / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * spent / limit)))
        starts = rng.integers(0, len(ids) - CONTEXT - 1, BATCH)
        batch = jnp.asarray(np.stack([ids[start:start + CONTEXT + 1] for start in starts]))
        w, first, second, value = step(w, first, second, batch, rate, at)
        seen.append(float(value))
        if at % 50 == 0:
            print(f"{spent:.0f} s, step {at}: loss {np.mean(seen[-50:]):.3f}", flush=True)
    rows = kept[:len(kept) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    found = np.mean([float(loss(w, jnp.asarray(row[None]))) for row in rows[:200]])
    print(f"loss of the tenth that was kept: {found:.3f} per token", flush=True)
    np.savez(options.out / "weights.npz", heads=HEADS, **{k: np.asarray(v) for k, v in w.items()})


if __name__ == "__main__":
    main()
