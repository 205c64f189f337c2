"""The page of the figures of aggregation.py, beside the published ones."""
import statistics

from jobs_page import facts, table


def both(times):
    return f"{times['p50']:.1f}", f"{times['p99']:.1f}"


def exact(rows):
    cells = [[f"`{row['numbers']}`", row["steps"], row["moved"], row["rounds_with_moves"], "equal" if row["same_bits"] else "**differ**"] for row in rows]
    return [
        "Two workers, Adam, the tensors of AlexNet (one of 1,000 parts). All tensors move to the other aggregator as soon as the last move is\n"
        "confirmed, which takes a step on the new one: no tensor moves in each step. The parameters at the end are compared with\n"
        "those of one process, bit by bit.\n",
        table(["numbers", "steps", "tensors moved", "steps with moves", "parameters"], cells),
    ]


def stall(rows):
    cells = []
    for row in rows:
        pause, whole = row["pause_ms"]["p50"], row["stall_of_a_whole_move_ms"]
        cells.append([f"`{row['model']}`", row["tensors"], f"{row['bytes'] / 1e6:.1f}", *both(row["exchange_ms"]), *both(row["exchange_with_moves_ms"]),
                      f"{whole:.0f}", f"{pause:.0f}", f"{pause / max(whole, 0.001):.1f}"])
    return [
        f"Models with the published tensors, one of {rows[0]['scale']} parts of each, two workers. Milliseconds. An exchange is the part of a step in which a worker waits\n"
        "for aggregators. The stall of a whole move is the time that all exchanges with a move take beyond the median of those without, for\n"
        "each move of all tensors. A pause ends the job with a checkpoint, and begins it again elsewhere. AutoPS (Gu, 2021) has less than\n"
        "50 ms, and a pause that is more than 20 times as long.\n",
        "The goals are not reached here. The cause was not measured. The state that moves has twice the bytes of the gradients (parameters and\n"
        "moments) and shares the processors with the exchanges, but bytes alone do not explain the order of the models. With so few samples p99\n"
        "is the longest one; a pause has five.\n",
        table(["model", "tensors", "MB", "exchange p50", "p99", "with moves p50", "p99", "stall of a move", "pause", "pause / stall"], cells),
    ]


def packing(rows):
    cells = []
    for row in rows:
        saved = 1 - row["aggregators"] / row["servers_alone"]
        losses = row["losses"]
        cells.append([f"`{row['model']}`", row["jobs"], row["servers_alone"], row["aggregators"], f"{100 * saved:.0f} %", f"{row['iteration_alone_ms']:.0f}",
                      f"{100 * statistics.median(losses):.1f} %", f"{100 * max(losses):.1f} %"])
    return [
        "Jobs with two servers each, then the same ones on shared aggregators. Computing is sleeping; sums and updates are real. Loss: of speed,\n"
        "beside the job alone on two servers. AutoPS has 75 % for VGG19 (8 servers to 2), and at least 25 % for AlexNet, with a loss of at\n"
        "most 10 %. The jobs run at once and the job alone does not, so a part of a loss may be the two processors that they share.\n",
        table(["model", "jobs", "servers alone", "aggregators", "saved", "iteration alone, ms", "loss, median", "largest"], cells),
    ]


def straggler(rows):
    cells = [[row["late"], *both(row["late_job_ms"]), *both(row["other_job_ms"])] for row in rows]
    return [
        "Two jobs on one aggregator. A worker of the first one is late in each tenth step. Iterations, milliseconds.\n",
        table(["late by", "its job p50", "p99", "the other job p50", "p99"], cells),
    ]


def calls(rows):
    cells = [[row["tensors"], f"{row['bytes'] / 1e6:.2f}", *both(row["step_ms"]), f"{row['gigabytes_per_second']:.2f}"] for row in rows]
    return [
        "One worker, one aggregator, no computing: the time of a step by the bytes of its gradients, and the rate of both directions together.\n",
        table(["tensors", "MB", "step p50, ms", "p99", "GB/s"], cells),
    ]


PARTS = {
    "exact": ("The same bits under moves", exact), "stall": ("The stall of a move", stall), "packing": ("Fewer servers", packing),
    "straggler": ("A worker that is late", straggler), "calls": ("Calls", calls),
}


def page(parts):
    text = ["# Aggregators, measured\n",
            "Written by `make bench BENCH=aggregation` (`\"aggregation --only stall\"` measures a part); all figures are in `aggregation.json`.\n"
            "How they work: [Aggregators for training jobs](../aggregation.md). Workers, aggregators and the transport service share the\n"
            "processors of one machine.\n"]
    for name, (title, write) in PARTS.items():
        if name in parts:
            text += [f"## {title}\n", facts(parts[name]), *write(parts[name]["rows"])]
    return "\n".join(text)
