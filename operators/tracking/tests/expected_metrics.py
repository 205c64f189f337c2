#!/usr/bin/env python3
"""Writes expected_metrics.json: random tracks, and what other implementations of the measures say of them.

    pip install trackeval==1.3.0 motmetrics==1.4.0 pycocotools==2.0.11 scikit-learn==1.9.1
    python3 operators/tracking/tests/expected_metrics.py

The numbers come from TrackEval (identities, CLEAR, HOTA), motmetrics (identities again), pycocotools (average precision)
and scikit-learn (mAP of embeddings). Coordinates are multiples of 1/64, so that the file holds them exactly.
"""
import contextlib, io, json, pathlib
import motmetrics, numpy, trackeval
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from sklearn.metrics import average_precision_score
from trackeval.metrics import CLEAR, HOTA, Identity


def rounded(values):
    return [round(float(value) * 64) / 64 for value in values]


def scene(random, objects, frames, noise, misses, false_alarms, switches):
    """Boxes that wander, and what a careless tracker makes of them: (truth, found), each a list of frames of (id, box)."""
    place = random.uniform(0, 300, (objects, 2))
    speed = random.normal(0, 4, (objects, 2))
    size = random.uniform(20, 60, (objects, 2))
    span = numpy.sort(random.integers(0, frames, (objects, 2)), axis=1)
    names = list(range(100, 100 + objects))
    newest = 1000
    truth, found = [], []
    for frame in range(frames):
        here, seen = [], []
        for thing in range(objects):
            if random.random() < switches:
                newest += 1
                names[thing] = newest
            if random.random() < switches:
                other = int(random.integers(objects))
                names[thing], names[other] = names[other], names[thing]
        for thing in range(objects):
            if not span[thing, 0] <= frame <= span[thing, 1]:
                continue
            box = rounded([*(place[thing] + speed[thing] * frame), *size[thing]])
            here.append((thing, box))
            if random.random() >= misses:
                shaken = rounded(numpy.array(box) + random.normal(0, noise, 4))
                seen.append((names[thing], [shaken[0], shaken[1], max(shaken[2], 1), max(shaken[3], 1)]))
        for _ in range(random.poisson(false_alarms)):
            newest += 1
            seen.append((newest, rounded([*random.uniform(0, 300, 2), *random.uniform(20, 60, 2)])))
        truth.append(here)
        found.append(seen)
    return truth, found


def overlaps(truth, found):
    table = numpy.zeros((len(truth), len(found)))
    for row, (_, a) in enumerate(truth):
        for column, (_, b) in enumerate(found):
            width = max(0.0, min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0]))
            height = max(0.0, min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1]))
            common = width * height
            table[row, column] = common / (a[2] * a[3] + b[2] * b[3] - common)
    return table


def data_of(truth, found):
    objects = {name: index for index, name in enumerate(sorted({name for frame in truth for name, _ in frame}))}
    tracks = {name: index for index, name in enumerate(sorted({name for frame in found for name, _ in frame}))}
    return {
        "num_timesteps": len(truth), "num_gt_ids": len(objects), "num_tracker_ids": len(tracks),
        "num_gt_dets": sum(map(len, truth)), "num_tracker_dets": sum(map(len, found)),
        "gt_ids": [numpy.array([objects[name] for name, _ in frame], int) for frame in truth],
        "tracker_ids": [numpy.array([tracks[name] for name, _ in frame], int) for frame in found],
        "similarity_scores": [overlaps(a, b) for a, b in zip(truth, found)],
    }


def by_motmetrics(truth, found):
    accumulator = motmetrics.MOTAccumulator(auto_id=True)
    for here, seen in zip(truth, found):
        distance = 1 - overlaps(here, seen)
        distance[distance > 0.5] = numpy.nan
        accumulator.update([name for name, _ in here], [name for name, _ in seen], distance)
    summary = motmetrics.metrics.create().compute(accumulator, metrics=["idf1", "idp", "idr"], name="all")
    return {name: float(summary[name].iloc[0]) for name in ("idf1", "idp", "idr")}


