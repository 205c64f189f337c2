"""Average precision of detectors, of single frames and whatever the class.

By the rules of COCO (Lin et al., 2014) at one limit of overlap: a detection is right when it overlaps a box of the truth
by half or more that no better one has taken (intersection over union). Truth of flag 0 counts neither way.
"""

import numpy as np

OVERLAP = 0.5
LEAST_SCORE = 0.05


def overlaps(one, other):
    """Intersection over union [n, m] of boxes [n, 4] and [m, 4]: left, top, width, height."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum((one[:, :2] + one[:, 2:4])[:, None], (other[:, :2] + other[:, 2:4])[None])
    inner = np.clip(high - low, 0, None).prod(axis=2)
    area = lambda b: b[:, 2] * b[:, 3]
    return inner / np.maximum(area(one)[:, None] + area(other)[None] - inner, 1e-9)


def kept(rows, picture, least=LEAST_SCORE, most_overlap=0.55):
    """Of a model's rows (middle, size, score, class): boxes in pixels [n, 6] of left, top, width, height, score, class,
    the best of those that overlap, best first."""
    rows = rows[rows[:, 4] >= least]
    rows = rows[np.argsort(-rows[:, 4], kind="stable")]
    width, height = picture
    low = np.clip(rows[:, :2] - rows[:, 2:4] / 2, 0, 1) * (width, height)
    high = np.clip(rows[:, :2] + rows[:, 2:4] / 2, 0, 1) * (width, height)
    boxes = np.concatenate([low, high - low, rows[:, 4:6]], axis=1)
    good = []
    for index in range(len(boxes)):
        if not good or overlaps(boxes[index:index + 1], boxes[good]).max() < most_overlap:
            good.append(index)
    return boxes[good]


def judged_frame(boxes, real):
    """Scores and whether right of the detections of a frame that count, and how many boxes there are to be found."""
    must, may = real[real[:, 5] == 1], real[real[:, 5] == 0]
    scores, right = [], []
    taken = np.zeros(len(must), bool)
    with_must, with_may = overlaps(boxes, must), overlaps(boxes, may)
    for number, score in enumerate(boxes[:, 4]):
        match = with_must[number] * ~taken
        if len(match) and match.max() >= OVERLAP:
            taken[match.argmax()] = True
            scores.append(score)
            right.append(True)
        elif not (len(may) and with_may[number].max() >= OVERLAP):
            scores.append(score)
            right.append(False)
    return np.array(scores), np.array(right, bool), len(must)


def joined(frames):
    scores, right, counts = zip(*frames)
    return np.concatenate(scores), np.concatenate(right).astype(bool), sum(counts)


def judged(found, truth):
    return joined([judged_frame(boxes, real) for boxes, real in zip(found, truth)])


def area(scores, right, count):
    """Precision, made monotone, at recalls of 0, 0.01 ... 1, as COCO has it."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[order])
    recall, precision = hits / max(count, 1), hits / np.arange(1, len(hits) + 1)
    precision = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return float(precision[np.searchsorted(recall, np.arange(101) * 0.01)].mean())


def average_precision(found, truth):
    return area(*judged(found, truth))


def average_precision_with_interval(found, truth, rounds=200, seed=0):
    """The value and the middle 95 % of it over frames drawn with replacement."""
    rng = np.random.default_rng(seed)
    frames = [judged_frame(boxes, real) for boxes, real in zip(found, truth)]
    values = [area(*joined([frames[i] for i in rng.integers(len(frames), size=len(frames))])) for _ in range(rounds)]
    low, high = np.quantile(values, [0.025, 0.975])
    return round(area(*joined(frames)), 4), [round(float(low), 4), round(float(high), 4)]


def best_threshold(found, truth):
    """The score above which detections have the highest F1, and that F1."""
    scores, right, count = judged(found, truth)
    best = (0.3, 0.0)
    for threshold in np.arange(0.1, 0.81, 0.05):
        chosen = scores >= threshold
        hits = right[chosen].sum()
        f1 = 2 * hits / max(1, chosen.sum() + count)
        if f1 > best[1]:
            best = (round(float(threshold), 2), float(f1))
    return best
