"""Reads the tensors of a PyTorch file (.pth) without PyTorch and without running anything in it.

A .pth file holds a pickle, and unpickling can run any program. Here the pickle is only taken apart: of its
instructions those that build dictionaries of tensors are followed by hand, all others are refused.
"""

import collections
import pickletools
import zipfile

try:
    import numpy as np
except ImportError:  # taking a pickle apart needs none; only making arrays does
    np = None

ELEMENTS = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8",
    "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?",
}
DICTIONARY = "collections OrderedDict"
TENSOR = "torch._utils _rebuild_tensor_v2"
ALLOWED = {DICTIONARY, TENSOR} | {f"torch {storage}" for storage in ELEMENTS}
Storage = collections.namedtuple("Storage", "element key length")
View = collections.namedtuple("View", "storage offset shape strides")
MARK = object()


class Refused(Exception):
    """The file wants something else than tensors in a dictionary."""


class Name(str):
    """A name of a Python object in the pickle; it is never looked up."""


def build(pickle):
    """What the pickle describes: dictionaries, lists, numbers, texts and `View`s of storages."""
    stack, memory = [], {}

    def since_mark():
        taken = []
        while stack:
            value = stack.pop()
            if value is MARK:
                return taken[::-1]
            taken.append(value)
        raise Refused("an instruction without its mark")

    def pop():
        if not stack or stack[-1] is MARK:
            raise Refused("an instruction without its values")
        return stack.pop()

    for instruction, argument, position in pickletools.genops(pickle):
        name = instruction.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return pop()
        if name == "MARK":
            stack.append(MARK)
        elif name in ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE",
                      "SHORT_BINUNICODE", "SHORT_BINSTRING", "BINSTRING"):
            stack.append(argument)
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name in ("TUPLE", "LIST"):
            stack.append((tuple if name == "TUPLE" else list)(since_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            values = [pop() for _ in range(int(name[-1]))]
            stack.append(tuple(values[::-1]))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memory[len(memory) if argument is None else argument] = stack[-1] if stack else None
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in memory:
                raise Refused("it refers to what was not there")
            stack.append(memory[argument])
        elif name == "GLOBAL":
            if argument not in ALLOWED:
                raise Refused(f"it names {argument!r}, which is no part of a dictionary of tensors")
            stack.append(Name(argument))
        elif name == "BINPERSID":
            stack.append(storage(pop()))
        elif name == "REDUCE":
            stack.append(reduced(arguments=pop(), called=pop()))
        elif name in ("SETITEM", "SETITEMS"):
            values = since_mark() if name == "SETITEMS" else [pop(), pop()][::-1]
            if not stack or not isinstance(stack[-1], dict) or len(values) % 2:
                raise Refused("it sets items of what is no dictionary")
            stack[-1].update(zip(values[::2], values[1::2]))
        elif name in ("APPEND", "APPENDS"):
            values = since_mark() if name == "APPENDS" else [pop()]
            if not stack or not isinstance(stack[-1], list):
                raise Refused("it appends to what is no list")
            stack[-1].extend(values)
        elif name == "BUILD":
            # PyTorch keeps format versions as attributes of the dictionary; they are not needed.
            attributes = pop()
            if not isinstance(attributes, dict) or not stack or not isinstance(stack[-1], dict):
                raise Refused("it sets attributes of what is no dictionary")
        else:
            raise Refused(f"the instruction {name} at byte {position} is not needed for tensors")
    raise Refused("it has no end")


def storage(description):
    if not isinstance(description, tuple) or len(description) < 5 or description[0] != "storage":
        raise Refused("it refers to what is no storage")
    _, kind, key, _, length = description[:5]
    if not isinstance(kind, Name) or not kind.startswith("torch ") or not isinstance(key, str) \
            or not isinstance(length, int):
        raise Refused("a storage without type, key or length")
    return Storage(ELEMENTS[kind.removeprefix("torch ")], key, length)


def reduced(called, arguments):
    if called == DICTIONARY and arguments == ():
        return {}
    if called == TENSOR and isinstance(arguments, tuple) and len(arguments) >= 4:
        whole, offset, shape, strides = arguments[:4]
        numbers = (offset, *shape, *strides)
        if isinstance(whole, Storage) and len(shape) == len(strides) \
                and all(isinstance(n, int) and n >= 0 for n in numbers):
            return View(whole, offset, shape, strides)
    raise Refused(f"it calls {called!r} with what makes no tensor")


def tensor(view, data):
    """The values of a view of the storage whose bytes are `data`."""
    values = np.frombuffer(data, view.storage.element)
    last = view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.strides))
    if len(values) != view.storage.length or (0 not in view.shape and last >= len(values)):
        raise Refused("a tensor reaches beyond its storage")
    strides = [stride * values.itemsize for stride in view.strides]
    return np.array(np.lib.stride_tricks.as_strided(values[view.offset:], view.shape, strides))


def named(views, bytes_of):
    if not isinstance(views, dict):
        raise Refused("it is no dictionary")
    found = {name: view for name, view in views.items() if isinstance(view, View)}
    if not found:
        raise Refused("there is no tensor in it")
    return {name: tensor(view, bytes_of(view.storage)) for name, view in found.items()}


def read(path):
    """The tensors of the file by name, as arrays."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise Refused("there is no data.pkl in it")
            root = pickles[0].removesuffix("data.pkl")
            return named(build(archive.read(pickles[0])), lambda s: archive.read(f"{root}data/{s.key}"))
    # Before PyTorch 1.6: five pickles, then each storage as its length and its values.
    with open(path, "rb") as file:
        for _ in range(3):  # magic number, version of the protocol, facts of the machine
            build(file)
        views, keys = build(file), build(file)
        elements = {v.storage.key: v.storage.element for v in views.values() if isinstance(v, View)}
        storages = {}
        for key in keys:
            length = int.from_bytes(file.read(8), "little")
            if key not in elements:
                raise Refused("a storage that no tensor uses")
            storages[key] = file.read(length * np.dtype(elements[key]).itemsize)
        return named(views, lambda s: storages[s.key])
