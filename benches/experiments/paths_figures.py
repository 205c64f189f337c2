"""Figures of `paths.py`: two files of messages are compared, the sender's and the receiver's, with what was done to the paths meanwhile.

Per drop and over all drops:
  new row          from the drop until the first message arrives that was due after it. It is small if the first few messages happened to
                   take the other path; the worst message shows what followed.
  worst message    latency of the message that arrived latest after it was due; lost ones are counted by themselves
  noticed          until an end printed that the path is gone
Over the whole: latencies before the first disturbance (calm) and after it, changes of the path in use, and messages that were lost,
doubled and reordered.
"""
import math

# Seconds. Messages due this long before a cut may have been on their path when it came.
IN_FLIGHT = 0.1


def messages(file):
    """Pairs of number and nanoseconds; a last line that is not complete is left out."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [tuple(int(word) for word in line.split()) for line in lines]


def spread(values, *shares):
    """Percentiles in milliseconds by name; none where it is infinite."""
    ordered = sorted(values)
    ranks = {f"p{share}": ordered[min(len(ordered), max(1, math.ceil(len(ordered) * share / 100))) - 1] for share in shares if ordered}
    if ordered:
        ranks["max"] = ordered[-1]
    return {name: round(value / 1e6, 3) if value < math.inf else None for name, value in ranks.items()}


def evaluate(sent, received, expected, begin, cuts, changes, noticed):
    """Compare both files. Times are CLOCK_MONOTONIC nanoseconds; `begin`: when the paths were disturbed first."""
    due, arrivals, doubled, reordered, highest = dict(sent), {}, 0, 0, -1
    for number, at in received:
        if number in arrivals:
            doubled += 1
            continue
        arrivals[number] = at
        reordered += number < highest
        highest = max(highest, number)
    late = [(due[number], at, at - due[number]) for number, at in arrivals.items() if number in due]
    drops = []
    for number, (down, up, path, dropped) in enumerate(cuts):
        following = cuts[number + 1][0] if number + 1 < len(cuts) else math.inf
        first = min((at for sent_at, at, _ in late if sent_at >= down), default=math.inf) - down
        near = [latency for sent_at, _, latency in late if down <= sent_at + IN_FLIGHT * 1e9 < following]
        seen = next((at - down for at in noticed if down <= at < following), math.inf)
        drops.append({"path": path, "seconds": round((up - down) / 1e9, 3), "new_row": first, "worst": max(near, default=math.inf),
                      "noticed": seen, "packets_dropped": dropped, "path_changes": sum(down <= at < following for at in changes)})
    told = {
        "new_row_ms": spread([drop["new_row"] for drop in drops], 50, 95),
        "worst_message_ms": spread([drop["worst"] for drop in drops], 50, 95),
        "noticed_ms": spread([drop["noticed"] for drop in drops], 50, 95),
        "calm_ms": spread([latency for sent_at, _, latency in late if sent_at + IN_FLIGHT * 1e9 < begin], 50, 99),
        "disturbed_ms": spread([latency for sent_at, _, latency in late if sent_at + IN_FLIGHT * 1e9 >= begin], 50, 99),
        "path_changes": sum(at >= begin for at in changes),
        "sent": len(due), "never_sent": expected - len(due), "lost": len(due.keys() - arrivals.keys()),
        "unknown": len(arrivals.keys() - due.keys()), "doubled": doubled, "reordered": reordered,
    }
    for drop in drops:
        for key in ("new_row", "worst", "noticed"):
            drop[f"{key}_ms"] = spread([drop.pop(key)])["max"]
    return {**told, "drops": drops}


def show(results):
    """Print a table; times in milliseconds."""
    def text(value):
        return "never" if value is None else f"{value:.{1 if value < 100 else 0}f}"

    def three(values, names):
        return " / ".join(text(values[name]) if name in values else "-" for name in names)

    row = "{:<9} {:>5} {:>22} {:>22} {:>22} {:>18} {:>24} {:>7} {:>24}"
    print(row.format("ms", "drops", "new row p50/p95/max", "worst msg p50/p95/max", "noticed p50/p95/max", "calm p50/p99",
                     "disturbed p50/p99/max", "changes", "lost/doubled/reordered"))
    for name, told in results.items():
        over = ("p50", "p95", "max")
        print(row.format(name, len(told["drops"]), three(told["new_row_ms"], over), three(told["worst_message_ms"], over),
                         three(told["noticed_ms"], over), three(told["calm_ms"], ("p50", "p99")),
                         three(told["disturbed_ms"], ("p50", "p99", "max")), told["path_changes"],
                         f"{told['lost']} / {told['doubled']} / {told['reordered']} of {told['sent']}"))
        for what in told["wrong"]:
            print(f"WARNING: {name}: the result is invalid: {what}")
