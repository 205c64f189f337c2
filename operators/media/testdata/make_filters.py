"""Writes filters.json: pictures as scaled by Pillow and OpenCV, the references of the tests in src/filter.

Needs `pip install numpy "pillow<13" opencv-python-headless`; made with Pillow 12.3.0 and OpenCV 5.0.0.
Pillow 13 may scale along y first.
"""
import json
import os

import cv2
import numpy as np
from PIL import Image

PILLOW = {"NEAREST": "PillowNearest", "BOX": "PillowBox", "BILINEAR": "PillowBilinear",
          "BICUBIC": "PillowBicubic", "LANCZOS": "PillowLanczos"}
OPENCV = {"NEAREST": "OpencvNearest", "LINEAR": "OpencvLinear", "CUBIC": "OpencvCubic",
          "LANCZOS4": "OpencvLanczos4", "AREA": "OpencvArea"}
# From and to: width and height. Shrunk, enlarged, both, halved, by whole numbers, of one pixel, flat.
SIZES = [((17, 13), (6, 5)), ((7, 5), (12, 9)), ((15, 6), (7, 10)), ((12, 8), (6, 4)), ((15, 12), (5, 3)),
         ((9, 7), (1, 1)), ((1, 1), (3, 2)), ((60, 2), (7, 3)), ((6, 8), (9, 12))]


def picture(width, height):
    """Noise with flat parts; the tests compute the same."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for y in range(height):
        for x in range(width):
            mixed = (x * 31 + y * 17) ^ (x * y * 5)
            flat = (x // 3 + y // 2) % 3
            pixels[y, x] = [mixed % 256, (mixed * 7) % 256, [0, 255, mixed % 256][flat]]
    return pixels


def main():
    # The plain code of OpenCV: that for vectors rounds INTER_CUBIC elsewhere.
    cv2.setUseOptimized(False)
    lines = []
    for (width, height), size in SIZES:
        pixels = picture(width, height)
        scaled = {ours: np.asarray(Image.fromarray(pixels).resize(size, getattr(Image.Resampling, theirs)))
                  for theirs, ours in PILLOW.items()}
        scaled |= {ours: cv2.resize(pixels, size, interpolation=getattr(cv2, "INTER_" + theirs))
                   for theirs, ours in OPENCV.items()}
        for name, result in scaled.items():
            line = {"filter": name, "from": [width, height], "to": size, "pixels": result.tobytes().hex()}
            lines.append(json.dumps(line))
    path = os.path.join(os.path.dirname(__file__), "filters.json")
    with open(path, "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