def tracking_case(random, cameras, **how):
    scenes = [scene(random, **how) for _ in range(cameras)]
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet):
        identity, clear, hota = Identity({"PRINT_CONFIG": False}), CLEAR({"PRINT_CONFIG": False}), HOTA()
    whole = [frame for truth, _ in scenes for frame in truth], [frame for _, found in scenes for frame in found]
    each = {str(index): data_of(*scene) for index, scene in enumerate(scenes)}
    identities = identity.eval_sequence(data_of(*whole))
    clears = clear.combine_sequences({name: clear.eval_sequence(data) for name, data in each.items()})
    hotas = hota.combine_sequences({name: hota.eval_sequence(data) for name, data in each.items()})
    return {
        "cameras": [[[a, b] for a, b in zip(*scene)] for scene in scenes],
        "trackeval": {
            "idf1": float(identities["IDF1"]), "idp": float(identities["IDP"]), "idr": float(identities["IDR"]),
            "mota": float(clears["MOTA"]), "motp": float(clears["MOTP"]), "switches": int(clears["IDSW"]),
            "hota": float(numpy.mean(hotas["HOTA"])), "deta": float(numpy.mean(hotas["DetA"])),
            "assa": float(numpy.mean(hotas["AssA"])),
        },
        "motmetrics": by_motmetrics(*whole),
    }


def detection_case(random, **how):
    truth, found = scene(random, **how)
    pictures = [([box for _, box in a], [[*box, rounded([random.uniform(0.02, 1)])[0]] for _, box in b]) for a, b in zip(truth, found)]
    images = [{"id": index + 1} for index in range(len(pictures))]
    boxes, results = [], []
    for index, (here, seen) in enumerate(pictures):
        for box in here:
            boxes.append({"id": len(boxes) + 1, "image_id": index + 1, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0})
        for *box, score in seen:
            results.append({"image_id": index + 1, "category_id": 1, "bbox": box, "score": score})
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
        coco.createIndex()
        judge = COCOeval(coco, coco.loadRes(results), "bbox")
        judge.params.maxDets = [1, 10, 1000]
        judge.evaluate()
        judge.accumulate()
    # limits of overlap, recalls, classes, sizes, numbers of boxes
    precision = judge.eval["precision"][:, :, 0, 0, 2]
    return {"pictures": pictures, "at_50": float(precision[0].mean()), "mean": float(precision.mean())}


def retrieval_case(random, objects, cameras, dimensions, noise):
    centres = random.normal(0, 1, (objects, dimensions))
    def samples(count):
        made = []
        for _ in range(count):
            thing = int(random.integers(objects))
            made.append([thing, int(random.integers(cameras)), rounded(centres[thing] + random.normal(0, noise, dimensions))])
        return made
    queries, gallery = samples(25), samples(80)
    first, precision = [], []
    for thing, camera, vector in queries:
        rest = [(other == thing, numpy.dot(vector, that) / numpy.linalg.norm(vector) / numpy.linalg.norm(that))
                for other, at, that in gallery if other != thing or at != camera]
        same = [is_same for is_same, _ in rest]
        if any(same):
            likeness = [value for _, value in rest]
            first.append(same[int(numpy.argmax(likeness))])
            precision.append(average_precision_score(same, likeness))
    return {"queries": queries, "gallery": gallery, "rank_1": float(numpy.mean(first)), "map": float(numpy.mean(precision)), "answered": len(first)}


def main():
    random = numpy.random.default_rng(22)
    with contextlib.redirect_stdout(io.StringIO()):
        tracking = [
            tracking_case(random, cameras, objects=objects, frames=frames, noise=noise, misses=misses, false_alarms=alarms, switches=switches)
            for cameras, objects, frames, noise, misses, alarms, switches in [
                (1, 1, 5, 0, 0, 0, 0), (1, 4, 20, 2, 0.1, 0.2, 0.05), (1, 9, 30, 6, 0.3, 1.0, 0.15), (2, 6, 20, 4, 0.2, 0.5, 0.1),
                (3, 8, 15, 8, 0.5, 2.0, 0.3), (4, 5, 25, 3, 0.05, 0.1, 0.02), (1, 12, 25, 12, 0.2, 0.5, 0.05), (2, 3, 10, 1, 0.9, 0.3, 0.1),
            ]
        ]
        detection = [
            detection_case(random, objects=objects, frames=12, noise=noise, misses=misses, false_alarms=alarms, switches=0)
            for objects, noise, misses, alarms in [(4, 1, 0.1, 0.3), (10, 4, 0.3, 1.5), (15, 8, 0.1, 0.5)]
        ]
        retrieval = [retrieval_case(random, *how) for how in [(6, 3, 8, 0.4), (12, 4, 8, 1.2), (20, 2, 16, 2.0)]]
    path = pathlib.Path(__file__).with_name("expected_metrics.json")
    path.write_text(json.dumps({"tracking": tracking, "detection": detection, "retrieval": retrieval}, separators=(",", ":")) + "\n")


main()
