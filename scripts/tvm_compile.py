#!/usr/bin/env python3
"""Compiles an ONNX file to a TVM module for this machine's processor, and compares it with ONNX Runtime.

`tidemill models compile` runs this in an environment with the packages of tvm-requirements.txt. One line of JSON on the standard
input is the job: {"onnx", "file", "batch", "sizes": {dimension: size}, "tune_s", "records"}. Each line on the standard output is a
message: progress (`note`), or the end (`done`, `failed`). It ends when its standard input does."""
import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = "1"  # as the device program: the engine runs many operators
# Libraries may print; messages have a descriptor of their own.
MESSAGES = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

# Instruction sets that a module may use, as the kernel names them. The device program refuses a module that needs others than
# its processor has.
SETS = ("sse4", "avx", "fma", "f16c", "bmi", "amx", "gfni", "asimd", "sve", "bf16", "i8mm")
# Largest difference from ONNX Runtime, as a part of the largest output. Models of 8 bits round; all others are far below.
WRONG = 0.05
# Rules of the search: those without tensor intrinsics.
SPACE = "llvm"
# Part of the time whose functions are not searched.
LITTLE = 0.05
INTRINSICS = "tvm.s_tir.tensor_intrin"
# Attribute of a function that no pass is to schedule again.
SCHEDULED = "tirx.is_scheduled"
# Trials of a function in a round of the search.
ROUND = 8
# Candidates that the search compares by its model of costs, for each round of trials.
POPULATION = 32


def say(step, **fields):
    MESSAGES.write(json.dumps({"step": step, **fields}) + "\n")
    MESSAGES.flush()


def fail(kind, text, fix):
    say("failed", kind=kind, text=" ".join(str(text).split()), fix=fix)
    sys.exit(1)


def flags():
    """Instruction sets of this processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return sorted(flag for flag in value.split() if flag.startswith(SETS))
    return []


def target():
    """This machine's processor, with exactly the features that it has: a virtual machine may hide some of them."""
    features = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    attributes = [("+" if bool(has) else "-") + str(name) for name, has in features.items()]
    name = str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUName")())
    return tvm.target.Target({"kind": "llvm", "mcpu": name, "mattr": sorted(attributes), "num-cores": 1})


class Port:
    """An input or output of the ONNX file."""

    def __init__(self, value):
        tensor = value.type.tensor_type
        self.name = value.name
        self.element = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if tensor.elem_type else None
        self.dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]


def ports(graph):
    weights = {weight.name for weight in graph.initializer}
    inputs = [Port(value) for value in graph.input if value.name not in weights]
    return inputs, [Port(value) for value in graph.output]


def batch_dimension(inputs, outputs):
    """Name of the first dimension, if it is the same of all inputs and outputs and has no fixed size."""
    first = {port.dims[0] if port.dims else 1 for port in inputs + outputs}
    return next(iter(first)) if len(first) == 1 and isinstance(next(iter(first)), str) else None


def shapes(inputs, batch, job):
    sizes, known = dict(job["sizes"]), {dim for port in inputs for dim in port.dims if isinstance(dim, str)}
    other = sorted(set(sizes) - known)
    if other:
        fail("dimension", f"the model has no open dimension {', '.join(other)}; it has {', '.join(sorted(known)) or 'none'}",
             "leave `--size` out, or name one of those")
    if batch is None and job["batch"] != 1:
        fail("dimension", "the first dimension is not that of a batch: its size is fixed, or differs between inputs and outputs",
             "leave `--batch` out")
    if batch is not None:
        sizes.setdefault(batch, job["batch"])
    free = sorted(known - set(sizes))
    if free:
        fail("dimension", f"the model leaves the size of {', '.join(free)} open, and TVM compiles for fixed sizes",
             "give each a size: " + " ".join(f"--size {name}=NUMBER" for name in free))
    return {port.name: [sizes.get(dim, dim) for dim in port.dims] for port in inputs}


