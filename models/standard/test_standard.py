"""Tests of what needs no package and no file: `python3 -m unittest test_standard`."""

import pathlib
import re
import unittest

import answerer
import export
import resnet
import wav2vec2

HERE = pathlib.Path(__file__).resolve().parent


class Sizes(unittest.TestCase):
    def test_resnet_is_that_of_torchvision(self):
        # Its documentation gives these numbers of weights and multiplications (in 10^9), classifier included.
        published = {18: (11_689_512, 1.81), 34: (21_797_672, 3.66), 50: (25_557_032, 4.09), 101: (44_549_160, 7.80),
                     152: (60_192_808, 11.51)}
        for depth, (parameters, multiplications) in published.items():
            network = resnet.build(depth, classifier=True)
            self.assertEqual(network.parameters, parameters)
            self.assertEqual(round(network.multiplications / 1e9, 2), multiplications)
            convolutions = sum(node.kind == "Conv" for node in network.nodes)
            shortcuts = sum("shortcut" in node.outputs[0] and node.kind == "Conv" for node in network.nodes)
            self.assertEqual(convolutions - shortcuts + 1, depth, "layers with weights, the classifier too")

    def test_features_have_one_length(self):
        for depth in resnet.BLOCKS:
            (output,) = resnet.build(depth).outputs
            self.assertEqual(output.shape, (2048,))

    def test_wav2vec2_is_the_published_one(self):
        # 94.4 and 315.5 million in the publication. The models as published have two weights more that recognition does
        # not compute: a vector for masked steps, and lengths of the 128 taps of the positions.
        for size, width, parameters, layers in (("base", 768, 94_396_320, 12), ("large", 1024, 315_471_520, 24)):
            network = wav2vec2.build(size, 24_800)
            self.assertEqual(network.parameters + width + 128, parameters)
            self.assertEqual(sum(node.kind == "Softmax" for node in network.nodes), layers)
            self.assertEqual(sum(node.kind == "Conv" for node in network.nodes), 7 + 1)
            self.assertEqual(network.outputs[0].shape, (77, 32), "a row each 20 ms")

    def test_a_second_has_49_rows(self):
        self.assertEqual(wav2vec2.build("base", 16_000).outputs[0].shape, (49, 32))

    def test_the_answerer_gives_one_score_an_answer(self):
        network = answerer.build()
        self.assertEqual(network.outputs[0].shape, (34,))
        # Both layers of LSTM, the two ways to what is common, two layers.
        lstm = 64 * 4 * 512 * ((300 + 512) + (512 + 512))
        self.assertEqual(network.multiplications, lstm + 2 * 2048 * 1024 + 1024 * 1024 + 1024 * 34)


class Graphs(unittest.TestCase):
    def test_what_a_node_reads_was_given_before_it_once(self):
        for name, (_, build) in export.MODELS.items():
            network = build()
            known = [part.name for part in network.weights + network.constants] + [i[0] for i in network.inputs]
            self.assertEqual(len(known), len(set(known)), name)
            known = set(known)
            for node in network.nodes:
                self.assertLessEqual(set(node.inputs), known, (name, node))
                self.assertFalse(known & set(node.outputs), (name, node))
                known |= set(node.outputs)

    def test_manifests_say_what_the_networks_are(self):
        for name, (seed, build) in export.MODELS.items():
            text, network = (HERE / f"{name}.yaml").read_text(), build()
            said = {key: int(value) for key, value in re.findall(r"(?m)^ *(parameters|flops|seed): (\d+)$", text)}
            self.assertEqual(said, {"parameters": network.parameters, "flops": 2 * network.multiplications,
                                    "seed": seed})
            shapes = [tuple(int(size) for size in row.split(", ")) for row in re.findall(r"shape: \[batch, (.+)\]", text)]
            self.assertEqual(shapes, [i[1] for i in network.inputs] + [output.shape for output in network.outputs])


if __name__ == "__main__":
    unittest.main()
