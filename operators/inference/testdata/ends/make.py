"""Writes what magika's own extraction of features makes of 30 files.

    pip install magika==1.0.3
    python make.py

ends.json: for each file its parts, `[hex of some bytes, number of repetitions]` one after another; `first` and
`last`; the first and last four values; and the sha256 of all values, written with commas between them.
"""
import hashlib
import json
import random
from pathlib import Path

from magika.magika import Magika
from magika.types import Seekable
import io

PADDING, BLOCK = 256, 4096


def files():
    blanks = b" \t\n\r\x0b\x0c"
    fixed = [
        [(b"", 1)], [(b"a", 1)], [(b" ", 1)], [(blanks, 1)], [(b"  abc  ", 1)], [(b"\n\nabc def\r\n", 1)],
        [(b" ", 4096), (b"a", 1)], [(b" ", 4095), (b"a", 1)], [(b"a", 1), (b" ", 4096)],
        [(b"a", 1), (b"\n", 4095)], [(blanks, 2000)], [(b"abc", 341), (b"d", 1)], [(b"abcd", 256)],
        [(b"abcd", 256), (b"e", 1)], [(b"\0", 5000)], [(b"\x1c\x1d\x1e\x1f\x85\xa0", 10)],
        [(b"\0 ", 10)], [(b" \0", 10)], [(b"x", 4096)], [(b"x", 4097)], [(b"x y\n", 3000)],
        [(blanks, 100), (b"begin", 1), (b"\xff\xfe", 4000), (b"end", 1), (blanks, 100)],
        [(b" ", 5000), (b"middle", 1), (b" ", 5000)], [(b"a", 3000), (b" ", 3000), (b"b", 3000)],
    ]
    rng = random.Random(3)
    while len(fixed) < 30:
        fixed.append([(rng.randbytes(rng.randint(1, 40)) if rng.random() < 0.6 else blanks[:rng.randint(1, 6)],
                       rng.randint(1, 300)) for _ in range(rng.randint(2, 8))])
    return fixed


def main():
    rows = []
    for at, parts in enumerate(files()):
        content = b"".join(part * times for part, times in parts)
        first, last = [(1024, 1024), (16, 8), (512, 0), (0, 64)][at % 4 if at >= 24 else 0]
        found = Magika._extract_features_from_seekable(
            Seekable(io.BytesIO(content)), first, 0, last, PADDING, BLOCK, False)
        values = [*found.beg, *found.end]
        rows.append({
            "parts": [[part.hex(), times] for part, times in parts], "first": first, "last": last,
            "start": values[:4], "end": values[-4:],
            "sha256": hashlib.sha256(",".join(map(str, values)).encode()).hexdigest()})
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path(__file__).with_name("ends.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
