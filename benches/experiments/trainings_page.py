"""The page of the figures of trainings.py."""
import statistics

from jobs_page import facts, table

GOAL = 1.5


def about(part):
    budget = part["budget"]
    held = f"each held to {100 * budget:g} % of a core by a control group" if budget else "without a budget: control groups cannot be made here"
    return facts(part) + f"Ranks are {held}. Batches of {part['batch']:,} examples, 8 experts with {part['hidden']} hidden values.\n"


def milliseconds(seconds):
    return f"{1000 * seconds:.0f} ms"


def lost(part, title="One rank after the other is killed"):
    text = [f"## {title}\n", about(part),
            f"{part['ranks']} ranks with `survive: 5`; `kill -9` of one every {part['every']:g} s until five are left, {part['steps']} steps. Rates are of all ranks,\n"
            "from the loss before to this one. The times count from the kill: until the ranks that are left have agreed, and until the first step\n"
            "after that is noted (a rank notes its steps at most every 250 ms).\n"]
    rows, losses = [], part["losses"]
    after = [one["rate_before"] for one in losses[1:]] + [part["rate_last"]]
    for one, rate in zip(losses, after):
        rows.append([f"{one['ranks']} → {one['ranks'] - 1}", f"{one['rate_before']:,.0f}", f"{rate:,.0f}", f"{100 * (rate / one['rate_before'] - 1):+.0f} %",
                     f"{-100 / one['ranks']:+.0f} %", one["moved"], milliseconds(one["agreed_after"]), milliseconds(one["noted_after"])])
    text.append(table(["ranks", "examples/s before", "after", "change", "change of ranks", "experts moved", "agreed", "step noted"], rows))
    same = "the same digest" if part["digest"] == part["digest_undisturbed"] else "ANOTHER digest"
    restarts = part["restarts"]
    text.append(f"No rank was started again ({part['starts']} starts), and no checkpoint was read. The parameters at the end have {same} as those of an\n"
                f"undisturbed training (`{part['digest']}`, `{part['digest_undisturbed']}`), and the mean loss up to a step differs by at most\n"
                f"{part['difference']:.1e} at the {part['compared']} steps that both have noted.\n")
    text.append("The same steps and kills with `survive: 0`: each loss ends the ranks, and the same command continues from its checkpoint\n"
                f"(every {part['checkpoint_every']} steps) with one rank fewer.\n")
    waits = [one["noted_after"] for one in losses]
    text.append(table(["", "all steps, seconds", "steps again", "kill to noted step, median", "digest"], [
        ["ranks continue", f"{part['seconds']:.1f}", 0, f"{statistics.median(waits):.2f} s", f"`{part['digest']}`"],
        [f"restarts ({restarts['killed']} kills)", f"{restarts['seconds']:.1f}", restarts["repeated"],
         f"{statistics.median(restarts['waits']):.2f} s" if restarts["waits"] else "-", f"`{restarts['digest']}`"]]))
    alone = part["steps"] * part["batch"] / part["rate_undisturbed"]
    first, last = losses[0]["rate_before"], part["rate_last"]
    text.append(f"The undisturbed training with ten ranks took {alone:.1f} s. Each was measured once, one after the other, while other work loaded the\n"
                f"machine: differences between them have that noise. With half of the ranks the rate is {last / first:.2f} of the first; 0.50 is what the budgets\n"
                "would give if ranks did nothing but compute.\n")
    if restarts["seconds"] < part["seconds"]:
        text.append("Here restarts were not slower: all steps together took no more time, though each loss cost more.\n")
    return "\n".join(text)


def impossible(part):
    experts = ", ".join(map(str, part["lost_experts"]))
    noted = milliseconds(part["noted_after"]) if part["noted_after"] is not None else "never"
    return "\n".join(["## No rank that is left has an expert\n", about(part),
                      "Ten ranks with `survive: 5`. Four are killed, and started again; before they take part, four of the other six are killed at once:\n"
                      f"those that have all replicas of expert {part['expert']}. Ranks {', '.join(map(str, part['ranks']))} then continue; their event has `from: checkpoint`, step {part['step']},\n"
                      f"and the lost experts {experts}. Step {part['step_before']} was noted before. They agreed {milliseconds(part['agreed_after'])} after the kill, and a new step\n"
                      f"was noted after {noted}.\n"])