def imported(model, sizes):
    try:
        return relax.frontend.onnx.from_onnx(model, shape_dict=sizes, keep_params_in_input=False)
    except Exception as error:  # The importer raises whatever its converters raise.
        fail("operator", f"TVM cannot import the model: {error}", "compute it by another back end, such as ort")


def described(mod, inputs, outputs, sizes, batch):
    """Adds a function that describes the module to the device program, and returns the description too."""
    result = mod["main"].ret_ty
    results = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    given = [{"name": port.name, "element": port.element, "shape": sizes[port.name]} for port in inputs]
    made = [{"name": port.name, "element": str(one.dtype), "shape": [int(size) for size in one.shape]}
            for port, one in zip(outputs, results, strict=True)]
    size = {port["shape"][0] for port in given + made if port["shape"]}
    rows = next(iter(size)) if batch is not None and len(size) == 1 else None
    about = {"version": 1, "inputs": given, "outputs": made, "batch": rows, "needs": flags()}
    builder = relax.BlockBuilder(mod)
    with builder.function("describe", []):
        with builder.dataflow():
            text = builder.emit_output(tvm.ir.StringImm(json.dumps(about)))
        builder.emit_func_output(text)
    return builder.get(), about


def largest_divisor(number, most):
    return max(size for size in range(1, min(number, most) + 1) if number % size == 0)


