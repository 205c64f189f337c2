// The plan of a run as a drawing: a lane for each worker, by tier; stages from the sources on the left to the sinks on the right.
import { bytes, classOf, milliseconds, percent, rate, say } from "./show.js";

const SPACE = "http://www.w3.org/2000/svg";
const NODE = { width: 176, height: 74, gap: 44, above: 12 };
const LABELS = 104;
const PADDING = 12;

function shape(tag, attributes = {}, text) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const set = (node, name, value) => {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
};

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// How many stages are before each, on the longest way.
function depths(stages, links) {
  const depth = new Map(stages.map((stage) => [stage.stage, 0]));
  for (let round = 0; round < stages.length; round += 1) {
    let changed = false;
    for (const { from, to } of links) {
      if (depth.has(from) && depth.has(to) && depth.get(to) < depth.get(from) + 1) {
        depth.set(to, depth.get(from) + 1);
        changed = true;
      }
    }
    if (!changed) break;
  }
  return depth;
}

// Where everything is: lanes of workers, and stages in them.
function layout(figures) {
  const depth = depths(figures.stages, figures.links);
  const first = (worker) => Math.min(...figures.stages.filter((one) => one.worker === worker).map((one) => depth.get(one.stage)));
  const used = figures.workers.filter((worker) => figures.stages.some((stage) => stage.worker === worker.worker));
  const tiers = [...new Set([...used].sort((a, b) => first(a.worker) - first(b.worker)).map((worker) => worker.tier))];
  const sorted = [...used].sort(
    (a, b) => tiers.indexOf(a.tier) - tiers.indexOf(b.tier) || first(a.worker) - first(b.worker) || a.worker.localeCompare(b.worker),
  );
  const places = new Map();
  const lanes = [];
  let top = 0;
  for (const worker of sorted) {
    const rows = new Map();
    for (const stage of figures.stages.filter((one) => one.worker === worker.worker)) {
      const column = depth.get(stage.stage);
      const row = rows.get(column) ?? 0;
      rows.set(column, row + 1);
      places.set(stage.stage, {
        x: LABELS + PADDING + column * (NODE.width + NODE.gap),
        y: top + PADDING + row * (NODE.height + NODE.above),
      });
    }
    const height = Math.max(...rows.values()) * (NODE.height + NODE.above) - NODE.above + 2 * PADDING;
    lanes.push({ worker, top, height });
    top += height + 6;
  }
  const columns = Math.max(...depth.values(), 0) + 1;
  const width = LABELS + 2 * PADDING + columns * (NODE.width + NODE.gap) - NODE.gap;
  return { lanes, places, width, height: Math.max(top - 6, 1) };
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + NODE.width, from.y + NODE.height / 2, to.x, to.y + NODE.height / 2];
  const bend = Math.max(24, Math.abs(x2 - x1) / 2);
  return { path: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, x: (x1 + x2) / 2, y: (y1 + y2) / 2 };
}

export class Plan {
  constructor(place) {
    this.place = place;
    this.drawn = "";
  }

  show(figures) {
    const drawn = JSON.stringify([
      figures.stages.map((one) => [one.stage, one.worker, one.variant]),
      figures.links.map((link) => [link.from, link.to, link.input]),
      figures.workers.map((one) => [one.worker, one.tier]),
    ]);
    if (drawn !== this.drawn) {
      this.#draw(figures);
      this.drawn = drawn;
    }
    this.#update(figures);
  }

