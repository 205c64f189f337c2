"""Writes measures.json: what pycocotools and scikit-learn say about random answers.

pip install pycocotools==2.0.11 scikit-learn==1.9.1 && python make_measures.py > measures.json
"""
import json
import random

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from sklearn import metrics

random.seed(7)


def half(value):
    """A number that float32 has, too."""
    return float(np.float32(value))


def box():
    left, top = random.uniform(0, 0.7), random.uniform(0, 0.7)
    return [half(v) for v in (left, top, random.uniform(0.05, 0.3), random.uniform(0.05, 0.3))]


def moved(area):
    """A box that overlaps another one more or less."""
    by = random.choice([0.0, 0.05, 0.1, 0.2, 0.4])
    return [half(v + by * random.uniform(-1, 1) * size) for v, size in zip(area, area[2:] * 2)]


def boxes():
    pictures = []
    for number in range(40):
        truth = [box() + [random.choice([0, 1, 1, 5])] for _ in range(random.randint(0, 6))]
        found = []
        for *area, kind in truth:
            for _ in range(random.choice([0, 1, 1, 2])):
                score = random.choice([half(random.uniform(0.05, 1)), 0.5])
                found.append(moved(area) + [score, random.choice([kind, kind, kind, 1])])
        found += [box() + [half(random.uniform(0.05, 0.9)), random.choice([0, 1, 5, 9])] for _ in range(random.randint(0, 3))]
        found = [one for one in found if one[2] > 0 and one[3] > 0]
        # The row of one picture never comes.
        pictures.append({"key": f"p{number:02}", "boxes": truth, "found": None if number == 11 else found})
    coco = COCO()
    kinds = sorted({kind for picture in pictures for *_, kind in picture["boxes"]})
    annotations = [
        {"image_id": number, "category_id": kind, "bbox": area, "area": area[2] * area[3], "iscrowd": 0}
        for number, picture in enumerate(pictures) for *area, kind in picture["boxes"]
    ]
    coco.dataset = {
        "info": {},
        "images": [{"id": number} for number in range(len(pictures))],
        "categories": [{"id": kind} for kind in kinds],
        "annotations": [{"id": number + 1, **one} for number, one in enumerate(annotations)],
    }
    coco.createIndex()
    found = coco.loadRes([
        {"image_id": number, "category_id": kind, "bbox": area, "score": score}
        for number, picture in enumerate(pictures) for *area, score, kind in picture["found"] or [] if kind in kinds
    ])
    evaluation = COCOeval(coco, found, "bbox")
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
    evaluation.params.maxDets = [100]
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, 0]  # overlap, recall, class
    return {
        "pictures": pictures,
        "map_percent": 100 * precision.mean(),
        "map_50_percent": 100 * precision[0].mean(),
        "classes": [[kind, 100 * precision[:, :, at].mean(), 100 * precision[0, :, at].mean()] for at, kind in enumerate(kinds)],
    }


def classes():
    names = ["cat", "dog", "cow", "fox"]
    truth = [random.choice(names[:3]) for _ in range(200)]
    found = [random.choice([name, name, random.choice(names)]) for name in truth]
    labels = sorted(set(truth))
    each = metrics.precision_recall_fscore_support(truth, found, labels=labels, zero_division=0)
    mean = metrics.precision_recall_fscore_support(truth, found, labels=labels, average="macro", zero_division=0)
    rows = [[label, *(100 * float(part[at]) for part in each[:3]), int(each[3][at])] for at, label in enumerate(labels)]
    return {"truth": truth, "found": found, "classes": rows, "macro": [100 * float(part) for part in mean[:3]]}


def scores():
    truth = [random.random() < 0.3 for _ in range(300)]
    found = [round(random.gauss(0.7 if one else 0.4, 0.25), 1) for one in truth]
    return {"truth": truth, "found": found, "auc_percent": 100 * metrics.roc_auc_score(truth, found)}


def numbers():
    truth = [random.gauss(0, 100) for _ in range(100)]
    found = [one + random.gauss(0, 3) for one in truth]
    return {
        "truth": truth,
        "found": found,
        "mean_absolute_error": metrics.mean_absolute_error(truth, found),
        "root_mean_square_error": metrics.root_mean_squared_error(truth, found),
    }


import contextlib, io

with contextlib.redirect_stdout(io.StringIO()):
    parts = {"boxes": boxes(), "classes": classes(), "scores": scores(), "numbers": numbers()}
print(json.dumps(parts))