def tile(schedule, block):
    """Computes a tile of a sum in registers: a vector of the innermost dimension, for several rows of the channels."""
    loops, axes = schedule.get_loops(block), schedule.get(block).iter_vars
    if len(loops) != len(axes):
        return
    spatial = [loop for loop, axis in zip(loops, axes) if int(axis.iter_type) == 0]
    summed = [loop for loop, axis in zip(loops, axes) if int(axis.iter_type) == 2]
    extent = lambda loop: int(schedule.get(loop).extent)
    lanes = largest_divisor(extent(spatial[-1]), 16) if spatial and summed else 0
    if lanes < 4:
        return
    channels = spatial[min(1, len(spatial) - 2)] if len(spatial) > 1 else None
    outer, rows = [], []
    for loop in spatial[:-1]:
        if loop is channels:
            loop, inner = schedule.split(loop, [None, largest_divisor(extent(loop), max(4, 64 // lanes))])
            rows.append(inner)
        outer.append(loop)
    place, lane = schedule.split(spatial[-1], [None, lanes])
    result = schedule.cache_write(block, 0, "global")
    schedule.reorder(*outer, place, *summed, *rows, lane)
    schedule.reverse_compute_at(result, place)
    schedule.vectorize(lane)
    for loop in rows:
        schedule.unroll(loop)
    schedule.vectorize(schedule.get_loops(result)[-1])
    schedule.decompose_reduction(block, summed[0])


def blocks(schedule):
    return schedule.get_child_blocks(schedule.get_sblock("root"))


def scheduled(function):
    """A function with the schedule that needs no measurement. What does not fit it stays as it is."""
    schedule = s_tir.Schedule(function)
    try:
        for block in blocks(schedule):
            tile(schedule, block)
        return schedule.mod["main"].with_attrs(dict(function.attrs.items()))
    except (tvm.error.TVMError, RuntimeError, ValueError, TypeError):
        return function


def has_sum(function):
    """Whether a function has a block that adds up, such as a convolution. All others are a few percent of the time."""
    schedule = s_tir.Schedule(function)
    return any(schedule.get(block).init is not None for block in blocks(schedule))


def sums(mod):
    return {name: function for name, function in mod.functions.items()
            if isinstance(function, tvm.tirx.PrimFunc) and has_sum(function)}


def built(mod, place):
    from tvm.driver import build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod), target=place)


def measured(module, arguments):
    """Seconds of a run of a built function, on zeros: the time does not depend on the values."""
    tensors = [tvm.runtime.tensor(np.zeros([int(size) for size in one.shape], str(one.dtype))) for one in arguments]
    timer = module.time_evaluator("main", tvm.cpu(), number=1, repeat=3, min_repeat_ms=10)
    return [float(one) for one in timer(*tensors).results]


def seconds_of(function, place):
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return min(measured(built(mod, place), ArgInfo.from_prim_func(function)))


def slowest(costs):
    """Times and tasks of those that take most of the time, the slowest first: a search of all others gains little."""
    costs, left, found = sorted(costs, key=lambda one: -one[0]), sum(cost for cost, _ in costs), []
    least = LITTLE * left
    for cost, task in costs:
        if left <= least:
            break
        found.append((cost, task))
        left -= cost
    return zip(*found, strict=True)


def searched(mod, place, seconds, records):
    """Searches schedules of the sums by measurement, until the time is over. Returns those that are faster, by name, and the
    number of trials."""
    import types

    # The search imports TVM's tensor intrinsics, of all processors, which takes a minute. These rules use none.
    sys.modules.setdefault(INTRINSICS, types.ModuleType(INTRINSICS))
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    until = time.monotonic() + seconds
    trials, candidates = [0], {}

    @derived_object
    class Builder(ms.builder.PyBuilder):
        """Builds in this process: TVM's own builder starts processes, which takes longer than the trials."""

        def build(self, build_inputs):
            results = []
            for one in build_inputs:
                say("search", trials=trials[0], left_s=max(0, round(until - time.monotonic())))
                try:
                    # A name instead of a file: to link each candidate would take longer than to measure it.
                    name = str(trials[0])
                    candidates[name] = built(one.mod, one.target)
                    results.append(ms.builder.BuilderResult(name, None))
                except Exception as error:  # A schedule that does not compile is no candidate.
                    results.append(ms.builder.BuilderResult(None, str(error)))
                trials[0] += 1
            return results

    @derived_object
    class Measured(ms.runner.PyRunnerFuture):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def done(self):
            return True

        def result(self):
            return self.value

    @derived_object
    class Runner(ms.runner.PyRunner):
        def run(self, runner_inputs):
            return [Measured(self.measure(one)) for one in runner_inputs]

        def measure(self, one):
            try:
                module = candidates.pop(str(one.artifact_path))
                return ms.runner.RunnerResult(measured(module, one.args_info), None)
            except Exception as error:  # A candidate that fails is none.
                return ms.runner.RunnerResult(None, str(error))

    if not sums(mod):
        return {}, 0
    records.mkdir(parents=True, exist_ok=True)
    database = ms.database.JSONDatabase(work_dir=str(records))
    without = {name.name_hint: seconds_of(scheduled(function), place) for name, function in sums(mod).items()}
    tasks = ms.relax_integration.extract_tasks(mod, place, {})
    costs, tasks = slowest([(task.weight * without[task.task_name], task) for task in tasks if task.task_name in without])
    # A small population: the time is for trials.
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=POPULATION, init_min_unmeasured=POPULATION // 2, genetic_num_iters=2)
    contexts, _ = ms.relax_integration.extracted_tasks_to_tune_contexts(
        tasks, work_dir=str(records), space=SPACE, strategy=strategy, num_threads=1, seed=7)
    model = ms.cost_model.XGBModel(num_tuning_cores=1)
    rounds = [0] * len(tasks)
    while time.monotonic() < until:
        # Each gets a round, then those that cost most for the rounds that they had. The last round ends after the time.
        at = max(range(len(tasks)), key=lambda at: costs[at] / (1 + rounds[at]) if rounds[at] else float("inf"))
        ms.tune.tune_tasks(
            tasks=[contexts[at]], task_weights=[1.0], work_dir=str(records), max_trials_global=ROUND, num_trials_per_iter=ROUND,
            builder=Builder(), runner=Runner(), database=database, cost_model=model,
            measure_callbacks=[ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel()])
        rounds[at] += 1
    faster = {}
    for task in tasks:
        best = database.query_ir_module(task.dispatched[0], place, task.task_name)
        if best is None:
            continue
        own = mod[task.task_name]
        function = best["main"].without_attr("global_symbol").with_attrs({**dict(own.attrs.items()), SCHEDULED: True})
        if seconds_of(function, place) < without[task.task_name]:
            faster[mod.get_global_var(task.task_name)] = function
    return faster, trials[0]


def made(random, port, shape):
    """Values of an input: pictures as bytes, token numbers as small integers, floats around zero."""
    if port.element.startswith("float"):
        return random.standard_normal(shape).astype(port.element)
    if port.element == "bool":
        return random.integers(0, 2, shape).astype(bool)
    return random.integers(0, 256 if port.element == "uint8" else 16, shape).astype(port.element)


def milliseconds(run):
    """Median time of a run, in at most half a second and 20 runs."""
    run()
    times, until = [], time.monotonic() + 0.5
    while not times or (len(times) < 20 and time.monotonic() < until):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2] * 1000


def compared(path, file, inputs, sizes):
    """Runs the module and ONNX Runtime, each with one thread, on the same made-up inputs."""
    import onnxruntime

    random = np.random.default_rng(7)
    values = {port.name: made(random, port, sizes[port.name]) for port in inputs}
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(file)), tvm.cpu())
    tensors = [tvm.runtime.tensor(value) for value in values.values()]
    run = lambda: machine["main"](*tensors)
    result = run()
    results = [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [one.numpy() for one in result]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        expected = session.run(None, values)
    except Exception as error:  # ONNX Runtime raises types of its own.
        say("note", text=f"not compared, ONNX Runtime fails: {' '.join(str(error).split())}")
        return {"tvm_ms": milliseconds(run)}
    off = 0.0
    for one, other in zip(results, expected, strict=True):
        most = np.max(np.abs(other.astype(np.float64)), initial=0.0)
        difference = np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)), initial=0.0)
        off = max(off, float(difference / most) if most else float(difference))
    if not off <= WRONG:
        fail("wrong", f"the module's outputs differ from those of ONNX Runtime by {off:.2g} of the largest one",
             "compute the model by another back end, such as ort; report it with the model")
    return {"tvm_ms": milliseconds(run), "ort_ms": milliseconds(lambda: session.run(None, values)), "difference": off}


