// A run: its levels, its plan with live figures, its events and its log.
import { part } from "./ask.js";
import { eventTable, showEvents } from "./overview.js";
import { Plan } from "./plan.js";
import { Samples } from "./samples.js";
import {
  bytes, classOf, count, element, milliseconds, money, percent, rate, reasons, say, span, state, Table, Tiles,
} from "./show.js";

const MOST_LINES = 500;
const number = (title, wide) => ({ title, number: true, wide });

export class Run {
  // `act` asks for confirmation and does something; see main.js.
  constructor(act) {
    this.act = act;
    this.at = (id) => document.getElementById(id);
    this.tiles = new Tiles(this.at("run-tiles"));
    this.plan = new Plan(this.at("plan"));
    this.samples = new Samples(this.at("samples"));
    this.levels = new Table(
      this.at("levels"), "Service levels",
      [{ title: "level" }, { title: "now" }, number("measured"), number("wanted"), number("windows missed", true)],
      "The workflow names no service levels.",
    );
    this.stages = new Table(
      this.at("stages"), "Stages",
      [
        { title: "stage" }, { title: "worker" }, { title: "model", wide: true }, number("in"), number("out"), number("queue p50"),
        number("p99", true), number("compute p50"), number("p99", true), number("transfer p50"), number("p99", true), number("busy"),
        number("waiting"), { title: "dropped", wide: true }, number("restarts", true),
      ],
      "The run has no stages yet.",
    );
    this.devices = new Table(
      this.at("devices"), "Models on devices",
      [
        { title: "stage" }, { title: "device" }, number("client p50"), number("network p50"), number("queue p50"),
        number("compute p50"), number("round trips"), number("to it"), number("from it"), number("sessions lost", true),
      ],
      "All models run on the processors of their workers.",
    );
    this.sources = new Table(
      this.at("sources"), "Sources",
      [{ title: "source" }, { title: "state" }, number("wanted"), number("measured"), number("behind")], "Nothing measured yet.",
    );
    this.sinks = new Table(
      this.at("sinks"), "Sinks",
      [{ title: "sink" }, number("records"), number("rate"), number("p50"), number("p99"), number("right"), { title: "each row", wide: true }],
      "Nothing measured yet.",
    );
    this.links = new Table(
      this.at("links"), "Links between workers",
      [{ title: "link" }, number("records"), number("bytes"), number("transfer p50"), number("waiting"), number("sent", true)],
      "No records go from one worker to another.",
    );
    this.roles = new Table(
      this.at("roles"), "Workers of the plan",
      [{ title: "worker" }, { title: "runs on" }, { title: "tier" }, number("busy"), number("predicted"), number("price", true)],
      "The plan has no workers.",
    );
    this.models = new Table(
      this.at("models"), "Models",
      [
        { title: "operator" }, { title: "model" }, { title: "in use" }, number("right"), { title: "measured", wide: true },
        number("samples", true),
      ],
      "The plan has no models.",
    );
    this.changes = new Table(
      this.at("proposal-changes"), "Changes by the proposed plan",
      [{ title: "stage" }, { title: "now" }, { title: "then" }], "The stages stay where they are.",
    );
    this.events = eventTable(this.at("run-events"), "Events of the run");
    this.name = null;
  }

  // Another run is looked at.
  open(name) {
    if (name === this.name) return;
    this.name = name;
    say(this.at("run-way"), name);
    say(this.at("run-title"), name);
    this.at("log").replaceChildren();
    this.samples.clear();
    this.isOver = false;
    classOf(this.at("run-state"), "state");
    say(this.at("run-state"), "");
    say(this.at("run-reason"), "");
    for (const table of [this.levels, this.stages, this.sources, this.sinks, this.links, this.roles, this.models, this.events]) table.show([]);
    this.at("cancel").hidden = true;
    this.at("proposal").hidden = true;
  }

  // Another plan that waits for somebody to decide; null: there is none.
  propose(view, may) {
    const proposal = view?.proposal ?? null;
    this.at("proposal").hidden = proposal === null;
    if (proposal === null) return;
    say(this.at("proposal-reason"), proposal.reason);
    const words = (one) => (one ? [one.worker, one.variant].filter(Boolean).join(", ") : "–");
    const [now, then] = [view.current.stages, proposal.plan.stages].map((all) => new Map(all.map((one) => [one.id, one])));
    const names = [...new Set([...now.keys(), ...then.keys()])];
    const costs = [view.current, proposal.plan].map((plan) => plan.predicted?.cost?.value).map((cost) => (cost === undefined || cost === null ? "–" : `${cost.toFixed(4)} $/h`));
    const rows = names.filter((name) => words(now.get(name)) !== words(then.get(name)))
      .map((name) => ({ key: name, cells: [name, words(now.get(name)), words(then.get(name))] }));
    this.changes.show([...rows, { key: " cost", cells: ["cost, predicted", ...costs] }]);
    const button = this.at("apply");
    button.hidden = !may.operate;
    button.onclick = () => this.act({
      title: `Apply the proposed plan to ${this.name}?`,
      text: "Processes of the new plan start beside those of the present one; then all stages continue from a checkpoint. No record is lost or doubled.",
      yes: "Apply it",
      path: `/v1/runs/${part(this.name)}/replan`,
      method: "POST",
      body: { plan: proposal.plan, apply: true },
      done: "The plan is being applied.",
    });
  }

