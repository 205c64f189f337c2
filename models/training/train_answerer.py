"""Trains the answerers: scene features and the question's characters to one of the answers.

    python train_answerer.py --work WORK [--only small]     (after the other two scripts)

They learn from the features of all image models and from what a perfect one would say, and from
questions as typed, as all recognisers heard them, and with errors put in. So that they also serve
other image models which predict the same descriptor, its probabilities are made flatter or sharper
at random.
"""

import json

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import training_run
import questions
import scene
import train_features
import train_speech

SIZES = {
    "small": {"embedding": 16, "width": 32, "queries": 2, "hidden": 56, "reason": 48},
    "large": {"embedding": 32, "width": 128, "queries": 6, "hidden": 192, "reason": 256},
}
EPOCHS = {"small": 8, "large": 8}
BATCH = 256
QUESTIONS_PER_SCENE = 4
HEARD_TIMES = 2
IMAGE_SOURCES = list(train_features.SIZES)
SPEECH_SOURCES = list(train_speech.SIZES)
SPELLINGS = {"color": "colour"}  # other recognisers write it so

# Groups of the program that the text part predicts: the template, then for A and B each group of
# properties, where class 0 means "any".
GROUPS = list(scene.GROUPS)
CELLS = scene.GRID * scene.GRID
CHOICES = [1 + len(scene.GROUPS[g]) for g in GROUPS]
PROGRAM = [len(questions.TEMPLATES)] + CHOICES + CHOICES


def program_classes(program):
    values = [questions.TEMPLATE_NAMES.index(program["template"])]
    for part in ("a", "b"):
        description = program.get(part, {})
        for group in GROUPS:
            value = description.get(group)
            values.append(0 if value is None else 1 + scene.GROUPS[group].index(value))
    return values


class Parser(nn.Module):
    """[batch, 64] characters to the logits of the program."""

    def __init__(self, embedding, width, queries, hidden):
        super().__init__()
        self.embedding = nn.Embedding(1 + len(training_run.ALPHABET), embedding)
        self.down = nn.Sequential(
            nn.Conv1d(embedding, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
        )
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Conv1d(width, width, 3, padding=d, dilation=d),
                          nn.BatchNorm1d(width), nn.ReLU())
            for d in (1, 2, 4)
        ])
        self.attention = nn.Conv1d(width, queries, 1)
        self.out = nn.Sequential(nn.Linear(width * queries, hidden), nn.ReLU(), nn.Dropout(0.1),
                                 nn.Linear(hidden, sum(PROGRAM)))

    def forward(self, text):
        x = self.down(self.embedding(text).transpose(1, 2))
        for block in self.blocks:
            x = x + block(x)
        weights = torch.softmax(self.attention(x), dim=2)
        return self.out(torch.matmul(weights, x.transpose(1, 2)).flatten(1))


class Answerer(nn.Module):
    """Finds the cells that each description fits, then answers from sums over them."""

    def __init__(self, embedding, width, queries, hidden, reason):
        super().__init__()
        self.parser = Parser(embedding, width, queries, hidden)
        place = torch.zeros(CELLS, 2 * scene.GRID)
        for cell in range(CELLS):
            row, column = divmod(cell, scene.GRID)
            place[cell, row] = place[cell, scene.GRID + column] = 1
        self.register_buffer("place", place)
        summary = 2 * (2 + scene.CELL_WIDTH - 1 + 2 * scene.GRID) + len(GROUPS)
        self.reason = nn.Sequential(
            nn.Linear(sum(PROGRAM) + summary, reason), nn.ReLU(),
            nn.Linear(reason, reason), nn.ReLU(), nn.Linear(reason, len(questions.ANSWERS)),
        )

    def summary(self, cells, choices):
        """Sums over the cells that fit one description; choices: a distribution per group."""
        fit = cells[0]
        for probabilities, choice in zip(cells[1:], choices):
            named = torch.matmul(probabilities, choice[:, 1:].unsqueeze(2))
            fit = fit * (named + choice[:, :1].unsqueeze(2))
        count = fit.sum(dim=1)
        sharp = torch.sigmoid(12 * (fit - 0.5)).sum(dim=1)
        weights = fit.transpose(1, 2)
        found = [torch.matmul(weights, p).flatten(1) for p in cells[1:]]
        where = torch.matmul(weights, self.place).flatten(1)
        return [count, sharp] + found + [where]

    def answer(self, features, program_logits):
        cells = features.reshape(-1, CELLS, scene.CELL_WIDTH)
        cells = torch.split(cells, [1] + train_features.WIDTHS, dim=2)
        program = [torch.softmax(p, dim=1) for p in torch.split(program_logits, PROGRAM, dim=1)]
        a = self.summary(cells, program[1:1 + len(GROUPS)])
        b = self.summary(cells, program[1 + len(GROUPS):])
        groups = slice(2, 2 + len(GROUPS))
        alike = [(x * y).sum(dim=1, keepdim=True) for x, y in zip(a[groups], b[groups])]
        return self.reason(torch.cat(program + a + b + alike, dim=1))

    def forward(self, features, question):
        return self.answer(features, self.parser(question))


