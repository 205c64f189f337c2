"""Writes a set of scenes and spoken questions.

    python generate.py --out DIR --count 1000 --seed 3 --voices validation

DIR/images/KEY.jpg, DIR/questions/KEY.wav and DIR/truth.csv (key,question,answer). With
--annotations also DIR/annotations.json, which training needs: the objects of every scene and the
program of every question.
"""

import argparse
import csv
import functools
import json
import multiprocessing
import pathlib
import sys

import numpy as np

import questions
import scene
import speech


def make_pair(index, out, seed, voices):
    rng = np.random.default_rng([seed, index])
    key = f"{index:06d}"
    objects = scene.random_scene(rng)
    program, question, answer = questions.random_question(rng, objects)
    jpeg = scene.encode_jpeg(scene.render(objects, rng), rng)
    (out / "images" / f"{key}.jpg").write_bytes(jpeg)
    speech.write_wav(out / "questions" / f"{key}.wav", speech.speak(question, voices, rng))
    return {"key": key, "question": question, "answer": answer,
            "objects": objects, "program": program}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--voices", choices=sorted(speech.VOICES), required=True)
    parser.add_argument("--annotations", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()

    for name in ("images", "questions"):
        (args.out / name).mkdir(parents=True, exist_ok=True)
    make = functools.partial(
        make_pair, out=args.out, seed=args.seed, voices=speech.VOICES[args.voices]
    )
    pairs = []
    with multiprocessing.Pool(args.jobs) as pool:
        for pair in pool.imap(make, range(args.count), chunksize=16):
            pairs.append(pair)
            if len(pairs) % 500 == 0 or len(pairs) == args.count:
                print(f"generate: {len(pairs)}/{args.count}", file=sys.stderr, flush=True)

    with open(args.out / "truth.csv", "w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(["key", "question", "answer"])
        for pair in pairs:
            writer.writerow([pair["key"], pair["question"], pair["answer"]])
    if args.annotations:
        (args.out / "annotations.json").write_text(json.dumps(pairs))


if __name__ == "__main__":
    main()
