"""Draws the costs of plans for examples/aicity, beside what was published: docs/benchmarks/aicity-setups.svg, aicity-rates.svg
and aicity-expected.svg.

    python3 benches/experiments/aicity_figures.py [OUT]     from OUT.json, default docs/benchmarks/aicity-plans

Called by benches/experiments/aicity_plans.py. Colours and letters are those of the other drawings (docs/benchmarks/setups-rates.svg).
"""
import json
import math
import pathlib
import re
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "examples" / "aicity" / "published.json"
STYLE = re.compile(r"<style>.*?</style>", re.S)
PLANNERS = ["exact", "beam", "best-fit", "first-fit", "cloud-only", "edge-only"]
# Colours of the planners in the drawings of the other example.
COLOURS = {"exact": 0, "beam": 2, "best-fit": 3, "first-fit": 4, "cloud-only": 5, "edge-only": 6}
LEVEL = 85  # IDF1 in percent


def sheet(title, size, body):
    style = STYLE.search((ROOT / "docs/benchmarks/setups-rates.svg").read_text()).group(0)
    width, height = size
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>{style}", '<rect class="ground" width="100%" height="100%"/>',
        text(16, 24, title, "title"), *body, "</svg>", "",
    ])


def text(x, y, words, kind="small", anchor="start"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(words))}</text>'


def steps(most):
    """Values that an axis from 0 to `most` names."""
    step = 10 ** math.floor(math.log10(most))
    step = next(part for part in (step / 5, step / 2, step, 2 * step) if most / part <= 6)
    return [step * count for count in range(int(most / step + 1e-9) + 1)]


