"""Runs the models over generated pairs as their manifests say, and scores every combination.

    python evaluate.py --data DIR --outputs CACHE [--also MANIFEST ...] [--results FILE]
                       [--expected FILE] [--set-metrics] [--time]

Each model runs once per sample; its outputs stay in CACHE, and all combinations are scored on them:
CACHE/NAME.npy is a [samples, features] array in the order of DIR/truth.csv, CACHE/NAME.jsonl has a
line {"key": ..., "text": ...} per question, CACHE/made_from.json says which files made them; they are
made again when a model's file is another one. A model that --also names and that this script cannot run needs its outputs there already, and its
processor time in CACHE/cpu_ms.json, a map from name to milliseconds. Prints Markdown.
"""

import argparse
import collections
import csv
import itertools
import json
import math
import pathlib
import sys

import numpy as np

from runner import Model

QUESTION_KINDS = [
    ("colour", "what color"), ("shape", "what shape"), ("size", "what size"),
    ("pattern", "what pattern"), ("count", "how many"), ("exists", "is there"),
    ("more", "are there more"), ("fewer", "are there fewer"), ("as many", "are there as many"),
    ("same colour", "same color"), ("same shape", "same shape"), ("left of", " left of "),
    ("above", " above "), ("top half", "top half"),
]
ROUNDS = 20  # of the timing, each model in turn


def wilson(right, count):
    """95 % interval of a share."""
    z, p = 1.96, right / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return middle - half, middle + half


def words_of(text):
    """Lower case, without punctuation, American spelling."""
    kept = "".join(c if c.isalpha() or c in " '" else " " for c in text.lower())
    return kept.replace("colour", "color").split()


def word_errors(reference, hypothesis):
    a, b = words_of(reference), words_of(hypothesis)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1,
                                           previous + (word != other))
    return row[-1]


def word_error_rate(references, hypotheses, draws=2000):
    """The rate and its 95 % interval, by drawing utterances again (bootstrap)."""
    errors = np.array([word_errors(a, b) for a, b in zip(references, hypotheses)])
    words = np.array([len(a.split()) for a in references])
    rng = np.random.default_rng(0)
    again = rng.integers(0, len(words), size=(draws, len(words)))
    rates = np.sort(errors[again].sum(axis=1) / words[again].sum(axis=1))
    return errors.sum() / words.sum(), rates[int(0.025 * draws)], rates[int(0.975 * draws)]


def percent(share):
    return f"{100 * share:.1f}"


def metric(name, value, interval, samples):
    return {"name": name, "value": round(float(value), 4),
            "interval": [round(float(limit), 4) for limit in interval], "samples": samples,
            "higher_is_better": name == "answer_accuracy"}


def set_metric(path, values):
    """Replaces the metric, the last entry of a manifest."""
    head = path.read_text().split("\nmetric:")[0]
    lines = ["metric:"] + [
        f"  {k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in values.items()
    ]
    path.write_text("\n".join([head] + lines) + "\n")


def cached(path, model, make, save, load):
    """Outputs of a model: as kept, or made and kept."""
    record = path.parent / "made_from.json"
    made_from = json.loads(record.read_text()) if record.exists() else {}
    digest = model.manifest["sha256"]
    if not path.exists() or made_from.get(model.name, digest) != digest:
        if not model.file.exists():
            sys.exit(f"{path} is missing, and so is {model.file}, which could make it")
        print(f"evaluate: {model.name}", file=sys.stderr, flush=True)
        save(path, make())
        record.write_text(json.dumps({**made_from, model.name: digest}, indent=1))
    return load(path)


def features_of(model, cache, images):
    return cached(cache / f"{model.name}.npy", model, lambda: model.run(image=images),
                  np.save, np.load)


def texts_of(model, cache, keys, sounds):
    def save(path, texts):
        lines = [json.dumps({"key": key, "text": text}) for key, text in zip(keys, texts)]
        path.write_text("\n".join(lines) + "\n")

    def load(path):
        found = {row["key"]: row["text"] for row in map(json.loads, path.read_text().splitlines())}
        return [found[key] for key in keys]

    return cached(cache / f"{model.name}.jsonl", model, lambda: model.run(audio=sounds),
                  save, load)


