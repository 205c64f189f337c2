#!/usr/bin/env python3
"""Makes the wheel of Tidemill: the program, and the package that runs workflows from Python.

    scripts/build_wheel.py PROGRAM VERSION FOLDER

It is a zip file of a described form (https://packaging.python.org/en/latest/specifications/binary-distribution-format/), so that no
tool is needed to make it. The tag for Linux follows from the symbols of the C library that the program needs. The same program and
the same files give the same bytes.
"""

import base64
import hashlib
import pathlib
import re
import struct
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: Libraries that every system of the tag has (PEP 600), as far as the program may need them.
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "ld-linux-x86-64.so.2",
           "ld-linux-aarch64.so.1"}
SUMMARY = "Runs machine-learning workflows, written in YAML, as continuous dataflows"
MACHINES = {62: "x86_64", 183: "aarch64"}


def stop(text):
    sys.exit(f"build_wheel.py: {text}")


class Program:
    """What an ELF file of 64 bits says of itself: its machine, the libraries that it needs, and the versions of their symbols."""

    def __init__(self, data):
        if data[:4] != b"\x7fELF" or data[4] != 2 or data[5] != 1:
            stop("the program is no ELF file of 64 bits, little-endian")
        self.machine = MACHINES.get(struct.unpack_from("<H", data, 18)[0]) or stop("the program is for another machine")
        offset, = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        segments = [struct.unpack_from("<IIQQQQQQ", data, offset + at * size) for at in range(count)]
        loads = [(start, place, length) for kind, _, place, start, _, length, *_ in segments if kind == 1]

        def place_of(address):
            return next(place + address - start for start, place, length in loads if start <= address < start + length)

        dynamic = next((segment for segment in segments if segment[0] == 2), None)
        self.needed, versions = [], []
        if dynamic is None:
            self.versions = versions
            return
        entries = [struct.unpack_from("<QQ", data, at) for at in range(dynamic[2], dynamic[2] + dynamic[5], 16)]
        first = dict(reversed(entries))
        texts = place_of(first[5])

        def text(at):
            return data[texts + at:data.index(b"\0", texts + at)].decode()

        self.needed = [text(value) for tag, value in entries if tag == 1]
        at = place_of(first[0x6FFFFFFE]) if 0x6FFFFFFE in first else None  # DT_VERNEED
        while at is not None:
            _, many, _, auxiliary, following = struct.unpack_from("<HHIII", data, at)
            one = at + auxiliary
            for _ in range(many):
                _, _, _, name, rest = struct.unpack_from("<IHHII", data, one)
                versions.append(text(name))
                one += rest
            at = at + following if following else None
        self.versions = versions

    def tag(self):
        """Returns the tag of the systems that can run it."""
        others = [name for name in self.needed if name not in ALLOWED]
        if others:
            stop(f"the program needs libraries that not every Linux has: {', '.join(others)}")
        found = [tuple(map(int, match[1].split("."))) for match in (re.fullmatch(r"GLIBC_([0-9.]+)", one) for one in self.versions) if match]
        if not found:
            stop("the program needs no symbol of the C library of GNU: build it for a system with one")
        if "GLIBC_ABI_DT_RELR" in self.versions:
            found.append((2, 36))  # the first whose loader reads relocations in this form
        major, minor = max(found)[:2]
        return f"manylinux_{major}_{max(minor, 17)}_{self.machine}"


def metadata(version):
    readme = "Tidemill runs machine-learning workflows, written in YAML, as continuous dataflows. This package has the command " \
             "`tidemill`, and `tidemill.run`, which runs a workflow from an iterator to an iterator.\n\nONNX Runtime, HiGHS and ffmpeg " \
             "are not in it: `pip install onnxruntime 'highspy<1.16' imageio-ffmpeg` into the same environment, and they are found.\n"
    lines = ["Metadata-Version: 2.1", "Name: tidemill", f"Version: {version}", f"Summary: {SUMMARY}", "License: Apache-2.0",
             "Requires-Python: >=3.9", "Provides-Extra: models", 'Requires-Dist: onnxruntime>=1.24; extra == "models"',
             "Provides-Extra: planning", 'Requires-Dist: highspy>=1.7,<1.16; extra == "planning"', "Provides-Extra: videos",
             'Requires-Dist: imageio-ffmpeg; extra == "videos"', "Classifier: Operating System :: POSIX :: Linux",
             "Classifier: Typing :: Typed", "Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    program, version, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    content = program.read_bytes()
    tag = f"py3-none-{Program(content).tag()}"
    info = f"tidemill-{version}.dist-info"
    package = ROOT / "operators/python/python/tidemill"
    files = [(f"tidemill/{file.relative_to(package)}", file.read_bytes(), 0o644) for file in sorted(package.rglob("*"))
             if file.suffix == ".py" or file.name == "py.typed"]
    files += [(f"tidemill-{version}.data/scripts/tidemill", content, 0o755),
              (f"{info}/METADATA", metadata(version).encode(), 0o644),
              (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tidemill\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
              (f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644)]
    record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
                     for name, data, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"tidemill-{version}-{tag}.whl"
    unfinished = target.with_suffix(".partial")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    unfinished.replace(target)
    print(target)


if __name__ == "__main__":
    main()