  // The models of its operators, those that it could use too; null: nothing is known.
  showModels(view) {
    const stages = (view?.current.stages ?? []).filter((one) => one.variant);
    const key = (one) => `${one.operator} ${one.variant}`;
    const known = new Map((view?.models ?? []).map((one) => [key(one), one]));
    for (const one of stages) if (!known.has(key(one))) known.set(key(one), { operator: one.operator, variant: one.variant });
    this.models.show([...known.values()].map((one) => {
      const at = stages.filter((stage) => key(stage) === key(one)).map((stage) => stage.worker);
      const right = one.accuracy_percent ?? null;
      return {
        key: key(one),
        cells: [
          one.operator, one.variant, at.length > 0 ? `on ${at.join(", ")}` : "", right === null ? "" : percent(right),
          one.metric ? `${one.metric} ${Number(one.value.toPrecision(4))}` : "no figure in the profile",
          one.samples ? count(one.samples) : "",
        ],
      };
    }));
  }

  show(run, figures, events, may) {
    const { text, tone } = state(run.state);
    say(this.at("run-state"), text);
    classOf(this.at("run-state"), `state ${tone}`);
    const waits = (run.waits_for ?? []).map((what) => `Waits for ${what}.`);
    const isOver = ["complete", "failed", "cancelled"].includes(run.state);
    const losses = isOver ? [] : (run.losses ?? []).map((one) => {
      const after = one.seconds == null ? ", no record has reached a sink yet" : ` after ${one.seconds.toFixed(1)} s`;
      return `Worker ${one.worker ?? one.role} lost ${one.time}; its classes moved to ${one.moved_to.join(", ")}${after}.`;
    });
    if (losses.length > 0) {
      const more = run.losses_covered ?? 0;
      losses.push(more > 0 ? `${more} more covered.` : "Another loss is not covered until a worker takes its place.");
    }
    say(this.at("run-reason"), [run.reason, ...waits, ...losses].filter(Boolean).join(" "));
    this.isOver = isOver;
    const cancel = this.at("cancel");
    cancel.hidden = isOver || !may.operate;
    cancel.onclick = () => this.act({
      title: `Cancel ${run.name}?`,
      text: "Its processes end. Committed rows of its sinks stay; it cannot continue afterwards.",
      yes: "Cancel run",
      path: `/v1/runs/${part(run.name)}`,
      method: "DELETE",
      done: `${run.name} is being cancelled.`,
    });
    this.samples.follow(figures);
    this.#tiles(run, figures, isOver);
    this.#levels(figures);
    if (figures.stages.length > 0) this.plan.show(figures);
    this.#stages(figures);
    showEvents(this.events, events.filter((event) => event.run === run.name).slice(-50));
  }