def measure(models, cache, columns):
    """Adds to the kept processor times; the least ever seen stays, since the machine is shared."""
    path = cache / "cpu_ms.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for model in models:  # another file of the same name is another model
        if known.get(f"{model.name} sha256") != model.manifest["sha256"] and model.file.exists():
            known.pop(model.name, None)
    for _ in range(ROUNDS if columns else 0):
        for model in models:
            if model.file.exists():
                needs = {port["column"]: columns[port["column"]]
                         for port in model.manifest["inputs"]}
                known[model.name] = min(known.get(model.name, math.inf), model.cpu_ms(15, needs))
                known[f"{model.name} sha256"] = model.manifest["sha256"]
    path.write_text(json.dumps(known, indent=1))
    return known


def dominated(one, others):
    """Whether another combination is as accurate and as cheap, and better in one of the two."""
    cost = lambda c: (-c["correct"], c["cpu_ms"])
    return any(all(x <= y for x, y in zip(cost(other), cost(one))) and cost(other) != cost(one)
               for other in others)


def score(models, outputs, truth, costs):
    """All combinations, the cheapest first, with the answers of each."""
    rows, answers = [], {}
    for image, speech, answerer in itertools.product(*[models[kind] for kind in KINDS]):
        given = answerer.run(batch=500, features=outputs[image.name],
                             question=outputs[speech.name])
        correct = sum(a == b for a, b in zip(given, truth))
        names = image.name, speech.name, answerer.name
        parts = [costs[name] for name in names] if all(n in costs for n in names) else []
        rows.append({
            "image": names[0], "speech": names[1], "answerer": names[2], "correct": correct,
            "samples": len(truth), "accuracy": round(correct / len(truth), 4),
            "interval": [round(limit, 4) for limit in wilson(correct, len(truth))],
            "cpu_ms": round(sum(parts), 3) if parts else None,
            "flops": image.flops + speech.flops + answerer.flops,
        })
        answers[names] = given
    if all(row["cpu_ms"] for row in rows):
        for row in rows:
            row["dominated"] = dominated(row, rows)
    return sorted(rows, key=lambda row: (row["cpu_ms"] or 0, row["flops"])), answers


KINDS = ["image", "speech", "answerer"]


def interval(limits):
    return f"{percent(limits[0])} to {percent(limits[1])}"


def print_models(facts):
    print("| model | FLOPs per sample | parameters | file, kB | CPU ms | metric | value, % | "
          "95 % interval |\n|---|---|---|---|---|---|---|---|")
    for fact in facts:
        cost = f"{fact['cpu_ms']:.2f}" if fact["cpu_ms"] else "not measured"
        size = f"{fact['bytes'] / 1000:.0f}" if fact["bytes"] else "-"
        name = fact["metric"]["name"].replace("_", " ")
        print(f"| {fact['id']} | {fact['flops'] / 1e6:.1f} M | {fact['parameters']} | {size} | "
              f"{cost} | {name} | {percent(fact['metric']['value'])} | "
              f"{interval(fact['metric']['interval'])} |")


def print_combinations(rows):
    print("\n| image features | recogniser | answerer | CPU ms | answers right, % | "
          "95 % interval | dominated |\n|---|---|---|---|---|---|---|")
    for row in rows:
        cost = f"{row['cpu_ms']:.2f}" if row["cpu_ms"] else "-"
        print(f"| {row['image']} | {row['speech']} | {row['answerer']} | {cost} | "
              f"{percent(row['accuracy'])} | {interval(row['interval'])} | "
              f"{'yes' if row.get('dominated') else ''} |")


