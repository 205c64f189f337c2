"""The page of the figures of collectives.py, beside the published ones."""
import statistics

import tenant_shares

KIB, MIB = 1 << 10, 1 << 20
MCCS, NETHINT = "MCCS, SIGCOMM 2024", "NetHint, NSDI 2022"


def size(count):
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


def time(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.2f} ms"


def rate(number):
    return f"{number / 1e6:.2f} MB/s"


def table(head, rows):
    """The first column is text, the others are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def judged(value, goal):
    return f"{value:.2f}x; goal {goal}x: {'reached' if value >= goal else 'missed'}"


def facts(part):
    machine, network = part["machine"], part["network"]
    build = {"release": "release build", "debug": "development build"}.get(part["build"], part["build"])
    return (f"{part['date']}, commit {part['commit']}, {build}, {part['trials']} trials at most, {machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}; load "
            f"{machine['load_at_start']:.2f} at the beginning and {part['load_at_end']:.2f} at the end; hosts have {network['host_mbit']} Mbit/s, "
            f"spines {network['spine_mbit']} Mbit/s for each rack; {part['minutes']:.1f} min.\n")


RIVALS = {"openmpi": "Open MPI", "gloo": "Gloo", "pccl": "PCCL"}


def all_reduce(part):
    found = {(row["ranks"], row["bytes"], row["contender"], row["order"]): row for row in part["rows"]}
    sizes = sorted({row["bytes"] for row in part["rows"]})
    contests = list(dict.fromkeys((row["contender"], row["order"]) for row in part["rows"]))
    title = {"crossing": "each hop crosses", "racks": "rack by rack"}
    text = ["Medians of the slowest rank; in parentheses, the slowest operation of all trials. Of the orders of ranks, `crossing` lets each hop "
            "of a ring in the order of ranks leave its rack. PCCL, `locality` and `ffa` choose their ring themselves. Open MPI polls while it "
            "waits: where there are more ranks than cores, its small sizes show that, and not its own cost.\n"]
    losses = []
    for ranks in sorted({row["ranks"] for row in part["rows"]}):
        rows = []
        for name, order in contests:
            cells = [found.get((ranks, count, name, order)) for count in sizes]
            label = f"{RIVALS[name]}, {title[order]}" if name in RIVALS else f"tidemill `{name}`" + (f", {title[order]}" if name == "rank-order" else "")
            rows.append([label] + [f"{time(cell['p50'])} ({time(cell['p99'])})" if cell else "" for cell in cells])
        text.append(f"### {ranks} ranks\n\n" + table(["contender"] + [size(count) for count in sizes], rows))
        ratios = []
        for count in sizes:
            median = lambda name, order="crossing": found.get((ranks, count, name, order), {}).get("p50")
            ours, crossing, drawn = median("ffa"), median("rank-order"), median("random")
            rivals = [(row["p50"], RIVALS[name] + ", " + title[order]) for (of, bytes_, name, order), row in found.items()
                      if of == ranks and bytes_ == count and name in RIVALS]
            best, who = min(rivals, default=(None, ""))
            over = lambda other: f"{other / ours:.2f}x" if other and ours else ""
            ratios.append([size(count), over(crossing), over(drawn), over(median("locality")), over(best), who])
            if best and ours and best < ours:
                losses.append(f"- {ranks} ranks, {size(count)}: {time(ours)}, {who} {time(best)}.")
        text.append(f"How much faster `ffa` is, {ranks} ranks:\n\n" + table(
            ["bytes", "than rank order that crosses", "than a random ring", "than `locality`", "than the best rival", "which is"], ratios))
        large = found.get((ranks, sizes[-1], "ffa", "crossing")), found.get((ranks, sizes[-1], "rank-order", "crossing"))
        if all(large):
            text.append(f"{size(sizes[-1])} over rank order: {judged(large[1]['p50'] / large[0]['p50'], {4: 1.6, 8: 2.4}[ranks])}. "
                        f"Published ({MCCS}, 8 to 512 MB, 50 Gbit/s): {({4: '1.6x', 8: '2.4x'})[ranks]}.\n")
    floor = part["floor"]
    text.append("### Where we lose\n\n" + ("\n".join(losses) or "Nowhere among these.") + "\n")
    text.append(f"Cause of small sizes: a sum of 1 KiB of two ranks takes {time(floor['one_host'])} on one host, without any network, and "
                f"{time(floor['two_hosts'])} between hosts. The first is what calls through a service cost, two wake-ups of processes on each side; "
                "a library in the process has only the second part. From the size on at which links decide, paths and rings do.\n")
    if part["errors"]:
        text.append("Failed: " + "; ".join(error.splitlines()[0] for error in part["errors"]) + "\n")
    return "\n".join(text + ["Versions: " + ", ".join(part["versions"]) + ".\n"])


def bounds(part, runs, shares):
    """What the rates of links allow A with `pfa` and with `ffa`."""
    rate_of = lambda policy: tenant_shares.own_rate(runs(policy)[0]["rings"], part["network"]["spine_mbit"])
    took = lambda policy: 0.16 + 1.5 * 574_668 * 8 / (rate_of(policy) * 1e6 * 1448 / 1514)
    given = runs("pfa")[0]["rings"][0]
    counts = ", ".join(f"{given.count(path)} by {path}" for path in sorted(set(given)))
    return (f"The link rates bound it: if B and C sent all the time, A would have {rate_of('ffa'):.0f} Mbit/s with `ffa` and {rate_of('pfa'):.0f} Mbit/s with `pfa` "
            f"(rings: {counts}), an iteration of {took('ffa') * 1e3:.0f} ms and of {took('pfa') * 1e3:.0f} ms: {took('ffa') / took('pfa'):.2f}x. They pause, which "
            f"helps A with `ffa`: even shares at each moment give {shares['ffa'][0] / shares['pfa'][0]:.2f}x. With TCP and queues it is less: short sums of "
            "B and C wait in the queue that A fills, so with `ffa` A has more than its even part.\n")


def tenants(part):
    by = {}
    for row in part["pairs"]:
        by.setdefault(row["policy"], []).append(row["rates"])
    rows = []
    for policy, rates in by.items():
        sums = [sum(one) for one in rates]
        rows.append([f"`{policy}`", rate(statistics.mean(sums)), rate(min(sums)), rate(max(sums)),
                     f"{100 * statistics.pstdev(sums) / statistics.mean(sums):.1f} %", f"{max(max(one) / min(one) for one in rates):.2f}"])
    text = ["Two groups of four ranks, one on each host, sum 1 MiB at once. `locality` leaves the spine to a hash, `ffa` gives each group one.\n\n" + table(
        ["policy", "both together, mean", "least", "most", "spread", "most uneven pair"], rows)]
    ratio = statistics.mean(map(sum, by["ffa"])) / statistics.mean(map(sum, by["locality"]))
    text.append(f"`ffa` over `locality`: {ratio:.2f}x.\n")
    published = {"locality": (40.9, 47.6, 79.5), "ffa": (34.7, 39.1, 69.8), "pfa": (30.6, 51.5, 85.6), "ts": (30.6, 44.5, 100.0)}
    rows, medians, shares = [], {}, {}
    runs = lambda policy: [row for row in part["three"] if row["policy"] == policy]
    for policy, those in published.items():
        if not runs(policy):
            continue
        medians[policy] = [statistics.median(seconds) for seconds in zip(*(row["seconds"] for row in runs(policy)))]
        # Older measurements have none.
        shares[policy] = runs(policy)[0].get("shared")
        by_shares = " / ".join(f"{seconds:.1f}" for seconds in shares[policy]) if policy in ("ffa", "pfa") and shares[policy] else ""
        rows.append([f"`{policy}`", *(f"{seconds:.1f} s" for seconds in medians[policy]), by_shares, " / ".join(map(str, those))])
    text.append("Three groups: A sums 575 kB and computes for 160 ms (two ranks on a host in each rack, priority high), B and C sum 84 kB and compute "
                "for 6 ms (two ranks on the other hosts, normal and bulk). That is the third setup of the published experiment: all three cross "
                "between the same racks, over the same two spines. Bytes and rates are a thousandth of the published ones, so times compare; the "
                f"numbers of iterations are our own ({', '.join(map(str, part.get('iterations', (40, 400, 700))))}), so only ratios within a column do. "
                "`locality` is the hash (ECMP). `by shares` is what the links allow if they are divided evenly at each moment, without queues.\n\n" + table(
                    ["policy", "A", "B", "C", "by shares, s", f"published A / B / C, s ({MCCS})"], rows))
    if {"ffa", "pfa", "ts"} <= medians.keys():
        text.append(f"A with `pfa` over `ffa`: {judged(medians['ffa'][0] / medians['pfa'][0], 1.1)} (published 1.13x).\n")
        if all(shares.values()):
            text.append(bounds(part, runs, shares))
        text.append(f"B with `ts` over `pfa`: {judged(medians['pfa'][1] / medians['ts'][1], 1.12)} (published 1.16x); C then takes "
                    f"{medians['ts'][2] / medians['pfa'][2]:.2f} times as long (published 1.17 times).\n")
        if all("held" in row for row in runs("ts")):
            text.append("With `ts`, " + "; ".join(
                f"{tenant} yielded for {statistics.median(row['held'][place] for row in runs('ts')):.1f} s" for place, tenant in enumerate("ABC")) + ".\n")
    return "\n".join(text)


def background(part):
    keys = {"before": "alone", "loaded": "with the background", "reversed": "after `locality:reversed`", "second": "second sum after it"}
    medians = {key: statistics.median(row[key] for row in part["rows"]) for key in keys}
    text = table([""] + list(keys.values()), [["rate of sums of 1 MiB"] + [rate(medians[key]) for key in keys],
                                              ["part of alone"] + [f"{100 * medians[key] / medians['before']:.0f} %" for key in keys],
                                              [f"published ({MCCS})", "5.9 GB/s", "1.7 GB/s (29 %)", "5.9 GB/s (100 %)", "at once"]])
    recovered = medians["reversed"] / medians["before"]
    return ("Four hosts in a circle, 1 rank on each. Datagrams take three quarters of one direction of one link; then the ring is reversed while it "
            f"runs.\n\n{text}\nGoal: 25 to 35 % with the background, 95 % after: {100 * medians['loaded'] / medians['before']:.0f} % and "
            f"{100 * recovered:.0f} %.\n")


def change(part):
    rows = [[size(row["bytes"]), row["changes"], row["operations"], time(row["usual"]), time(row["p50"]), time(row["p99"])] for row in part["rows"]]
    return ("Four ranks sum without a pause, and the strategy changes at random times between `locality` and `locality:reversed`, which are alike. A stall is how much "
            "longer the longest sum takes that runs during a change than the usual one. Every element of every sum was compared with the exact one; "
            "all were right to the last bit.\n\n" + table(["bytes", "changes", "sums", "usual sum", "stall p50", "stall p99"], rows))


def off(row):
    return row["predicted"] / row["measured"] - 1


def named(row):
    return f"{row['operation']}{' by a tree' if row['by_tree'] else ''}, `{row['strategy']}`"


def prediction(part):
    usual = [row for row in part["rows"] if [row["congestion"], row["queue"]] == list(part["usual"])]
    parts = [abs(off(row)) for row in usual]
    head = ["operation", "Mbit/s of a host", "ranks", "bytes", "predicted", "measured", "difference", "sent again"]
    rows = [[named(row), row["host_mbit"], row["ranks"], size(row["bytes"]), time(row["predicted"]), time(row["measured"]), f"{100 * off(row):+.1f} %",
             row["again"]] for row in usual]
    ways = list(dict.fromkeys((row["congestion"], row["queue"]) for row in part["rows"]))
    keys = list(dict.fromkeys((named(row), row["host_mbit"], row["ranks"]) for row in part["rows"]))
    compared = []
    for key in keys:
        of = {(row["congestion"], row["queue"]): row for row in part["rows"] if (named(row), row["host_mbit"], row["ranks"]) == key and row["bytes"] == 4 * MIB}
        if of:
            cells = [f"{100 * off(of[way]):+.1f} % ({of[way]['dropped']})" if way in of else "" for way in ways]
            compared.append([key[0], key[1], key[2], *cells])
    summary = "; ".join(f"{congestion}, {queue}: " + (lambda found: f"{100 * statistics.median(found):.1f} %, {100 * max(found):.1f} %, {sum(one <= 0.1 for one in found)} of {len(found)}")(
        [abs(off(row)) for row in part["rows"] if (row["congestion"], row["queue"]) == (congestion, queue) and row["bytes"] == 4 * MIB]) for congestion, queue in ways)
    return ("What `net collective show` expects (`tidemill_collective::cost::expected`): the programs of all ranks, as the service carries them out, over links "
            "that share by max-min (`optimizer/flows`), with the measured time of a step. Rates of links are stated. Strategies that leave the spine to a hash are "
            f"measured on a network with one link between racks. Connections have {part['usual'][0]} (`--group-congestion`), and links drop what would wait for "
            f"more than {part['usual'][1]}. Medians of 5 operations.\n\n" + table(head, rows)
            + f"\nMedian difference {100 * statistics.median(parts):.1f} %, largest {100 * max(parts):.1f} %; within 10 %: {sum(one <= 0.1 for one in parts)} of {len(parts)}.\n"
            "\n### Causes of the rest\n\nThe same with other congestion controls and longer queues: how much less (-) time was predicted than measured, and packets that links dropped "
            "meanwhile. A queue of 400 ms drops hardly any. With cubic, the second column then has the model's own error, and what other programs on the processors cost; "
            "the rest of the first column is what packets cost that are dropped and sent again: those after one come late, and each rank of a ring waits for "
            "the one before it. BBR is slower in rings without a dropped packet, too: it sends less than its share at times, to find out what a link has.\n\n"
            + table(["4 MiB", "Mbit/s of a host", "ranks", *(f"{congestion}, {queue}" for congestion, queue in ways)], compared)
            + f"\nMedian difference, largest, and how many are within 10 %: {summary}.\n")


def loss(part):
    rows = [[f"{row['congestion']}, {100 * row['part']:.1f} %", row["lost"], time(row["all-reduce"]), time(row["broadcast"]),
             f"{row['free'] * 8e-6:.1f} of {row['total'] * 8e-6:.0f} Mbit/s", f"{row['flows']:.1f}", f"{row['estimate'] * 8e-6:.1f} Mbit/s"] for row in part["rows"]]
    return ("One direction of the link between two racks drops packets of 1514 bytes at random (nftables). Four ranks, `locality`, 1 MiB, medians of 10. Every element of every "
            "result was compared with the exact one; all were right to the last bit. Hints are of that direction, at the end of the operations.\n\n"
            + table(["dropped", "packets", "all-reduce", "broadcast", "free", "flows", "one more flow"], rows)
            + "\nRound trips are short here, so that what is lost is sent again at once. Long routes are not measured: this kernel cannot delay packets.\n")


def hints(part):
    rows = []
    verdicts = []
    for operation, goal, published in (("all-reduce", 1.5, "2.2x"), ("broadcast", 1.2, "1.4x"), ("exchange", 1.1, "1.2x")):
        of = lambda name: [row[f"{operation} {name}"] for row in part["rows"] if f"{operation} {name}" in row]
        drawn, topology, hinted, service = of("random"), of("topology"), of("hints"), of("service")
        mean = lambda values: time(statistics.mean(values)) if values else ""
        gain = statistics.mean(drawn) / statistics.mean(hinted)
        won = sum(one > other for one, other in zip(drawn, hinted))
        rows.append([operation, mean(drawn), mean(topology), mean(hinted), mean(service), f"{gain:.2f}x", f"{won} of {len(drawn)}", published])
        verdicts.append(f"{operation} {judged(gain, goal)}")
    return ("Two racks of three hosts, 40 Mbit/s for each host and for each rack. Hosts send to others as drawn by a power law (up to half of a link), "
            "another draw in each window. The load of each link is read from counters before each choice; `tidemill_hints` chooses the ring and where "
            "the tasks of an exchange receive. `topology` is a ring that crosses each rack once, without loads; with the strategy `hints`, the services count and choose themselves.\n\n" + table(
                ["512 KiB; exchanges of 2.5 MiB", "random", "topology", "hints", "strategy `hints`", "hints over random", "windows won", f"published ({NETHINT})"], rows)
            + "\n" + "; ".join(verdicts) + ".\n")


PARTS = {"all-reduce": ("All-reduce beside rivals", all_reduce), "tenants": ("Several tenants", tenants),
         "background": ("Background traffic and a reversed ring", background), "change": ("Changes of the strategy", change),
         "prediction": ("Expected times", prediction), "loss": ("Packets that are dropped", loss), "hints": ("Hints", hints)}


def page(parts):
    text = ["# Groups of programs on two racks\n",
            "Written by `make bench BENCH=collectives` (`\"collectives --only tenants,change\"` measures some parts again); all figures are in "
            "`collectives.json`. How groups work: [Groups of programs](../collectives.md).\n",
            "All hosts are network namespaces of one machine, two in each rack where nothing else is said; links are shaped (tbf), and two spines join "
            "the racks. Services (`tidemill net serve`) and ranks are processes in the namespaces. Contenders of a size run in turn in one session, so "
            "that all meet the same load.\n"]
    for name, (title, write) in PARTS.items():
        text.append(f"## {title}\n")
        text.append(facts(parts[name]) + "\n" + write(parts[name]) if name in parts else "Not measured yet.\n")
    return "\n".join(text)