  #tiles(run, figures, isOver) {
    const given = figures.sources.reduce((sum, one) => sum + one.per_second, 0);
    const arrives = figures.sinks.reduce((sum, one) => sum + one.per_second, 0);
    const slowest = figures.sinks.reduce((most, one) => (one.latency.p99_ms > (most?.latency.p99_ms ?? 0) ? one : most), null);
    const { now, predicted } = figures.cost;
    const letters = run.emitted > 0 ? percent((run.dead_letters * 100) / run.emitted) : "";
    this.tiles.show([
      ["From sources", count(run.emitted), isOver ? "" : `${rate(given)} now`],
      ["At sinks", count(run.arrived), isOver ? "" : `${rate(arrives)} now`],
      ["Latency", milliseconds(slowest?.latency.p50_ms) || "–", slowest ? `p99 ${milliseconds(slowest.latency.p99_ms)} at ${slowest.sink}` : ""],
      ["Dead letters", count(run.dead_letters), letters, run.dead_letters > 0 ? "warn" : ""],
      ["Restarts of slots", count(run.restarts), "", run.restarts > 0 ? "warn" : ""],
      ["Cost now", isOver ? "–" : money(now) || "–", predicted === null ? "no prediction" : `predicted ${money(predicted)}`],
      ["Time", span(run.seconds) || "–", `plan ${figures.plan_version}`],
    ]);
  }

  #levels(figures) {
    const value = (level, of) => {
      if (of === null) return "";
      return level.level === "rate" ? rate(of) : level.level === "accuracy" ? percent(of) : milliseconds(of);
    };
    this.levels.show(figures.levels.map((level) => {
      const name = level.percentile === null ? level.level : `${level.level} p${level.percentile}`;
      const word = level.is_missed === null ? "no evidence yet" : level.is_missed ? "MISSED" : "met";
      const bound = level.level === "latency" ? "below" : "at least";
      return {
        key: name,
        cells: [
          name, state(word), value(level, level.measured), `${bound} ${value(level, level.wanted)}`,
          `${count(level.windows_missed)} of ${count(level.windows)}`,
        ],
      };
    }));
  }

  #stages(figures) {
    this.stages.show(figures.stages.map((one) => {
      const lost = reasons({ ...one.drops, ...one.dead_letters });
      const busy = one.busy === null ? "" : percent(one.busy * 100);
      const limits = figures.limit === one.stage;
      return {
        key: one.stage,
        cells: [
          one.stage, one.cluster_worker ?? "no worker yet", one.variant ?? "",
          one.records_in > 0 ? rate(one.in_per_second) : "", one.records_out > 0 ? rate(one.out_per_second) : "",
          milliseconds(one.queue.p50_ms), milliseconds(one.queue.p99_ms), milliseconds(one.compute.p50_ms),
          milliseconds(one.compute.p99_ms), milliseconds(one.transfer.p50_ms), milliseconds(one.transfer.p99_ms),
          limits ? { text: `${busy} limits`, tone: "warn" } : busy, one.waiting > 0 ? count(one.waiting) : "", lost,
          one.restarts > 0 ? count(one.restarts) : "",
        ],
      };
    }));
    this.devices.show(figures.stages.filter((one) => one.on_device).map(({ stage, on_device: on }) => ({
      key: stage,
      cells: [
        stage, on.device, milliseconds(on.client.p50_ms), milliseconds(on.network.p50_ms), milliseconds(on.queue.p50_ms),
        milliseconds(on.compute.p50_ms), on.round_trips_per_batch === null ? "" : on.round_trips_per_batch.toFixed(1),
        `${bytes(on.sent_bytes_per_second)}/s`, `${bytes(on.received_bytes_per_second)}/s`,
        on.sessions_lost > 0 ? count(on.sessions_lost) : "",
      ],
    })));
    this.sources.show(figures.sources.map((one) => ({
      key: one.stage,
      cells: [
        one.stage, state(one.state), one.wanted_per_second === null ? "all" : rate(one.wanted_per_second), rate(one.per_second),
        one.behind_seconds >= 0.1 ? span(one.behind_seconds) : "",
      ],
    })));
    this.sinks.show(figures.sinks.map((one) => ({
      key: one.sink,
      cells: [
        one.sink, count(one.records), rate(one.per_second), milliseconds(one.latency.p50_ms), milliseconds(one.latency.p99_ms),
        percent(one.accuracy_percent), one.promise,
      ],
    })));
    const between = figures.links.filter((one) => one.from_worker !== one.to_worker);
    this.links.show(between.map((one) => ({
      key: `${one.from} ${one.to} ${one.input}`,
      cells: [
        `${one.from} → ${one.to}`, rate(one.per_second), `${bytes(one.bytes_per_second)}/s`, milliseconds(one.transfer.p50_ms),
        one.waiting > 0 ? count(one.waiting) : "", bytes(one.bytes),
      ],
    })));
    this.roles.show(figures.workers.map((one) => ({
      key: one.worker,
      cells: [
        one.worker, one.cluster_worker ?? "no worker yet", one.tier, percent(one.busy_percent), percent(one.predicted_percent),
        money(one.price),
      ],
    })));
  }

  // Lines that are new; the view stays at the end if it was there.
  addLines(lines) {
    const log = this.at("log");
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    for (const line of lines) {
      const who = line.role ?? "controller";
      const where = line.role && line.worker && line.worker !== who ? ` on ${line.worker}` : "";
      const stages = line.stages?.length ? ` (${line.stages.join(", ")})` : "";
      const tone = { ERROR: "bad", WARN: "warn" }[line.level] ?? "";
      log.append(element(
        "p", { className: tone, title: line.time ?? "" },
        element("b", { text: `${who}${where}${stages} ` }), line.level ? `${line.level} ` : "", line.line,
      ));
    }
    while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}