def short(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


def axis(left, right, floor, ceiling, most):
    lines = []
    for value in steps(most):
        y = floor - (floor - ceiling) * value / most
        lines.append(f'<line class="grid" x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"/>')
        lines.append(text(left - 6, y + 4, short(value), anchor="end"))
    lines.append(f'<path class="axis" d="M{left:.1f} {ceiling:.1f}V{floor:.1f}H{right:.1f}"/>')
    return lines


def bars(title, rows, place):
    """A panel: rows are a name, a colour, compute and network in $/h; none: no plan."""
    left, right, floor, ceiling = place
    most = 1.12 * max((compute + network for _, _, costs in rows if costs for compute, network in [costs]), default=1)
    lines = [text(left, ceiling - 12, title, "panel"), *axis(left, right, floor, ceiling, most)]
    width = (right - left) / len(rows)
    for at, (name, colour, costs) in enumerate(rows):
        middle = left + (at + 0.5) * width
        lines.append(text(middle, floor + 15 + 12 * (at % 2), name, anchor="middle"))
        if not costs:
            lines.append(text(middle, floor - 6, "no plan", anchor="middle"))
            continue
        base = floor
        for part, opacity in zip(costs, (1, 0.45)):
            height = (floor - ceiling) * part / most
            base -= height
            lines.append(
                f'<rect class="f{colour}" opacity="{opacity}" x="{middle - 0.34 * width:.1f}" y="{base:.1f}" '
                f'width="{0.68 * width:.1f}" height="{height:.1f}"/>'
            )
        lines.append(text(middle, base - 5, f"{sum(costs):.1f}", anchor="middle"))
    return lines


def setups(document):
    published = json.loads(PUBLISHED.read_text())["costs"]
    body = [text(16, 44, f"Dark: machines, light: traffic. Ours: 100 times the frames, IDF1 of {LEVEL} % or more; published: 70 %.", "soft small")]
    names = {("JB", "JB"): ("JB", 2), ("LB", "LB"): ("LB", 0), ("JB", "BF"): ("BF", 3), ("JB", "FF"): ("FF", 4),
             ("most accurate", "PTc"): ("PTc", 5), ("most accurate", "SPc"): ("SPc", 1)}
    for row, setup in enumerate(("medium", "large")):
        ceiling, floor = 96 + 250 * row, 266 + 250 * row
        rows = [
            (*names[key], (costs[setup]["compute"], costs[setup]["network"]))
            for key in names for costs in published if (costs["models"], costs["assignment"]) == key
        ]
        body += bars(f"{setup}, published, $/h", rows, (52, 396, floor, ceiling))
        own = {plan["planner"]: plan for plan in document["plans"] if (plan["setup"], plan["wanted"]) == (setup, LEVEL)}
        cost = lambda name: own.get(name, {}).get("cost")
        rows = [(name, COLOURS[name], cost(name) and (cost(name)["compute"], cost(name)["network"])) for name in PLANNERS]
        body += bars(f"{setup}, our models, $/h", rows, (460, 804, floor, ceiling))
    return sheet("AI City: cost of the published setups", (820, 570), body)


def rates(document):
    """Cost by rate; a cross where a planner finds no further plan."""
    left, right, floor, ceiling = 52, 804, 320, 90
    rows = document["rates"]
    planners = [name for name in PLANNERS if any(row["planner"] == name and row["cost"] for row in rows)]
    most = 1.08 * max(row["cost"]["total"] for row in rows if row["cost"])
    longest = max(row["rate"] for row in rows)
    body = axis(left, right, floor, ceiling, most)
    place = lambda rate, cost: (left + (right - left) * rate / longest, floor - (floor - ceiling) * cost / most)
    for rate in steps(longest):
        body.append(text(place(rate, 0)[0], floor + 17, short(rate), anchor="middle"))
    body.append(text((left + right) / 2, floor + 36, "frames per second", "soft small", "middle"))
    for at, name in enumerate(planners):
        x = 16 + 130 * at
        body.append(f'<line class="c{COLOURS[name]}" stroke-width="2.6" x1="{x}" y1="46" x2="{x + 22}" y2="46"/>')
        body.append(text(x + 28, 50, name))
        points = [place(row["rate"], row["cost"]["total"]) for row in rows if row["planner"] == name and row["cost"]]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        # Plans that cost the same lie on top of each other: those below are thicker.
        width = 1.8 + 1.2 * at
        body.append(f'<polyline class="curve c{COLOURS[name]}" stroke-width="{width:.1f}" opacity="0.8" points="{line}"/>')
        if any(row["planner"] == name and not row["cost"] for row in rows):
            (x, y), arm = points[-1], 4
            body.append(
                f'<path class="mark c{COLOURS[name]}" d="M{x - arm:.1f} {y - arm:.1f}L{x + arm:.1f} {y + arm:.1f}'
                f'M{x - arm:.1f} {y + arm:.1f}L{x + arm:.1f} {y - arm:.1f}"/>'
            )
    body.append(text(16, 68, f"$/h in the medium setup, our models, IDF1 of {LEVEL} % or more; a cross: no plan at the next rate", "soft small"))
    return sheet("AI City: cost by rate", (820, 372), body)


def judged(rows):
    """Those whose rate and IDF1 were measured."""
    return [row for row in rows if row.get("measured") is not None and row.get("accuracy") is not None]


def expected(document):
    """Measured rates over planned ones, with the diagonal."""
    left, right, floor, ceiling = 52, 404, 320, 66
    rows = judged(document["expected"])
    most = 1.08 * max(max(row["rate"], row["measured"]) for row in rows)
    body = axis(left, right, floor, ceiling, most)
    place = lambda x, y: (left + (right - left) * x / most, floor - (floor - ceiling) * y / most)
    for rate in steps(most):
        body.append(text(place(rate, 0)[0], floor + 17, short(rate), anchor="middle"))
    body.append(text((left + right) / 2, floor + 36, "frames per second, planned", "soft small", "middle"))
    x, y = place(most, most)
    body.append(f'<line class="grid" x1="{left}" y1="{floor}" x2="{x:.1f}" y2="{y:.1f}"/>')
    for row in rows:
        x, y = place(row["rate"], row["measured"])
        body.append(f'<circle class="f0" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        body.append(text(x - 9, y - 7, f"IDF1 {row['accuracy']:.0f} %", anchor="end") if x > left + 80 else text(x + 9, y + 12, f"IDF1 {row['accuracy']:.0f} %"))
    body.append(text(16, 46, "frames per second, measured; the line: as planned", "soft small"))
    return sheet("AI City: planned and measured rates", (420, 372), body)


def draw(out):
    document = json.loads(pathlib.Path(f"{out}.json").read_text())
    folder = pathlib.Path(out).parent
    (folder / "aicity-setups.svg").write_text(setups(document))
    if document.get("rates"):
        (folder / "aicity-rates.svg").write_text(rates(document))
    if judged(document.get("expected", [])):
        (folder / "aicity-expected.svg").write_text(expected(document))


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "docs/benchmarks/aicity-plans"))
