"""Moonshine: from ONNX Runtime's own format (.ort) to ONNX, and the same bytes each time.

Only ONNX Runtime reads `.ort`; it writes the graph back as ONNX. What it writes has three flaws: the branches
of `If` have no names, operator sets are named that nothing uses, and the order of the weights changes
from run to run. All three are fixed here, nothing else is changed.
"""

import os
import pathlib
import tempfile

import onnx
import onnxruntime


def graphs(graph):
    """The graph and every graph inside of it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def convert(source, target):
    """Writes the `.ort` file `source` as the ONNX file `target`."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as folder:
        written = os.path.join(folder, "written.onnx")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = written
        options.add_session_config_entry("session.save_model_format", "ONNX")
        options.intra_op_num_threads = 1
        onnxruntime.InferenceSession(
            pathlib.Path(source).read_bytes(), options, providers=["CPUExecutionProvider"])
        model = onnx.load(written)

    used = set()
    for number, graph in enumerate(graphs(model.graph)):
        if not graph.name:
            graph.name = f"branch{number}"
        used.update(node.domain for node in graph.node)
        weights = sorted(graph.initializer, key=lambda weight: weight.name)
        del graph.initializer[:]
        graph.initializer.extend(weights)
        shapes = sorted(graph.value_info, key=lambda info: info.name)
        del graph.value_info[:]
        graph.value_info.extend(shapes)
    imports = sorted(((o.domain, o.version) for o in model.opset_import if o.domain in used or not o.domain))
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(*one) for one in imports)
    del model.metadata_props[:]
    pathlib.Path(target).write_bytes(model.SerializeToString(deterministic=True))