def compile_model(job):
    began = time.monotonic()
    try:
        model = onnx.load(job["onnx"])
    except Exception as error:  # protobuf's errors have no common type.
        fail("model", f"{job['onnx']} cannot be read: {error}", "name an ONNX file")
    inputs, outputs = ports(model.graph)
    batch = batch_dimension(inputs, outputs)
    sizes = shapes(inputs, batch, job)
    place = target()
    say("note", text=f"importing {Path(job['onnx']).name}")
    mod, about = described(imported(model, sizes), inputs, outputs, sizes, batch)
    with place:
        mod = relax.get_pipeline("zero")(mod)
    functions = {name: scheduled(function) for name, function in sums(mod).items()}
    searching = {"trials": 0, "searched": 0}
    if job["tune_s"]:
        say("note", text=f"searching schedules of {len(functions)} functions for {job['tune_s']} s")
        faster, trials = searched(mod, place, job["tune_s"], Path(job["records"]))
        functions.update(faster)
        searching = {"trials": trials, "searched": len(faster)}
    for name, function in functions.items():
        mod.update_func(name, function)
    say("note", text="compiling")
    file = Path(job["file"])
    try:
        tvm.compile(mod, target=place).export_library(str(file))
    except Exception as error:  # TVM and the linker raise types of their own.
        fail("compile", f"TVM cannot compile the model: {error}", "`g++` must be here, which links; or compute it by another back end")
    say("note", text="comparing with ONNX Runtime")
    found = compared(job["onnx"], file, inputs, sizes)
    say("done", batch=about["batch"], shapes=sizes, functions=len(functions), seconds=round(time.monotonic() - began, 1),
        **searching, **found)


def end_with_the_input():
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    JOB = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_the_input, daemon=True).start()
    say("note", text="starting TVM")
    try:
        import numpy as np
        import onnx
        import onnxruntime  # noqa: F401
        import tvm
        import tvm.relax.frontend.onnx
        import tvm_ffi
        from tvm import relax, s_tir
    except ImportError as error:
        fail("environment", f"{sys.executable} lacks a package: {error}", "")
    compile_model(JOB)
    MESSAGES.flush()
    os._exit(0)
