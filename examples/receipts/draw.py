"""Draws the receipts of this example: `python3 examples/receipts/draw.py` (needs numpy, Pillow, Debian's fonts-dejavu-core).

Shops, goods and prices are invented by a seed, so what stands on each receipt is known: data/truth.csv has it as one text,
line by line. The pictures look like photographs of thermal paper: grey ink that fades, a lamp from one side, a little blur, noise and
slant, compressed as JPEG. The same seed gives the same texts; pixels may differ with another version of Pillow.
"""

import argparse
import csv
import pathlib
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONTS = "/usr/share/fonts/truetype/dejavu/"
FAMILIES = ["DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSans.ttf"]
SHOPS = ["Mill Bakery", "Harbour Market", "Corner Books", "Green Grocer", "Station Kiosk", "North Hardware", "Tea & Spices",
         "Blue Pharmacy"]
STREETS = ["Bridge Street", "Quay Road", "Market Square", "Station Lane", "Church Hill", "Garden Row"]
GOODS = ["Rye bread", "Butter 250g", "Olive oil", "Apples 1kg", "Notebook A5", "Pencil HB", "Batteries AA", "Green tea", "Coffee beans",
         "Cheese slices", "Tomatoes", "Light bulb", "Wood screws", "Postcard", "Newspaper", "Oranges 2kg", "Milk 1l", "Honey jar",
         "Soap bar", "Paper towels", "Yoghurt", "Pasta 500g", "Cough syrup", "Plasters", "Tape 19mm", "Chocolate", "Mineral water"]
MARGIN, PITCH = 22, 1.62


def money(cents):
    return f"{cents // 100}.{cents % 100:02}"


def lines(rng):
    """What a receipt says, line by line: left, right and size, 1 being that of the goods."""
    goods = [(name, rng.randrange(1, 4), rng.randrange(45, 1995, 5)) for name in rng.sample(GOODS, rng.randrange(4, 10))]
    total = sum(count * price for _, count, price in goods)
    paid = -(-total // 500) * 500
    tax = round(total * 0.19 / 1.19)
    date = f"{rng.randrange(1, 29):02}.{rng.randrange(1, 13):02}.2026"
    yield rng.choice(SHOPS), None, 1.45
    yield f"{rng.choice(STREETS)} {rng.randrange(1, 99)}", None, 1
    yield f"Tel. 0{rng.randrange(200, 999)} {rng.randrange(10000, 99999)}", None, 1
    yield date, f"{rng.randrange(8, 20):02}:{rng.randrange(60):02}", 1
    yield f"Receipt {rng.randrange(1000, 9999)}", f"Till {rng.randrange(1, 9)}", 1
    for name, count, price in goods:
        yield (name if count == 1 else f"{count} x {name}"), money(count * price), 1
    yield "TOTAL EUR", money(total), 1.25
    yield "Cash", money(paid), 1
    yield "Change", money(paid - total), 1
    yield "incl. 19% VAT", money(tax), 1
    yield rng.choice(["Thank you for your visit", "Please keep this receipt", "See you soon"]), None, 1


def fitting(family, size, text, room):
    """A font in which the text is not wider than there is room."""
    while (font := ImageFont.truetype(FONTS + family, size)).getlength(text) > room:
        size -= 1
    return font


def receipt(rng, noise):
    """A picture and its text."""
    family, size, width = rng.choice(FAMILIES), rng.randrange(15, 21), rng.randrange(380, 461, 4)
    said = list(lines(rng))
    height = round(sum(size * scale * PITCH for *_, scale in said)) + 2 * MARGIN
    ink, top = Image.new("L", (width, height), 0), float(MARGIN)
    draw = ImageDraw.Draw(ink)
    for left, right, scale in said:
        room = width - 2 * MARGIN - (6 * size if right else 0)
        font = fitting(family, round(size * scale), left, room)
        at = MARGIN if right else (width - font.getlength(left)) / 2
        draw.text((at, top), left, 255, font)
        if right:
            draw.text((width - MARGIN - font.getlength(right), top), right, 255, font)
        top += size * scale * PITCH
    ink = ink.rotate(rng.uniform(-0.6, 0.6), Image.BICUBIC).filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.9)))
    # Where the head of the printer was cold, columns are lighter.
    faded = np.interp(np.arange(width), np.linspace(0, width, 7), noise.uniform(0.55, 1.0, 7))
    lamp = np.linspace(1.0, rng.uniform(0.72, 0.95), width)[None] * np.linspace(1.0, rng.uniform(0.85, 1.0), height)[:, None]
    paper = np.array([246, 243, 234]) - rng.randrange(0, 22)
    dark = np.asarray(ink, float)[..., None] / 255 * faded[None, :, None]
    pixels = (paper * (1 - dark) + np.array([60, 58, 66]) * dark) * lamp[..., None]
    pixels += noise.normal(0, rng.uniform(2, 7), (height, width, 1))
    text = "\n".join(left if right is None else f"{left} {right}" for left, right, _ in said)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent / "data",
                        help="folder (default: data beside this script)")
    parser.add_argument("--count", type=int, default=20, help="receipts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="(default: %(default)s)")
    options = parser.parse_args()
    pictures = options.out / "receipts"
    pictures.mkdir(parents=True, exist_ok=True)
    with open(options.out / "truth.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["key", "text"])
        for number in range(options.count):
            rng = random.Random(options.seed * 1000 + number)
            picture, text = receipt(rng, np.random.default_rng(options.seed * 1000 + number))
            picture.save(pictures / f"receipt-{number:02}.jpg", quality=55)
            table.writerow([f"receipt-{number:02}", text])
    print(f"{options.count} receipts in {options.out}")


if __name__ == "__main__":
    main()