def corrupted(text, rng, mishearings, rate):
    """The question as a recogniser might write it."""
    words = []
    for word in text.split():
        heard = mishearings.get(word) if rng.random() < 0.6 else None
        word = heard[int(rng.integers(len(heard)))] if heard else word
        words.append(SPELLINGS[word] if word in SPELLINGS and rng.random() < 0.2 else word)
    text = " ".join(words)
    draws = rng.random(len(text))
    letters = rng.integers(len(training_run.ALPHABET), size=len(text))
    characters = []
    for c, draw, letter in zip(text, draws.tolist(), letters.tolist()):
        if draw < rate / 3:
            continue  # left out
        if draw < 2 * rate / 3:
            c = training_run.ALPHABET[letter]
        elif draw < rate:
            c += training_run.ALPHABET[letter]
        characters.append(c)
    return "".join(characters)


def exact(pairs):
    """The descriptors of an almost perfect image model."""
    targets = torch.from_numpy(train_features.targets_of(pairs))
    parts = [0.02 + 0.96 * targets[:, :, :1].float()]
    for i, width in enumerate(train_features.WIDTHS):
        there = (targets[:, :, 1 + i] >= 0).float()[:, :, None]
        right = F.one_hot(targets[:, :, 1 + i].clamp(min=0), width).float()
        parts.append(there * (0.05 / width + 0.95 * right) + (1 - there) / width)
    return torch.cat(parts, dim=2).flatten(1)


def tempered(features, rng):
    """The same descriptors, as a model would give them that is surer or less sure of itself."""
    cells = features.reshape(-1, CELLS, scene.CELL_WIDTH)
    power = torch.from_numpy(np.exp(rng.uniform(-0.7, 0.7, size=(len(cells), 1, 1)))).float()
    parts = torch.split(cells, [1] + train_features.WIDTHS, dim=2)
    there, not_there = parts[0] ** power, (1 - parts[0]) ** power
    result = [there / (there + not_there)]
    for part in parts[1:]:
        part = part ** power
        result.append(part / part.sum(dim=2, keepdim=True))
    return torch.cat(result, dim=2).flatten(1)


def outputs_of(args):
    """What the trained models made of the generated scenes and questions."""
    result = {"pairs": {}, "features": {}, "heard": {}}
    for part in ("train", "tune"):
        folder = args.work / "outputs" / part
        result["pairs"][part] = training_run.annotations(args.work / part)
        for size in IMAGE_SOURCES:
            result["features"][part, size] = torch.from_numpy(
                np.load(folder / f"scene-features-{size}.npy"))
        for size in SPEECH_SOURCES:
            result["heard"][part, size] = json.loads((folder / f"speech-{size}.json").read_text())
    return result


def mishearings_of(outputs):
    """word -> what stood in its place where the number of words agrees."""
    found = {}
    for size in SPEECH_SOURCES:
        for pair, heard in zip(outputs["pairs"]["tune"], outputs["heard"]["tune", size]):
            said, words = pair["question"].split(), heard.split()
            if len(said) == len(words):
                for a, b in zip(said, words):
                    found.setdefault(a, []).append(b)
    return found


def build_samples(outputs, seed):
    """Columns of the training set; typed questions keep their text, to be corrupted later."""
    rng = np.random.default_rng([seed, 99])
    samples = []  # (scene index, program classes, answer, text, how many errors to put in)
    offset = 0
    for part in ("train", "tune"):
        for i, pair in enumerate(outputs["pairs"][part]):
            index = offset + i
            classes = program_classes(pair["program"])
            answer = questions.ANSWERS.index(pair["answer"])
            for size in SPEECH_SOURCES:
                text = outputs["heard"][part, size][i]
                for _ in range(1 if part == "train" else HEARD_TIMES):
                    samples.append((index, classes, answer, text, False))
            for _ in range(QUESTIONS_PER_SCENE):
                program, text, truth = questions.random_question(rng, pair["objects"])
                samples.append((index, program_classes(program),
                                questions.ANSWERS.index(truth), text, True))
        offset += len(outputs["pairs"][part])
    return samples


