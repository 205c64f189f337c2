"""ResNet as torchvision has it: pictures of 224x224 pixels to one vector.

The classifier for the 1,000 ImageNet classes is left out, because the workflow uses the vector before it: the published
messages are of 513 (18, 34) and 2049 values of 4 bytes. Here the shorter vectors are filled up with zeros, so that one
head serves all: a manifest says how long the vectors are that it reads. He et al., Deep Residual Learning for Image Recognition, 2015; the
stride of a bottleneck is in its 3x3 convolution.
"""

from network import Network

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CLASSES = 1000
FEATURES = 2048


def build(depth, side=224, classifier=False):
    network = Network(f"resnet{depth}")
    expansion = 1 if depth < 50 else 4
    # The sum over a stage's blocks then stays as large as a block.
    last_scale = sum(BLOCKS[depth]) ** -0.5

    def convolved(source, name, channels, kernel, stride=1, scale=1.0):
        x = network.convolution(source, f"{name}.convolution", channels, kernel, stride, padding=kernel // 2)
        return network.batch_normalisation(x, f"{name}.normalisation", scale)

    x = network.rectified(convolved(network.input("image", 3, side, side), "stem", 64, 7, 2))
    half = (x.shape[1] + 2 - 3) // 2 + 1
    x = network.node("MaxPool", [x], "stem.pooled", (64, half, half), kernel_shape=[3, 3], strides=[2, 2],
                     pads=[1, 1, 1, 1])
    for stage, blocks in enumerate(BLOCKS[depth]):
        width = 64 << stage
        for block in range(blocks):
            name, start = f"stage{stage + 1}.block{block + 1}", x
            stride = 2 if stage > 0 and block == 0 else 1
            if expansion == 1:
                x = network.rectified(convolved(x, f"{name}.first", width, 3, stride))
                x = convolved(x, f"{name}.second", width, 3, scale=last_scale)
            else:
                x = network.rectified(convolved(x, f"{name}.first", width, 1))
                x = network.rectified(convolved(x, f"{name}.second", width, 3, stride))
                x = convolved(x, f"{name}.third", width * expansion, 1, scale=last_scale)
            if start.shape != x.shape:
                start = convolved(start, f"{name}.shortcut", width * expansion, 1, stride)
            x = network.rectified(network.sum(x, start, f"{name}.sum"))
    x = network.node("GlobalAveragePool", [x], "pooled", (x.shape[0], 1, 1))
    x = network.node("Flatten", [x], "flat", (x.shape[0],), axis=1)
    if classifier:
        network.output(network.linear(x, "classifier", CLASSES), "classes")
    elif x.shape[0] < FEATURES:
        more = network.integers("filling", 0, 0, 0, FEATURES - x.shape[0])
        network.output(network.node("Pad", [x, more], "filled", (FEATURES,)), "features")
    else:
        network.output(x, "features")
    return network