def print_kinds(asked, truth, weak, best):
    """Per kind of question: how the smallest and the largest combination do."""
    groups = collections.defaultdict(list)
    for i, question in enumerate(asked):
        kind = next((name for name, mark in QUESTION_KINDS if mark in question), "other")
        groups[kind].append(i)
    common = {
        kind: collections.Counter(truth[i] for i in members).most_common(1)[0][1]
        for kind, members in groups.items()
    }
    print(f"\nAlways the most frequent answer of the question's kind: "
          f"{percent(sum(common.values()) / len(asked))} %.\n")
    print("| kind | pairs | most frequent answer, % | smallest models, % | largest models, % |"
          "\n|---|---|---|---|---|")
    for kind, members in sorted(groups.items(), key=lambda g: -len(g[1])):
        share = lambda given: percent(np.mean([given[i] == truth[i] for i in members]))
        print(f"| {kind} | {len(members)} | {percent(common[kind] / len(members))} | "
              f"{share(weak)} | {share(best)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--outputs", type=pathlib.Path, required=True,
                        help="folder of the models' outputs on this data")
    parser.add_argument("--models", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent / "vqa")
    parser.add_argument("--also", type=pathlib.Path, nargs="*", default=[],
                        help="manifests of further image or speech models")
    parser.add_argument("--results", type=pathlib.Path, help="write the tables to this JSON file")
    parser.add_argument("--expected", type=pathlib.Path,
                        help="write key,recognised,answer of the largest models to this file")
    parser.add_argument("--set-metrics", action="store_true",
                        help="put the measured metrics into the manifests")
    parser.add_argument("--time", action="store_true", help="measure processor time as well")
    args = parser.parse_args()

    with open(args.data / "truth.csv", newline="") as source:
        rows = list(csv.DictReader(source))
    keys, asked, truth = ([row[c] for row in rows] for c in ("key", "question", "answer"))
    images = [args.data / "images" / f"{key}.jpg" for key in keys]
    sounds = [args.data / "questions" / f"{key}.wav" for key in keys]

    args.outputs.mkdir(parents=True, exist_ok=True)
    shipped = [Model(path) for path in sorted(args.models.glob("*.yaml"))]
    everyone = sorted(shipped + [Model(path) for path in args.also], key=lambda m: m.flops)
    models = {kind: [m for m in everyone if m.kind == kind] for kind in KINDS}
    # Of two with the same FLOPs the one that is not quantised.
    size = lambda m: (m.flops, m.file.stat().st_size)
    largest = {kind: max((m for m in shipped if m.kind == kind), key=size).name for kind in KINDS}
    outputs = {m.name: features_of(m, args.outputs, images) for m in models["image"]}
    outputs.update({m.name: texts_of(m, args.outputs, keys, sounds) for m in models["speech"]})
    columns = {"image": images, "audio": sounds, "features": outputs[largest["image"]],
               "question": asked}
    costs = measure(everyone, args.outputs, columns if args.time else {})
    combinations, answers = score(models, outputs, truth, costs)

    # A model's own metric: word errors, or answers with the largest shipped models otherwise.
    facts = []
    for model in (m for kind in KINDS for m in models[kind]):
        if model.kind == "speech":
            rate, low, high = word_error_rate(asked, outputs[model.name])
            measured = metric("word_error_rate", rate, (low, high), len(rows))
        else:
            names = {**largest, model.kind: model.name}
            row = next(c for c in combinations if all(c[k] == names[k] for k in KINDS))
            measured = metric("answer_accuracy", row["accuracy"], row["interval"], len(rows))
        facts.append({
            "id": model.name, "kind": model.kind, "shipped": model in shipped,
            "flops": model.flops, "parameters": model.manifest["parameters"],
            "bytes": model.file.stat().st_size if model.file.exists() else None,
            "cpu_ms": round(costs[model.name], 3) if model.name in costs else None,
            "metric": measured,
        })
        if args.set_metrics:
            set_metric(model.path, measured)

    print(f"{len(rows)} pairs.\n")
    print_models(facts)
    print_combinations(combinations)
    smallest = tuple(min((m for m in shipped if m.kind == k), key=lambda m: m.flops).name
                     for k in KINDS)
    best = answers[tuple(largest[kind] for kind in KINDS)]
    print_kinds(asked, truth, answers[smallest], best)
    if args.results:
        args.results.write_text(json.dumps(
            {"samples": len(rows), "models": facts, "combinations": combinations}, indent=1) + "\n")
    if args.expected:
        with open(args.expected, "w", newline="") as target:
            writer = csv.writer(target, lineterminator="\n")
            writer.writerow(["key", "recognised", "answer"])
            writer.writerows(zip(keys, outputs[largest["speech"]], best))


if __name__ == "__main__":
    main()