def train(size, args, features, samples, mishearings):
    epochs = args.epochs or EPOCHS[size]
    where = np.array([s[0] for s in samples])
    programs = torch.tensor([s[1] for s in samples])
    answers = torch.tensor([s[2] for s in samples])
    steps = len(samples) // BATCH
    torch.manual_seed(args.seed)
    model = Answerer(**SIZES[size])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=epochs * steps, pct_start=0.15
    )
    progress = training_run.Progress(args.work / "checkpoints" / f"answerer-{size}.pt",
                                     model, optimizer, scheduler)
    while progress.epoch < epochs:
        rng = progress.rng(args.seed)
        model.train()
        order, total, right = rng.permutation(len(samples)), 0.0, 0
        for step in range(steps):
            chosen = order[step * BATCH:(step + 1) * BATCH]
            texts = []
            for i in chosen:
                text = samples[i][3]
                if samples[i][4] and rng.random() < 0.7:
                    text = corrupted(text, rng, mishearings, rng.choice([0.0, 0.03, 0.08]))
                texts.append(training_run.tokens(text))
            source = torch.from_numpy(rng.integers(0, len(features), size=len(chosen)))
            x = tempered(features[source, torch.from_numpy(where[chosen])], rng)
            parsed = model.parser(torch.tensor(texts))
            loss = 0.0
            for j, part in enumerate(torch.split(parsed, PROGRAM, dim=1)):
                loss = loss + 0.5 * F.cross_entropy(part, programs[chosen, j])
            scores = model.answer(x, parsed)
            loss = loss + F.cross_entropy(scores, answers[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            total += loss.item()
            right += (scores.argmax(1) == answers[chosen]).sum().item()
            training_run.pulse(f"answerer-{size}", progress.epoch, step, steps)
        progress.done_epoch()
        training_run.log(f"answerer-{size}: epoch {progress.epoch}/{epochs} "
                         f"loss {total / steps:.3f} "
                         f"training accuracy {right / (steps * BATCH):.4f}")
    export(size, model, args)


def export(size, model, args):
    name = f"answerer-{size}"
    example = (torch.rand(2, scene.FEATURE_WIDTH),
               torch.ones(2, training_run.QUESTION_LENGTH, dtype=torch.int64))
    facts = training_run.export(model, example, name, ["features", "question"], ["logits"])
    facts["flops"] //= 2  # the example has two samples
    training_run.write_manifest(
        name,
        "Answers a question about a scene from its features and the question's characters "
        f"({size} network).",
        facts, "train_answerer.py", args.seed,
        inputs=[
            {"name": "features", "column": "features", "type": "tensor", "dtype": "float32",
             "shape": ["batch", scene.FEATURE_WIDTH], "preprocess": []},
            {"name": "question", "column": "question", "type": "text", "dtype": "int64",
             "shape": ["batch", training_run.QUESTION_LENGTH],
             "preprocess": [{"characters": {"alphabet": training_run.ALPHABET,
                                            "length": training_run.QUESTION_LENGTH}}]},
        ],
        outputs=[{
            "name": "logits", "column": "answer", "type": "text", "dtype": "float32",
            "shape": ["batch", len(questions.ANSWERS)],
            "postprocess": [{"argmax": {"labels": questions.ANSWERS}}],
        }],
        metric=training_run.pending("answer_accuracy"),
    )


def main():
    args = training_run.arguments("Trains the answerers.", 13, SIZES)
    outputs = outputs_of(args)
    features = torch.stack([
        torch.cat([outputs["features"][part, size] for part in ("train", "tune")])
        for size in IMAGE_SOURCES
    ] + [torch.cat([exact(outputs["pairs"][part]) for part in ("train", "tune")])])
    mishearings = mishearings_of(outputs)
    samples = build_samples(outputs, args.seed)
    training_run.log(f"answerers: {len(samples)} samples")
    for size in SIZES:
        if args.only in (None, size):
            train(size, args, features, samples, mishearings)


if __name__ == "__main__":
    main()
