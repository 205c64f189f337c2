"""Trains the speech recognisers: convolutions over log-mel frames, characters by CTC.

    python train_speech.py --work WORK [--only small]

The largest learns first, by CTC alone. The smaller ones also learn to give, step by step, the same
probabilities as the largest (knowledge distillation): by CTC alone a network of medium size found no
alignment of sound and characters, and stopped at a word error rate of 71 %.
"""

import itertools
import json

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import training_run
import frontend
import speech

SIZES = {"large": {"width": 128, "blocks": 6, "kernel": 7},
         "medium": {"width": 64, "blocks": 6, "kernel": 7},
         "small": {"width": 40, "blocks": 3, "kernel": 7}}
EPOCHS = {"small": 6, "medium": 8, "large": 9}
TEACHER = "large"
BATCH = 32
CLASSES = 1 + len(training_run.ALPHABET)


class Block(nn.Module):
    def __init__(self, width, kernel):
        super().__init__()
        self.convolution = nn.Conv1d(width, width, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return x + F.relu(self.norm(self.convolution(x)))


class Recogniser(nn.Module):
    """[batch, 40 mels, 398 frames] to [batch, 133 steps, 29 classes]; class 0 is the blank."""

    def __init__(self, width, blocks, kernel):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv1d(frontend.SETTINGS["mels"], width, 11, stride=3, padding=5, bias=False),
            nn.BatchNorm1d(width), nn.ReLU(),
        )
        self.blocks = nn.Sequential(*[Block(width, kernel) for _ in range(blocks)])
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Conv1d(width, CLASSES, 1)

    def forward(self, x):
        return self.head(self.dropout(self.blocks(self.first(x)))).transpose(1, 2)


def decode(logits):
    """Greedy CTC: best class per step, repeats merged, blanks dropped."""
    texts = []
    for best in np.asarray(logits).argmax(axis=2):
        merged = [k for k, _ in itertools.groupby(best.tolist()) if k > 0]
        texts.append("".join(training_run.ALPHABET[k - 1] for k in merged))
    return texts


def word_errors(reference, hypothesis):
    """Edit distance in words."""
    a, b = reference.split(), hypothesis.split()
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1,
                                           previous + (word != other))
    return row[-1]


def log_mels(folder, keys):
    """[n, mels, frames] in half precision, kept beside the data."""
    cache = folder / "log_mel.npy"
    if not cache.exists():
        training_run.log(f"{cache.parent.name}: computing log-mel features")
        values = [
            frontend.features(speech.read_wav(folder / "questions" / f"{key}.wav")).T
            for key in keys
        ]
        training_run.save_array(cache, np.stack(values).astype(np.float16))
    return np.load(cache)


def varied(x, rng):
    """Other voices and rooms, roughly: warped mel axis, shifts, masks and noise."""
    batch, mels, frames = x.shape
    warp = rng.uniform(0.88, 1.13, size=(batch, 1))
    position = np.clip(np.arange(mels)[None, :] * warp, 0, mels - 1.001)
    low = position.astype(np.int64)
    part = (position - low)[:, :, None].astype(np.float32)
    rows = np.arange(batch)[:, None]
    x = x[rows, low] * (1 - part) + x[rows, low + 1] * part
    x = x + (rng.normal(0, 0.12, size=(batch, mels, 1))).astype(np.float32)
    x = x + rng.normal(0, 0.12, size=x.shape).astype(np.float32)
    for i in range(batch):
        x[i] = np.roll(x[i], int(rng.integers(-8, 9)), axis=1)
        f, t = int(rng.integers(0, mels - 4)), int(rng.integers(0, frames - 12))
        x[i, f:f + int(rng.integers(0, 5))] = 0
        x[i, :, t:t + int(rng.integers(0, 13))] = 0
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def transcribe(model, values):
    model.eval()
    texts = []
    with torch.no_grad():
        for i in range(0, len(values), 200):
            texts += decode(model(torch.from_numpy(values[i:i + 200].astype(np.float32))))
    return texts


def teacher_of(size, args):
    """The trained network that this one learns from, if it is not that one itself."""
    if size == TEACHER:
        return None
    path = args.work / "checkpoints" / f"speech-{TEACHER}.pt"
    if not path.exists():
        raise SystemExit(f"{path} is missing: train speech-{TEACHER} first (--only {TEACHER})")
    teacher = Recogniser(**SIZES[TEACHER])
    teacher.load_state_dict(torch.load(path, weights_only=True)["model"])
    return teacher.eval()


