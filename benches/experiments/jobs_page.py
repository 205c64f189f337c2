"""The page of the figures of jobs.py, beside the published ones."""

# Of the authors' simulator (SymbioticLab/Tiresias) for its trace of 60 jobs, placed by counting: mean, median, 95th percentile, mean queueing
# and makespan, seconds.
SIXTY = {
    ("8", "fifo"): (1556.5, 1421, 3929, 1378.1, 5747),
    ("8", "best-effort"): (715.3, 152, 3389, 536.9, 4806),
    ("8", "2d-las"): (715.3, 152, 3389, 536.9, 4806),
    ("8", "srtf"): (519.9, 143, 2939, 341.4, 4901),
    ("8", "srsf"): (563.4, 152, 3077, 385.0, 4962),
    ("16", "fifo"): (200.8, 151, 368, 22.4, 3335),
    ("16", "2d-las"): (190.7, 130, 368, 12.3, 3271),
}
EXAMPLE = {"srsf": "9.33", "2d-las": "11.67", "2d-gittins in queues": "10.00", "2d-gittins": "-"}
# For three traces with the published shares: without cost and three thresholds; one threshold.
GENERATED = [
    ("`fifo` / `2d-las`, mean", "free", "fifo", "3.5 to 3.9", "5.1"),
    ("`fifo` / `2d-las`, median", "free", "fifo_median", "16 to 22", "-"),
    ("`best-effort` / `2d-las`, mean", "free", "best_effort", "1.3 to 1.5", "-"),
    ("`srtf` / `2d-las`, mean", "free", "srtf", "0.71 to 0.73", "0.74"),
    ("`2d-gittins` / `2d-las`, mean", "free", "gittins", "0.99 to 1.03", "-"),
    ("one threshold, here 60 s a preemption: `fifo` / `2d-las`, mean", "costly", "fifo", "3.1 to 3.9", "5.5"),
    ("preemptions of `2d-las`", "costly", "preemptions", "279 to 297", "221"),
]


def table(head, rows):
    """The first column is text, the others are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def facts(part):
    machine = part["machine"]
    build = {"release": "release build", "debug": "development build"}.get(part["build"], part["build"])
    return (f"{part['date']}, commit {part['commit']}, {build}, {machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']};\n"
            f"load {machine['load_at_start']:.2f} at the beginning and {part['load_at_end']:.2f} at the end; {part['minutes']:.1f} min.\n")


def simulated(part):
    rows = [[f"`{name}`" if " " not in name else "`2d-gittins`, threshold 4", EXAMPLE[name], f"{part['example'][name]:.2f}"] for name in EXAMPLE]
    text = ["## Simulated\n", facts(part), "### The worked example\n",
            "Three jobs on two slots (Gu, 2021, figure 3.7): mean time from submission to completion, seconds.\n",
            table(["policy", "published", "here"], rows),
            "### The 60 jobs of the authors' simulator\n",
            "Seconds; the figure of the authors' simulator (SymbioticLab/Tiresias, jobs placed by counting), then the one here. It counts\n"
            "percentiles by another index: at most one job away.\n"]
    rows = []
    for (slots, name), theirs in SIXTY.items():
        one = part["sixty"][slots][name]
        ours = (one["completion"]["mean"], one["completion"]["p50"], one["completion"]["p95"], one["queueing"]["mean"], one["makespan"])
        rows.append([f"{slots} slots, `{name}`", *(f"{their:g} / {our:.1f}" for their, our in zip(theirs, ours))])
    text.append(table(["", "mean", "median", "p95", "mean queueing", "makespan"], rows))
    text += ["### 480 random jobs with the published shares\n",
             "Ratios of times from submission to completion on 15 machines of 4 slots. The jobs of the paper are not public. The authors'\n"
             "simulator ran three other traces with the same shares; the last column has the paper's own trace, in its simulator, and where\n"
             "preemptions cost time on its testbed.\n"]
    rows = []
    for words, which, key, theirs, published in GENERATED:
        shown = (lambda number: f"{number:.0f}") if key in ("preemptions", "fifo_median") else (lambda number: f"{number:.2f}")
        rows.append([words, *(shown(one[which][key]) for one in part["generated"]), theirs, published])
    text.append(table(["", *(f"seed {one['seed']}" for one in part["generated"]), "authors' simulator", "paper"], rows))
    return "\n".join(text)


def live(part):
    text = ["## Live\n", facts(part),
            f"The first {part['jobs']} jobs of `{part['trace']}`, with all times multiplied by {part['scale']:g}: a controller, two agents with four slots each,\n"
            "and a real process for each task, which works in steps of 50 ms, notes each, and writes a checkpoint when it is preempted.\n"
            f"`2d-las` has one threshold, {part['threshold'] * part['scale']:g} slot-seconds. The controller was ended with `kill -9` once, after half of the\n"
            "submissions, and started again a second later. Times from submission to the last step, seconds. `simulated` is the same trace in\n"
            "`tidemill job simulate`, with the times that a start and an end took on an empty cluster before.\n"]
    rows = []
    for policy, one in part["policies"].items():
        for name, words in (("live", "live"), ("simulated", "simulated"), ("without_costs", "simulated, starts cost nothing")):
            found = one[name]
            rows.append([f"`{policy}`, {words}", *(f"{found[key]:.1f}" for key in ("mean", "p50", "p95", "makespan")), found["preemptions"]])
    text.append(table(["", "mean", "median", "p95", "makespan", "preemptions"], rows))
    fifo, las = part["policies"]["fifo"], part["policies"]["2d-las"]
    rows = []
    for key, words in (("mean", "mean"), ("p50", "median")):
        ratio = [fifo[name][key] / las[name][key] for name in ("live", "simulated")]
        off = 100 * (ratio[0] / ratio[1] - 1)
        rows.append([f"`fifo` / `2d-las`, {words}", f"{ratio[0]:.2f}", f"{ratio[1]:.2f}", f"{off:+.0f} %"])
    for policy, one in part["policies"].items():
        off = 100 * (one["live"]["mean"] / one["simulated"]["mean"] - 1)
        rows.append([f"mean of `{policy}`, seconds", f"{one['live']['mean']:.1f}", f"{one['simulated']['mean']:.1f}", f"{off:+.0f} %"])
    text.append(table(["", "live", "simulated", "difference"], rows))
    faults = [fault for one in part["policies"].values() for fault in one["live"]["faults"] + one["live"]["left"]]
    costs = ", ".join(f"{one['costs']['start']:.2f} s and {one['costs']['stop']:.2f} s (`{policy}`)" for policy, one in part["policies"].items())
    text.append(f"A start took {costs} until the first step, and an end that was asked for.\n"
                + ("No step was lost or repeated, and nothing was left behind.\n" if not faults else "Faults: " + "; ".join(faults) + ".\n"))
    return "\n".join(text)


def page(parts):
    text = ["# Jobs in a queue\n",
            "Written by `make bench BENCH=jobs` (`\"jobs --only simulated\"` measures a part); all figures are in `jobs.json`. How the queue\n"
            "works: [Jobs and their queue](../jobs.md).\n"]
    text += [write(parts[name]) for name, write in (("simulated", simulated), ("live", live)) if name in parts]
    return "\n".join(text)
