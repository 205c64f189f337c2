// The cluster: runs, workers, events.
import { part } from "./ask.js";
import { bits, bytes, count, milliseconds, moment, rate, span, state, Table, Tiles } from "./show.js";

export class Overview {
  // `act` asks for confirmation and does something; see main.js.
  constructor(act) {
    this.act = act;
    const at = (id) => document.getElementById(id);
    this.tiles = new Tiles(at("overview-tiles"));
    this.runs = new Table(
      at("runs"), "Runs",
      [
        { title: "run" }, { title: "workflow", wide: true }, { title: "state" }, { title: "from sources", number: true, wide: true },
        { title: "at sinks", number: true }, { title: "rate", number: true }, { title: "dead letters", number: true, wide: true },
        { title: "workers", wide: true }, { title: "submitted", wide: true },
      ],
      "No runs yet: tidemill submit WORKFLOW starts one.",
    );
    this.jobs = new Table(
      at("jobs"), "Jobs",
      [
        { title: "job" }, { title: "user" }, { title: "kind", wide: true }, { title: "state" }, { title: "gang", number: true },
        { title: "service, slot-s", number: true, wide: true }, { title: "since", wide: true }, { title: "machines" },
        { title: "because", wide: true },
      ],
      "No jobs yet: tidemill job submit -- COMMAND queues one.",
    );
    this.workers = new Table(
      at("workers"), "Workers",
      [
        { title: "worker" }, { title: "state" }, { title: "tier" }, { title: "location", wide: true }, { title: "type", wide: true },
        { title: "processors", number: true, wide: true }, { title: "memory", number: true, wide: true },
        { title: "heard", wide: true }, { title: "has", wide: true }, { title: "" },
      ],
      "No workers yet: tidemill token creates a token with which one can join.",
    );
    this.ways = new Table(
      at("ways"), "Links between workers",
      [
        { title: "from" }, { title: "to" }, { title: "delay", number: true }, { title: "rate", number: true },
        { title: "in use", number: true }, { title: "known by", wide: true }, { title: "measured", wide: true },
      ],
      "Nothing measured yet: workers start to measure within some seconds.",
    );
    this.events = eventTable(at("events"), "Events");
  }

  show(runs, jobs, workers, links, events, may) {
    const alive = workers.filter((worker) => worker.is_alive);
    const going = runs.filter((run) => ["running", "starting", "waiting"].includes(run.state));
    const lost = workers.length - alive.length;
    this.tiles.show([
      ["Active runs", count(going.length), `${count(runs.length)} in all`],
      ["Workers alive", count(alive.length), lost ? `${count(lost)} lost` : "none lost", lost ? "bad" : ""],
      ["Processors", count(alive.reduce((sum, worker) => sum + worker.capacity.processors, 0)), "of the workers alive"],
      ["Memory", bytes(alive.reduce((sum, worker) => sum + worker.capacity.memory_bytes, 0)), "of the workers alive"],
    ]);
    const order = { waiting: 0, running: 0, starting: 1 };
    const sorted = [...runs].sort(
      (a, b) => (order[a.state] ?? 2) - (order[b.state] ?? 2) || (a.submitted < b.submitted ? 1 : -1),
    );
    this.runs.show(sorted.map((run) => ({
      key: run.name,
      cells: [
        { text: run.name, href: `#/runs/${part(run.name)}` }, run.workflow, state(run.state), count(run.emitted),
        count(run.arrived), run.seconds > 0 ? rate(run.arrived / run.seconds) : "", count(run.dead_letters),
        [...new Set(Object.values(run.placement).filter(Boolean))].join(", "), moment(run.submitted),
      ],
    })));
    const over = (job) => ["complete", "failed", "cancelled"].includes(job.state);
    const open = jobs.filter((job) => !over(job));
    const ended = jobs.filter(over).slice(-20).reverse();
    this.jobs.show([...open, ...ended].map((job) => ({
      key: job.job,
      cells: [
        job.job, job.user, job.kind, state(job.state), count(job.gang), count(Math.round(job.service_seconds)), moment(job.since),
        [...new Set(job.tasks.map((task) => task.worker).filter(Boolean))].join(", "), job.because ?? "",
      ],
    })));
    this.workers.show(workers.map((worker) => {
      const word = worker.is_alive ? (worker.is_drained ? "drained" : "alive") : "lost";
      const drains = !worker.is_drained;
      const button = {
        text: drains ? "Drain" : "Resume",
        label: `${drains ? "Drain" : "Resume"} ${worker.name}`,
        act: () => this.act({
          title: drains ? `Drain ${worker.name}?` : `Give ${worker.name} work again?`,
          text: drains
            ? "Its work moves to other workers and continues there from the last checkpoint; it accepts no new work."
            : "It accepts new work from now on.",
          yes: drains ? "Drain it" : "Give it work",
          path: `/v1/workers/${part(worker.name)}/${drains ? "drain" : "resume"}`,
          method: "POST",
          done: drains ? `${worker.name} is drained.` : `${worker.name} accepts work again.`,
        }),
      };
      const heard = worker.silent_milliseconds;
      return {
        key: worker.name,
        cells: [
          worker.name, state(word), worker.tier ?? "", worker.location ?? "", worker.worker_type ?? "",
          worker.is_alive ? count(worker.capacity.processors) : "", worker.is_alive ? bytes(worker.capacity.memory_bytes) : "",
          heard === null ? "not yet" : heard < 2000 ? "now" : `${span(heard / 1000)} ago`,
          worker.hosts.map(([run, role]) => `${run}/${role}`).join(", "), may.operate ? button : "",
        ],
      };
    }));
    this.ways.show(links.map((link) => ({
      key: `${link.from} ${link.to}`,
      cells: [
        link.from, link.to, milliseconds(link.delay_seconds * 1000), link.bits_per_second === null ? "" : bits(link.bits_per_second),
        link.sent_bits_per_second > 0 ? bits(link.sent_bits_per_second) : "", link.shown_by ?? "", `${span(link.age_seconds)} ago`,
      ],
    })));
    showEvents(this.events, events.slice(-100));
  }
}

export function eventTable(place, label) {
  return new Table(place, label, [{ title: "when" }, { title: "what" }, { title: "kind", wide: true }], "No events yet.");
}

// The newest first.
export function showEvents(table, events) {
  table.show([...events].reverse().map((event) => ({
    key: event.number,
    cells: [moment(event.time), event.text, event.kind.replaceAll("_", " ")],
  })));
}