  #draw(figures) {
    const { lanes, places, width, height } = layout(figures);
    const picture = shape("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-labelledby": "plan-name plan-words", class: "plan",
    });
    picture.append(shape("title", { id: "plan-name" }, "The stages of the plan on their workers"));
    this.words = shape("desc", { id: "plan-words" });
    picture.append(this.words);
    const ends = shape("marker", {
      id: "end", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto", markerUnits: "userSpaceOnUse",
    });
    ends.append(shape("path", { d: "M0 0 8 4 0 8z", class: "end" }));
    picture.append(ends);
    this.lanes = new Map();
    lanes.forEach(({ worker, top, height: tall }, at) => {
      const lane = shape("g", { class: "lane" });
      lane.append(shape("rect", { x: 0.5, y: top + 0.5, width: width - 1, height: tall - 1, rx: 8 }));
      const isFirst = lanes.findIndex((other) => other.worker.tier === worker.tier) === at;
      if (isFirst) lane.append(shape("text", { x: 12, y: top + 20, class: "tier" }, short(worker.tier, 12)));
      lane.append(shape("text", { x: 12, y: top + 40, class: "worker" }, short(worker.worker, 13)));
      const [place, busy] = [shape("text", { x: 12, y: top + 56, class: "small" }), shape("text", { x: 12, y: top + 72, class: "small" })];
      lane.append(place, busy);
      this.lanes.set(worker.worker, { place, busy });
      picture.append(lane);
    });
    this.ways = [];
    const above = shape("g");
    for (const link of figures.links) {
      const [from, to] = [places.get(link.from), places.get(link.to)];
      if (!from || !to) continue;
      const { path, x, y } = curve(from, to);
      const crosses = link.from_worker !== link.to_worker;
      const line = shape("path", { d: path, class: crosses ? "way crosses" : "way", "marker-end": "url(#end)" });
      picture.append(line);
      if (crosses) {
        const label = shape("text", { x, y: y - 3, class: "flow", "text-anchor": "middle" });
        const second = shape("text", { x, y: y + 11, class: "flow", "text-anchor": "middle" });
        above.append(label, second);
        this.ways.push({ link, label, second });
      }
    }
    this.nodes = new Map();
    for (const stage of figures.stages) {
      const at = places.get(stage.stage);
      if (!at) continue;
      const group = shape("g", { transform: `translate(${at.x} ${at.y})`, class: "node" });
      const whole = shape("title");
      group.append(whole, shape("rect", { class: "box", width: NODE.width, height: NODE.height, rx: 6 }));
      group.append(shape("text", { x: 10, y: 19, class: "name" }, short(stage.stage, 14)));
      const model = stage.variant ?? (stage.operator === stage.stage ? "" : stage.operator);
      group.append(shape("text", { x: 10, y: 35, class: "small" }, short(model, 25)));
      const busy = shape("text", { x: NODE.width - 10, y: 19, class: "small", "text-anchor": "end" });
      const flow = shape("text", { x: 10, y: 53, class: "numbers" });
      const time = shape("text", { x: NODE.width - 10, y: 53, class: "numbers", "text-anchor": "end" });
      group.append(busy, flow, time);
      const bars = ["queue", "compute", "transfer"].map((name) => {
        const bar = shape("rect", { class: `bar ${name}`, x: 10, y: 61, width: 0, height: 5 });
        group.append(bar);
        return bar;
      });
      this.nodes.set(stage.stage, { group, whole, flow, time, busy, bars });
      picture.append(group);
    }
    picture.append(above);
    const frame = document.createElement("div");
    frame.className = "frame drawing";
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", "Drawing of the plan; the table of stages has the same content");
    frame.append(picture);
    this.place.replaceChildren(frame);
  }

  #update(figures) {
    const silent = new Set(figures.sources.filter((one) => one.state === "silent").map((one) => one.stage));
    const behind = new Set(figures.sources.filter((one) => one.state === "behind").map((one) => one.stage));
    const longest = Math.max(1e-9, ...figures.stages.map((one) => one.queue.p50_ms + one.compute.p50_ms + one.transfer.p50_ms));
    for (const stage of figures.stages) {
      const node = this.nodes.get(stage.stage);
      if (!node) continue;
      const parts = [stage.queue.p50_ms, stage.compute.p50_ms, stage.transfer.p50_ms];
      const sum = parts[0] + parts[1] + parts[2];
      const out = stage.out_per_second > 0 ? stage.out_per_second : stage.in_per_second;
      say(node.flow, rate(out));
      say(node.time, milliseconds(sum));
      // Beside a long name there is no room for the word.
      const word = stage.stage.length > 10 ? "" : "busy ";
      say(node.busy, stage.busy === null ? "" : `${word}${percent(stage.busy * 100)}`);
      const limits = figures.limit === stage.stage;
      const standing = silent.has(stage.stage) ? "node silent" : behind.has(stage.stage) ? "node behind" : limits ? "node limits" : "node";
      set(node.group, "class", standing);
      let left = 10;
      node.bars.forEach((bar, at) => {
        const width = ((NODE.width - 20) * parts[at]) / longest;
        set(bar, "x", left.toFixed(1));
        set(bar, "width", Math.max(0, width).toFixed(1));
        left += width;
      });
      const times = ["queue", "compute", "transfer"].map((name) => `${name} ${milliseconds(stage[name].p50_ms) || "0 ms"}`);
      say(node.whole, [
        `${stage.stage} on ${stage.cluster_worker ?? "no worker yet"}`, stage.variant ?? "", `${rate(stage.in_per_second)} in`,
        `${rate(stage.out_per_second)} out`, times.join(", "), limits ? "limits the rate" : "",
      ].filter(Boolean).join("; "));
    }
    for (const { link, label, second } of this.ways) {
      const now = figures.links.find((one) => one.from === link.from && one.to === link.to && one.input === link.input);
      if (!now) continue;
      say(label, now.per_second > 0 ? `${bytes(now.bytes_per_second)}/s` : "");
      say(second, now.per_second > 0 ? milliseconds(now.transfer.p50_ms) : "");
    }
    for (const worker of figures.workers) {
      const lane = this.lanes.get(worker.worker);
      if (!lane) continue;
      const place = worker.cluster_worker;
      say(lane.place, short(place === null ? "no worker yet" : place === worker.worker ? "" : `on ${place}`, 15));
      say(lane.busy, worker.busy_percent === null ? "" : `busy ${percent(worker.busy_percent)}`);
    }
    const text = figures.stages.map((one) => `${one.stage} on ${one.cluster_worker ?? one.worker}`).join(", ");
    say(this.words, figures.limit ? `${text}. ${figures.limit} limits the rate.` : text);
    classOf(this.place, "");
  }
}
