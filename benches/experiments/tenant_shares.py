"""How long jobs take that compute and sum by turns, if the links between racks are divided evenly among their rings at each moment.

It is what link rates allow without queues, and without the time of steps: a bound to compare measured times with. Both directions of a link
carry the same, so one is counted. A ring whose path is left to a hash shares the first path, the worst case.
"""


def seconds(jobs, rate):
    """Seconds of each job: its rings by their paths, bytes of a sum over a link between racks in all rings, seconds of computation, and
    iterations. `rate`: bytes per second of a path."""
    default = min((path for rings, *_ in jobs for path in rings if path), default="")
    rings = [[path or default for path in rings] for rings, *_ in jobs]
    now, left, computes = 0.0, [None] * len(jobs), [compute for _, _, compute, _ in jobs]
    done, ends = [0] * len(jobs), [None] * len(jobs)
    while None in ends:
        active = [(job, ring) for job, parts in enumerate(left) if parts for ring, part in enumerate(parts) if part > 0]
        loads = {}
        for job, ring in active:
            loads[rings[job][ring]] = loads.get(rings[job][ring], 0) + 1
        rates = {(job, ring): rate / loads[rings[job][ring]] for job, ring in active}
        waits = [computes[job] for job in range(len(jobs)) if left[job] is None and ends[job] is None]
        step = min([left[job][ring] / rates[job, ring] for job, ring in active] + waits)
        now += step
        for job, (_, size, compute, iterations) in enumerate(jobs):
            if ends[job] is not None:
                continue
            if left[job] is None:
                computes[job] -= step
                if computes[job] <= 1e-12:
                    left[job] = [size / len(rings[job])] * len(rings[job])
                continue
            for ring, part in enumerate(left[job]):
                part -= rates.get((job, ring), 0) * step
                left[job][ring] = part if part > 1e-6 else 0
            if not any(left[job]):
                done[job] += 1
                left[job], computes[job] = None, compute
                if done[job] == iterations:
                    ends[job] = now
    return ends


def own_rate(rings, rate):
    """Bytes per second of the first job, if the others send all the time. `rings`: the paths of the rings of each job."""
    loads = {}
    for paths in rings:
        for path in paths:
            loads[path] = loads.get(path, 0) + 1
    return len(rings[0]) * min(rate / loads[path] for path in rings[0])
