"""wav2vec 2.0 with the CTC head for 32 characters: a waveform of 16 kHz to scores, one row each 20 ms.

Baevski et al., wav2vec 2.0: A Framework for Self-Supervised Learning of Speech Representations, 2020, as the models
"base-960h" (normalisation after each layer, no bias in the convolutions) and "large-960h-lv60-self" (before each layer,
with bias) have it. Masked training and the split of a weight into length and direction are left out: neither is
computed when a sound is recognised.
"""

import math

from network import Network

KERNELS, STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
CHANNELS, CHARACTERS = 512, 32
SIZES = {"base": (768, 12, 12), "large": (1024, 24, 16)}  # width, layers, heads
# As the models were initialised.
DEVIATION = 0.02


def build(size, samples):
    """For sounds of so many samples; the file takes others too, the figures are of these."""
    width, layers, heads = SIZES[size]
    before = size == "large"
    network = Network(f"wav2vec2-{size}")
    x = network.input("audio", samples)
    x = standardised(network, x)
    x = network.node("Unsqueeze", [x, network.integers("axis_1", 1)], "samples", (1, samples))
    x = encoded(network, x, before)
    x = network.layer_normalisation(x, "features.normalisation")
    x = network.linear(x, "features.projection", width)
    x = network.sum(x, positions(network, x), "positioned")
    if not before:
        x = network.layer_normalisation(x, "first.normalisation")
    for layer in range(layers):
        x = transformed(network, x, f"layer{layer + 1}", heads, before)
    if before:
        x = network.layer_normalisation(x, "last.normalisation")
    network.output(network.linear(x, "characters", CHARACTERS), "logits")
    return network


def standardised(network, x):
    """To mean 0 and variance 1, as the published models get their sounds."""
    network.weight("epsilon", value=1e-7, learned=False)
    mean = network.node("ReduceMean", [x], "waveform.mean", (1,), axes=[1], keepdims=1)
    x = network.node("Sub", [x, mean], "waveform.centred", x.shape)
    square = network.node("Mul", [x, x], "waveform.square", x.shape)
    variance = network.node("ReduceMean", [square], "waveform.variance", (1,), axes=[1], keepdims=1)
    variance = network.node("Add", [variance, "epsilon"], "waveform.above_zero", (1,))
    deviation = network.node("Sqrt", [variance], "waveform.deviation", (1,))
    return network.node("Div", [x, deviation], "waveform", x.shape)


def encoded(network, x, normalised):
    """The seven convolutions."""
    for number, (kernel, stride) in enumerate(zip(KERNELS, STRIDES), 1):
        name = f"encoder{number}"
        x = network.convolution(x, f"{name}.convolution", CHANNELS, kernel, stride, bias=normalised)
        if normalised:
            x = network.transposed(x, f"{name}.steps_first", 2, 1)
            x = network.layer_normalisation(x, f"{name}.normalisation")
            x = network.transposed(x, f"{name}.channels_first", 2, 1)
        elif number == 1:
            x = network.channel_normalisation(x, f"{name}.normalisation")
        x = network.gelu(x)
    return network.transposed(x, "encoded", 2, 1)


def positions(network, x):
    """Where a step stands, from the 128 around it."""
    steps, width = x.shape
    x = network.transposed(x, "positions.channels_first", 2, 1)
    x = network.convolution(x, "positions.convolution", width, 128, padding=64, groups=16, bias=True)
    # An even kernel gives one step too many.
    cut = [network.integers(f"positions.{name}", value) for name, value in (("from", 0), ("to", -1), ("of", 2))]
    x = network.node("Slice", [x, *cut], "positions.cut", (width, steps))
    return network.transposed(network.gelu(x), "positions", 2, 1)


def transformed(network, x, name, heads, before):
    inside = network.layer_normalisation(x, f"{name}.attention_normalisation") if before else x
    x = network.sum(x, attended(network, inside, f"{name}.attention", heads), f"{name}.attention_sum")
    if not before:
        x = network.layer_normalisation(x, f"{name}.attention_normalisation")
    inside = network.layer_normalisation(x, f"{name}.normalisation") if before else x
    inside = network.gelu(network.linear(inside, f"{name}.wide", 4 * x.shape[-1], DEVIATION))
    x = network.sum(x, network.linear(inside, f"{name}.narrow", x.shape[-1], DEVIATION), f"{name}.sum")
    return x if before else network.layer_normalisation(x, f"{name}.normalisation")


def attended(network, x, name, heads):
    steps, width = x.shape
    to_heads = network.integers(f"to_{heads}_heads", 0, -1, heads, width // heads)
    scale = "scale"
    if not any(known.name == scale for known in network.weights):
        network.weight(scale, value=1 / math.sqrt(width // heads), learned=False)

    def part(which, *order):
        projected = network.linear(x, f"{name}.{which}", width, DEVIATION)
        split = network.node("Reshape", [projected, to_heads], f"{name}.{which}.split", (steps, heads, width // heads))
        return network.transposed(split, f"{name}.{which}.heads", *order)

    queries, keys, values = part("queries", 2, 1, 3), part("keys", 2, 3, 1), part("values", 2, 1, 3)
    queries = network.node("Mul", [queries, scale], f"{name}.scaled", queries.shape)
    scores = network.product(queries, keys, f"{name}.scores")
    scores = network.node("Softmax", [scores], f"{name}.shares", scores.shape, axis=-1)
    x = network.transposed(network.product(scores, values, f"{name}.mixed"), f"{name}.steps_first", 2, 1, 3)
    whole = network.integers("to_whole", 0, 0, -1)
    x = network.node("Reshape", [x, whole], f"{name}.whole", (steps, width))
    return network.linear(x, f"{name}.result", width, DEVIATION)
