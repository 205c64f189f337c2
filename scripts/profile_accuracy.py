#!/usr/bin/env python3
"""Gives the profile of examples/vqa the accuracies of the models' validation set, which shares no pair with the example.

    python3 scripts/profile_accuracy.py PROFILE [RESULTS]    rewrites PROFILE from models/vqa/results.json

So a run of the example judges pairs that the profile was not scored on, and the profile's intervals are those of 2400 pairs
instead of 200.
"""
import json
import pathlib
import re
import sys

RESULTS = pathlib.Path(__file__).parent.parent / "models/vqa/results.json"
KINDS = {"image": "scene_features", "speech": "speech", "answerer": "answerer"}


def percent(share):
    """A share as the profile writes it: at most two digits after the point."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def accuracy_alone(model):
    """The metric of a model as an accuracy."""
    metric = model["metric"]
    return metric["value"] if metric["higher_is_better"] else 1 - metric["value"]


def section(results, models_text):
    """The text of `accuracy:`; of the models by themselves what the profile has."""
    shipped = {model["id"]: model for model in results["models"] if model["shipped"]}
    rows = [row for row in results["combinations"] if all(row[kind] in shipped for kind in KINDS)]
    lines = [
        "accuracy:",
        "  metric: share of answers that equal the truth",
        "  sink: answers",
        f"  samples: {results['samples']}",
        "  scored_on: validation pairs of the models, of another seed than the example's (models/vqa/RESULTS.md)",
        "  end_to_end:",
    ]
    worst = {}
    for row in rows:
        variants = ", ".join(f"{operator}: {row[kind]}" for kind, operator in sorted(KINDS.items(), key=lambda k: k[1]))
        low, high = row["interval"]
        lines += [
            f"    - variants: {{{variants}}}",
            f"      accuracy: {percent(row['accuracy'])}",
            f"      interval: [{percent(low)}, {percent(high)}]",
            f"      samples: {row['samples']}",
        ]
        inputs = tuple(accuracy_alone(shipped[row[kind]]) for kind in ("image", "speech"))
        key = (row["answerer"], inputs)
        worst[key] = min(worst.get(key, 1.0), row["accuracy"])
    lines.append("  response:")
    for (answerer, (image, speech)), output in sorted(worst.items()):
        lines += [
            "    - operator: answerer",
            f"      variant: {answerer}",
            f"      inputs: {{scene_features: {percent(image)}, speech: {percent(speech)}}}",
            f"      output: {percent(output)}",
        ]
    return "\n".join(lines) + "\n" + models_text


def main():
    """Rewrites the file."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    file = pathlib.Path(sys.argv[1])
    results = json.loads(pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else RESULTS).read_text(encoding="utf-8"))
    text = file.read_text(encoding="utf-8")
    found = re.search(r"(?m)^accuracy:\n(?:[ ].*\n)*", text)
    models = found and re.search(r"(?ms)^  models:\n.*", found.group(0))
    if not models:
        sys.exit(f"{file} has no accuracies of models: is it a profile?")
    file.write_text(text[: found.start()] + section(results, models.group(0)) + text[found.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()
