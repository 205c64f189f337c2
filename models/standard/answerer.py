"""The head of visual question answering: a vector of a picture and the characters of a question to one of 34 answers.

The publication does not say which one it used. This is the better baseline of the publication of the data set (Antol et
al., VQA: Visual Question Answering, 2015, "deeper LSTM Q + norm I"): the vector at length 1, two layers of LSTM over the
question, both to 1024 values, multiplied, then two layers. Two things differ: characters instead of words, because
that is what a manifest's steps make of a text, and 34 answers instead of 1,000.
"""

import math

from network import Network, Tensor

CHARACTERS, LENGTH = 32, 64
PICTURE, EMBEDDED, HIDDEN, COMMON, ANSWERS = 2048, 300, 512, 1024, 34


def build():
    network = Network("vqa-default")
    picture = network.input("features", PICTURE)
    question = network.input("question", LENGTH, kind="int64")
    x = network.node("LpNormalization", [picture], "picture.direction", (PICTURE,), axis=-1, p=2)
    picture = tanh(network, network.linear(x, "picture.common", COMMON, deviation=1.0))

    letters = network.weight("question.letters", CHARACTERS, EMBEDDED, deviation=1.0)
    x = network.node("Gather", [letters, question], "question.embedded", (LENGTH, EMBEDDED), axis=0)
    # Steps first, as LSTM wants it.
    x = network.node("Transpose", [x], "question.steps_first", (LENGTH, EMBEDDED), perm=[1, 0, 2])
    states = []
    for number in (1, 2):
        x, *ends = remembered(network, x, f"question.lstm{number}")
        states += ends
    x = network.node("Concat", states, "question.states", (4 * HIDDEN,), axis=-1)
    question = tanh(network, network.linear(x, "question.common", COMMON))

    x = network.node("Mul", [picture, question], "common", (COMMON,))
    x = tanh(network, network.linear(x, "hidden", COMMON))
    network.output(network.linear(x, "answers", ANSWERS), "logits")
    return network


def tanh(network, source):
    return network.node("Tanh", [source], f"{source.name}.tanh", source.shape)


def remembered(network, source, name):
    """A layer of LSTM: what it gives at each step, and its two states at the end."""
    steps, width = source.shape
    shapes = {"input": (1, 4 * HIDDEN, width), "recurrent": (1, 4 * HIDDEN, HIDDEN)}
    inputs = [source.name, *(network.weight(f"{name}.{part}", *shape, deviation=1 / math.sqrt(shape[-1]))
                             for part, shape in shapes.items()), network.weight(f"{name}.bias", 1, 8 * HIDDEN)]
    network.multiplications += steps * 4 * HIDDEN * (width + HIDDEN)
    every, hidden, cell = (Tensor(f"{name}.{part}", shape) for part, shape in (
        ("every", (steps, HIDDEN)), ("hidden", (HIDDEN,)), ("cell", (HIDDEN,))))
    network.node_with_outputs("LSTM", inputs, (every, hidden, cell), hidden_size=HIDDEN)
    one = network.integers("axis_1", 1)
    zero = network.integers("axis_0", 0)
    every = network.node("Squeeze", [every, one], f"{name}.steps", (steps, HIDDEN))
    ends = [network.node("Squeeze", [end, zero], f"{end.name}.end", (HIDDEN,)) for end in (hidden, cell)]
    return every, *ends
