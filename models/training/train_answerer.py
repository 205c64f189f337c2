"""Trains the answerer: scene features and the question's characters to one of 23 answers.

    python train_answerer.py --work WORK      (after train_features.py and train_speech.py)

It learns from the features of both image models and from questions as typed, as both recognisers
heard them, and with errors like theirs put in.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import training_run
import questions
import scene
import train_features
import train_speech

EPOCHS = 8
BATCH = 256
QUESTIONS_PER_SCENE = 6
HEARD_TIMES = 2

# Groups of the program that the text part predicts: the template, then for A and B each group of
# properties, where class 0 means "any".
GROUPS = list(scene.GROUPS)
SIZES = [1 + len(scene.GROUPS[g]) for g in GROUPS]
PROGRAM = [len(questions.TEMPLATES)] + SIZES + SIZES


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

    def __init__(self, width=96, queries=4):
        super().__init__()
        self.embedding = nn.Embedding(1 + len(training_run.ALPHABET), 24)
        self.down = nn.Sequential(
            nn.Conv1d(24, 64, 5, stride=2, padding=2), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
        )
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Conv1d(width, width, 3, padding=d, dilation=d),
                          nn.BatchNorm1d(width), nn.ReLU())
            for d in (1, 2, 4)
        ])
        self.attention = nn.Conv1d(width, queries, 1)
        self.out = nn.Sequential(nn.Linear(width * queries, 160), nn.ReLU(), nn.Dropout(0.1),
                                 nn.Linear(160, sum(PROGRAM)))

    def forward(self, text):
        x = self.down(self.embedding(text).transpose(1, 2))
        for block in self.blocks:
            x = x + block(x)
        weights = torch.softmax(self.attention(x), dim=2)
        return self.out(torch.matmul(weights, x.transpose(1, 2)).flatten(1))


class Answerer(nn.Module):
    """Finds the cells that each description fits, then answers from sums over them."""

    def __init__(self, width=160):
        super().__init__()
        self.parser = Parser()
        cells = scene.GRID * scene.GRID
        place = torch.zeros(cells, 2 * scene.GRID)
        for cell in range(cells):
            row, column = divmod(cell, scene.GRID)
            place[cell, row] = place[cell, scene.GRID + column] = 1
        self.register_buffer("place", place)
        summary = 2 * (2 + scene.CELL_WIDTH - 1 + 2 * scene.GRID) + len(GROUPS)
        self.reason = nn.Sequential(
            nn.Linear(sum(PROGRAM) + summary, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, len(questions.ANSWERS)),
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
        cells = features.reshape(-1, scene.GRID * scene.GRID, scene.CELL_WIDTH)
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
        heard = mishearings.get(word)
        words.append(heard[int(rng.integers(len(heard)))] if heard else word)
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


def outputs_of(args):
    """What the trained models make of the generated scenes and questions."""
    result = {"features": {}, "heard": {}, "pairs": {}}
    for part in ("train", "tune"):
        pixels, _ = train_features.load(args.work / part)
        result["pairs"][part] = training_run.annotations(args.work / part)
        values, _ = train_speech.load(args.work / part)
        for size in train_features.EPOCHS:
            state = torch.load(args.work / "checkpoints" / f"features-{size}.pt",
                               weights_only=True)
            model = train_features.FeatureModel(size)
            model.load_state_dict(state["model"])
            model.eval()
            with torch.no_grad():
                result["features"][part, size] = torch.cat([
                    model(training_run.image_tensor(pixels[i:i + 200]))
                    for i in range(0, len(pixels), 200)
                ])
        for size in train_speech.SIZES:
            state = torch.load(args.work / "checkpoints" / f"speech-{size}.pt",
                               weights_only=True)
            model = train_speech.Recogniser(**train_speech.SIZES[size])
            model.load_state_dict(state["model"])
            result["heard"][part, size] = train_speech.transcribe(model, values)
        training_run.log(f"answerer: outputs of the other models on {part} ready")
    return result


def mishearings_of(outputs):
    """word -> what stood in its place where the number of words agrees."""
    found = {}
    for size in train_speech.SIZES:
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
            for size in train_speech.SIZES:
                text = outputs["heard"][part, size][i]
                for _ in range(1 if part == "train" else HEARD_TIMES):
                    samples.append((index, classes, answer, text, False))
            for _ in range(QUESTIONS_PER_SCENE):
                program, text, truth = questions.random_question(rng, pair["objects"])
                samples.append((index, program_classes(program),
                                questions.ANSWERS.index(truth), text, True))
        offset += len(outputs["pairs"][part])
    return samples


def main():
    args = training_run.arguments("Trains the answerer.", seed=13)
    epochs = args.epochs or EPOCHS
    outputs = outputs_of(args)
    features = [torch.cat([outputs["features"][part, size] for part in ("train", "tune")])
                for size in train_features.EPOCHS]
    features = torch.stack(features)
    mishearings = mishearings_of(outputs)
    samples = build_samples(outputs, args.seed)
    training_run.log(f"answerer: {len(samples)} samples")

    where = np.array([s[0] for s in samples])
    programs = torch.tensor([s[1] for s in samples])
    answers = torch.tensor([s[2] for s in samples])
    steps = len(samples) // BATCH
    torch.manual_seed(args.seed)
    model = Answerer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, total_steps=epochs * steps, pct_start=0.15
    )
    progress = training_run.Progress(args.work / "checkpoints" / "answerer.pt",
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
            size = torch.from_numpy(rng.integers(0, len(features), size=len(chosen)))
            x = features[size, torch.from_numpy(where[chosen])]
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
        progress.done_epoch()
        training_run.log(f"answerer: epoch {progress.epoch}/{epochs} loss {total / steps:.3f} "
                   f"training accuracy {right / (steps * BATCH):.4f}")

    example = (torch.rand(2, scene.FEATURE_WIDTH), torch.ones(2, 64, dtype=torch.int64))
    facts = training_run.export(model, example, "answerer", ["features", "question"], ["logits"])
    facts["flops"] //= 2  # the example has two samples
    training_run.write_manifest(
        "answerer",
        "Answers a question about a scene from its features and the question's characters.",
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


if __name__ == "__main__":
    main()
