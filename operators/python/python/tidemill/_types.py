"""Types of columns: their names in workflows, and the annotations of functions that stand for them."""

import re
import typing

#: struct and NumPy letters of the elements of tensors, with their bytes.
ELEMENTS = {"float32": ("f", 4), "float16": ("e", 2), "int64": ("q", 8), "uint8": ("B", 1), "float64": ("d", 8),
            "int32": ("i", 4), "int8": ("b", 1)}
SCALARS = ("text", "int64", "float64", "bool", "image", "audio", "bytes")


class Audio:
    """Stands in annotations for a column with sounds (the bytes of WAV, FLAC, Ogg Vorbis or MP3). Values are bytes."""


class Tensor:
    """Stands in annotations for a column of tensors: `Tensor["float32", 2, 3]`."""

    def __class_getitem__(cls, parameters: typing.Any) -> "TensorType":
        if not isinstance(parameters, tuple):
            parameters = (parameters,)
        element, shape = parameters[0], parameters[1:]
        if element not in ELEMENTS or not all(isinstance(side, int) for side in shape):
            raise TypeError(f"Tensor[{', '.join(map(repr, parameters))}]: write an element type "
                            f"({', '.join(ELEMENTS)}) and the lengths, as in Tensor['float32', 2, 3]")
        return TensorType(element, shape)


class TensorType:
    """The type of a column of tensors."""

    def __init__(self, element: str, shape: typing.Tuple[int, ...]):
        self.element, self.shape = element, tuple(shape)
        self.letter, self.width = ELEMENTS[element]
        self.size = 1
        for side in self.shape:
            self.size *= side

    def __call__(self) -> None:  # lets typing accept it where a type is expected
        raise TypeError("a type of tensors is only for annotations")

    def __str__(self) -> str:
        return f"tensor<{self.element}>[{', '.join(map(str, self.shape))}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def parse(name: str):
    """Returns the type that a workflow names: a text, or a `TensorType`."""
    if name in SCALARS:
        return name
    found = re.fullmatch(r"tensor<(\w+)>\[([0-9, ]*)\]", name)
    if found is None or found[1] not in ELEMENTS:
        raise ValueError(f"Python has no columns of type `{name}`: write {', '.join(SCALARS)} or tensor<float32>[2, 3]")
    return TensorType(found[1], tuple(int(side) for side in found[2].split(",") if side.strip()))
