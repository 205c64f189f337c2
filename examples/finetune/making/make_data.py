"""Writes the questions of this example: typed ones, and spoken ones as WAV files.

    python make_data.py --out out
    tidemill run heard.yaml --rate max

out/typed.jsonl has key, question and topic; out/spoken/KEY.wav is a spoken question, and out/topics.csv has the topic of each.
The questions and voices are those of `models/training`, with seeds that no model was trained with. It needs numpy, Pillow and
espeak-ng. `heard.yaml` recognises the spoken ones: the first 1800 are `data/heard.jsonl`, the other 600 `data/later.jsonl`.
"""

import argparse
import csv
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "models" / "training"))
import questions  # noqa: E402
import scene  # noqa: E402
import speech  # noqa: E402

TYPED_SEED, SPOKEN_SEED = 71, 72
# What a question is about, by its template.
TOPICS = {"color": "color", "shape": "shape", "size": "size", "texture": "pattern", "count": "number",
          "exists": "existence", "more": "comparison", "fewer": "comparison", "equal": "comparison",
          "left": "place", "above": "place", "top": "place", "same_color": "likeness", "same_shape": "likeness"}


def drawn(seed, index):
    rng = np.random.default_rng([seed, index])
    program, question, _ = questions.random_question(rng, scene.random_scene(rng))
    return rng, question, TOPICS[program["template"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--typed", type=int, default=1000)
    parser.add_argument("--spoken", type=int, default=2400)
    args = parser.parse_args()
    (args.out / "spoken").mkdir(parents=True, exist_ok=True)
    with open(args.out / "typed.jsonl", "w") as target:
        for index in range(args.typed):
            _, question, topic = drawn(TYPED_SEED, index)
            row = {"key": f"t{index:05d}", "question": question, "topic": topic}
            target.write(json.dumps(row, separators=(",", ":")) + "\n")
    with open(args.out / "topics.csv", "w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(["key", "topic"])
        for index in range(args.spoken):
            rng, question, topic = drawn(SPOKEN_SEED, index)
            key = f"s{index:05d}"
            writer.writerow([key, topic])
            samples = speech.speak(question, speech.VOICES["validation"], rng)
            speech.write_wav(args.out / "spoken" / f"{key}.wav", samples)


if __name__ == "__main__":
    main()