def train(size, args, train_set, tune_set):
    values, texts = train_set
    teacher = teacher_of(size, args)
    epochs = args.epochs or EPOCHS[size]
    steps = len(values) // BATCH
    torch.manual_seed(args.seed)
    model = Recogniser(**SIZES[size])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=epochs * steps, pct_start=0.25
    )
    progress = training_run.Progress(args.work / "checkpoints" / f"speech-{size}.pt",
                               model, optimizer, scheduler)
    labels = [torch.tensor([training_run.ALPHABET.index(c) + 1 for c in text]) for text in texts]
    while progress.epoch < epochs:
        rng = progress.rng(args.seed)
        model.train()
        order, total = rng.permutation(len(values)), 0.0
        for step in range(steps):
            chosen = order[step * BATCH:(step + 1) * BATCH]
            x = varied(values[chosen].astype(np.float32), rng)
            logits = model(x).log_softmax(2)
            scores = logits.transpose(0, 1)
            wanted = [labels[i] for i in chosen]
            loss = F.ctc_loss(
                scores, torch.cat(wanted), torch.full((len(chosen),), scores.shape[0]),
                torch.tensor([len(w) for w in wanted]), zero_infinity=True,
            )
            if teacher:
                with torch.no_grad():
                    taught = teacher(x).log_softmax(2)
                loss = loss + F.kl_div(logits.flatten(0, 1), taught.flatten(0, 1),
                                       reduction="batchmean", log_target=True)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            total += loss.item()
            training_run.pulse(f"speech-{size}", progress.epoch, step, steps)
        progress.done_epoch()
        found = transcribe(model, tune_set[0][:600])
        errors = sum(word_errors(a, b) for a, b in zip(tune_set[1], found))
        words = sum(len(a.split()) for a in tune_set[1][:600])
        training_run.log(f"speech-{size}: epoch {progress.epoch}/{epochs} loss {total / steps:.3f} "
                   f"word error rate {errors / words:.4f}  e.g. {found[0]!r}")

    keep_outputs(size, model, args, {"train": train_set, "tune": tune_set})
    export(size, model, args)


def keep_outputs(size, model, args, sets):
    """What is heard in the generated questions, which the answerers learn from."""
    for part, (values, _) in sets.items():
        path = args.work / "outputs" / part / f"speech-{size}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(transcribe(model, values)))


def export(size, model, args):
    model.eval()
    frames = 1 + (int(frontend.SECONDS * 8000) - 200) // 80
    name = f"speech-{size}"
    example = torch.zeros(1, frontend.SETTINGS["mels"], frames)
    facts = training_run.export(model, (example,), name, ["log_mel"], ["logits"])
    training_run.write_manifest(
        name, f"Recognises short spoken English questions, character by character ({size} "
        "network).",
        facts, "train_speech.py", args.seed,
        inputs=[{
            "name": "log_mel", "column": "audio", "type": "audio", "dtype": "float32",
            "shape": ["batch", frontend.SETTINGS["mels"], frames],
            "preprocess": [
                {"pad_or_trim": {"seconds": "4s"}}, {"log_mel": dict(frontend.SETTINGS)},
                {"standardize": {}}, {"transpose": {}},
            ],
        }],
        outputs=[{
            "name": "logits", "column": "question", "type": "text", "dtype": "float32",
            "shape": ["batch", model(example).shape[1], CLASSES],
            "postprocess": [{"ctc_decode": {"alphabet": training_run.ALPHABET, "blank": 0}}],
        }],
        metric=training_run.pending("word_error_rate"),
        note="The vocabulary of the training questions is small; other sentences are not "
             "recognised.",
    )


def load(folder):
    rows = training_run.truth(folder)
    return log_mels(folder, [r["key"] for r in rows]), [r["question"] for r in rows]


def main():
    args = training_run.arguments("Trains the speech recognisers.", 11, SIZES)
    train_set, tune_set = load(args.work / "train"), load(args.work / "tune")
    for size in SIZES:
        if args.only in (None, size):
            train(size, args, train_set, tune_set)


if __name__ == "__main__":
    main()