def spot(part):
    ours, restarts = part["ours"], part["restarts"]
    losses = [count for _, what, count in part["events"] if what == "lost"]
    backs = [count for _, what, count in part["events"] if what == "back"]
    verdict = "reached" if part["ratio"] >= GOAL else "missed"
    text = ["## Machines that come and go\n", about(part),
            f"A trace made from seed {part['seed']} (no recorded one is in the repository): {part['trace_minutes']} min in {part['seconds']:g} s, ten machines at most and five at least,\n"
            f"{len(losses)} losses of {sum(losses)} machines, at most {max(losses, default=0)} at once, and {len(backs)} returns of {sum(backs)}. Ranks that come back take part at the next of every\n"
            f"20 steps (`rebalance_every`). Restarts continue from checkpoints of every {part['checkpoint_every']} steps, and use machines that came back from the next\n"
            "restart on.\n",
            table(["", "steps done", "examples", "steps again", "kill to next step, median"], [
                ["ranks continue", ours["steps"], f"{ours['steps'] * part['batch']:,}", f"{ours['from_checkpoint']} times from a checkpoint", "-"],
                ["restarts", restarts["steps"], f"{restarts['steps'] * part['batch']:,}", restarts["repeated"],
                 f"{statistics.median(restarts['waits']):.2f} s" if restarts["waits"] else "-"]]),
            f"{part['ratio']:.2f} times the examples of restarts; the goal of {GOAL:g} is {verdict}. A start takes seconds here and minutes on real machines\n"
            "with large models; the time between losses is compressed, and this is not.\n"]
    return "\n".join(text)


def skew(part):
    text = ["## Experts with unequal loads\n", about(part),
            f"{part['ranks']} ranks with two slots each. Two of the eight experts have a multiple of the load of each other one: the dataset has so many more\n"
            "points of two groups, and a gate that does not change gives each group to an expert. `rebalance_every: 8` plans replicas by\n"
            "load; `rebalance_every: 0` keeps the two of each expert with which a training begins. Seconds of a step.\n"]
    first, rows = part["rows"][0], []
    for row in part["rows"]:
        loads, cells = sorted(row["planned"]["loads"]), []
        for name in ("planned", "equal"):
            change = 100 * (row[name]["step"] / first[name]["step"] - 1)
            cells += [f"{row[name]['step']:.3f}", f"{change:+.0f} %"]
        counts = row["planned"]["replicas"]
        rows.append([f"{row['ratio']}:1", f"{100 * loads[0]:.0f} to {100 * loads[-1]:.0f} %", ", ".join(map(str, counts)), *cells,
                     f"{row['equal']['step'] / row['planned']['step']:.2f}"])
    text.append(table(["load", "measured loads", "replicas by load", "by load", "to 1:1", "equal", "to 1:1", "equal / by load"], rows))
    for row in part["rows"]:
        if row["planned"]["step"] > row["equal"]["step"]:
            counts = sorted(row["planned"]["replicas"])
            if counts == sorted(row["equal"]["replicas"]):
                text.append(f"At {row['ratio']}:1 both have the same replicas: the difference is the noise of this machine.\n")
            else:
                text.append(f"At {row['ratio']}:1 equal replicas are faster: by load, experts have {counts[0]} to {counts[-1]} replicas.\n")
    best = min(first["planned"]["step"], first["equal"]["step"])
    worst = max(row["planned"]["step"] for row in part["rows"]) / best - 1
    text.append("Each figure is of one training, on a machine with other work: differences of some ten percent are noise.\n")
    text.append(f"The goal, steps with replicas by load at most 10 % longer at any load than those of the faster kind at 1:1, is {'reached' if worst <= 0.1 else 'missed'}: {100 * worst:+.0f} % at worst.\n")
    return "\n".join(text)


def page(parts):
    text = ["# Trainings that lose ranks\n",
            "Written by `make bench BENCH=trainings` (`\"trainings --only lost\"` measures a part); all figures are in `trainings.json`. How\n"
            "trainings continue: [Training by several programs](../training.md).\n"]
    small = lambda part: lost(part, "The same with small batches")
    writers = {"lost": lost, "lost-small": small, "impossible": impossible, "spot": spot, "skew": skew}
    text += [write(parts[name]) for name, write in writers.items() if name in parts]
    return "\n".join(text)
