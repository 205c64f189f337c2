"""Writes pictures.json: files of many formats and their pixels as read by Pillow, the references of the tests
in src/image/decoding.

Needs `pip install numpy pillow`; made with Pillow 12.3.0.
"""
import io
import json
import os

import numpy as np
from PIL import Image, ImageOps

WIDTH, HEIGHT = 23, 14


def drawn():
    """Smooth colours with a square in them."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    pixels = np.stack([x * 11, y * 18, 255 - x * 5 - y * 6], 2).astype(np.uint8)
    pixels[4:9, 6:14] = [250, 20, 60]
    return Image.fromarray(pixels)


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def levels(values):
    """16-bit values as 8-bit ones, rounded."""
    grey = ((values.astype(np.int64) + 128) // 257).astype(np.uint8)
    return Image.fromarray(np.repeat(grey[:, :, None], 3, 2))


def main():
    image = drawn()
    grey, palette = image.convert("L"), image.quantize(16)
    bits = grey.point(lambda value: 255 * (value > 90)).convert("1")
    clear = image.convert("RGBA")
    clear.putalpha(grey)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    deep = (x * 2500 + y * 400).astype(np.uint16)
    second = Image.new("RGB", image.size, "green")
    turned = Image.Exif()
    turned[274] = 6
    files = {}
    files["png"] = encoded(image, "png")
    files["webp lossless"] = encoded(image, "webp", lossless=True, exact=True)
    files["png 8-bit grey"] = encoded(grey, "png")
    files["png palette"] = encoded(palette, "png")
    files["png black and white"] = encoded(bits, "png")
    files["png transparent"] = encoded(clear, "png")
    files["png 16-bit grey"] = encoded(Image.fromarray(deep), "png")
    files["webp lossy"] = encoded(image, "webp", quality=80)
    files["webp transparent"] = encoded(clear, "webp", lossless=True, exact=True)
    files["webp lossy transparent"] = encoded(clear, "webp", quality=90)
    files["webp animated"] = encoded(image, "webp", save_all=True, append_images=[second], lossless=True)
    files["webp turned"] = encoded(image, "webp", lossless=True, exif=turned)
    files["bmp"] = encoded(image, "bmp")
    files["bmp palette"] = encoded(palette, "bmp")
    files["bmp grey"] = encoded(grey, "bmp")
    files["bmp black and white"] = encoded(bits, "bmp")
    files["bmp transparent"] = encoded(clear, "bmp")
    for compression in [None, "tiff_lzw", "tiff_deflate", "packbits"]:
        options = {"compression": compression, "strip_size": 5 * 3 * WIDTH}
        files[f"tiff {compression}"] = encoded(image, "tiff", **options)
    files["tiff predicted"] = encoded(image, "tiff", compression="tiff_lzw", tiffinfo={317: 2})
    files["tiff grey"] = encoded(grey, "tiff", compression="tiff_lzw")
    files["tiff 16-bit grey"] = encoded(Image.fromarray(deep), "tiff", compression="tiff_deflate")
    files["tiff transparent"] = encoded(clear, "tiff")
    files["tiff black and white"] = encoded(bits, "tiff", compression="group4")
    files["tiff CMYK"] = encoded(image.convert("CMYK"), "tiff", compression="tiff_lzw")
    pages = {"save_all": True, "append_images": [second]}
    files["tiff pages"] = encoded(image, "tiff", compression="tiff_lzw", **pages)
    files["tiff turned"] = encoded(image, "tiff", tiffinfo={274: 6})
    files["gif"] = encoded(palette, "gif")
    files["gif interlaced"] = encoded(palette, "gif", interlace=True)
    further = [second.quantize(4)]
    files["gif animated"] = encoded(palette, "gif", save_all=True, append_images=further, interlace=False)
    files["jpeg"] = encoded(image, "jpeg", quality=95, subsampling=0)
    files["jpeg grey"] = encoded(grey, "jpeg", quality=95)
    files["jpeg progressive"] = encoded(image, "jpeg", quality=95, subsampling=0, progressive=True)
    files["jpeg CMYK"] = encoded(image.convert("CMYK"), "jpeg", quality=95)
    lines = []
    for name, data in files.items():
        with Image.open(io.BytesIO(data)) as file:
            if "16-bit" in name:
                read = levels(np.asarray(file))
            elif file.mode == "RGBA":
                # Transparency is dropped and not blended.
                read = Image.fromarray(np.asarray(file)[:, :, :3])
            else:
                read = ImageOps.exif_transpose(file).convert("RGB")
        line = {"name": name, "file": data.hex(), "size": read.size, "pixels": read.tobytes().hex()}
        lines.append(json.dumps(line))
    path = os.path.join(os.path.dirname(__file__), "pictures.json")
    with open(path, "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
