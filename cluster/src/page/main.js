// Who looks, at what, and how often the controller is asked.
import { ask, part, Refused, token } from "./ask.js";
import { Overview } from "./overview.js";
import { Run } from "./run.js";
import { say } from "./show.js";

const at = (id) => document.getElementById(id);
const MOST_EVENTS = 500;
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

let me = null;
let events = [];
let asking = new AbortController();
const may = { operate: false };
const overview = new Overview(act);
const run = new Run(act);

// Which part of the page is looked at: a run by its name, or none.
function looked() {
  const found = /^#\/runs\/([^/]+)$/.exec(location.hash);
  return found ? decodeURIComponent(found[1]) : null;
}

function tell(text) {
  say(at("told"), "");
  requestAnimationFrame(() => say(at("told"), text));
}

function trouble(text) {
  at("trouble").hidden = !text;
  say(at("trouble"), text ?? "");
}

function route(isByHand) {
  const name = me ? looked() : null;
  at("login").hidden = me !== null;
  at("overview").hidden = !me || name !== null;
  at("run").hidden = !me || name === null;
  document.title = name ? `${name} – Tidemill` : "Tidemill";
  if (name) run.open(name);
  if (!me) at("token").focus();
  else if (isByHand) (name ? at("run-title") : at("main")).focus();
}

// Asks before something is done that cannot be taken back.
function act({ title, text, yes, path, method, body, done }) {
  const box = at("confirm");
  say(at("confirm-title"), title);
  say(at("confirm-text"), text);
  say(at("confirm-yes"), yes);
  at("confirm-no").onclick = () => box.close();
  at("confirm-yes").onclick = async () => {
    box.close();
    try {
      await ask(path, { method, body });
      trouble(null);
      tell(done);
      wake();
    } catch (error) {
      fail(error);
    }
  };
  box.showModal();
  at("confirm-no").focus();
}

function fail(error) {
  if (error.name === "AbortError") return;
  if (error instanceof Refused && error.status === 401) {
    leave();
    say(at("token-wrong"), error.message);
    return;
  }
  trouble(error.message);
}

async function enter(shown) {
  me = await ask("/v1/me", { as: shown });
  token.set(shown);
  may.operate = me.role !== "viewer";
  say(at("who"), `${me.name}, ${me.role}`);
  at("leave").hidden = false;
  at("token").value = "";
  say(at("token-wrong"), "");
  asking = new AbortController();
  route(true);
  look(asking.signal);
  listen(asking.signal);
  read(asking.signal);
  sample(asking.signal);
}

function leave() {
  asking.abort();
  token.forget();
  me = null;
  events = [];
  say(at("who"), "");
  at("leave").hidden = true;
  if (at("confirm").open) at("confirm").close();
  route(false);
}

let wake = () => {};

// Waits, but not longer than until something was done or another run is looked at.
const soon = (milliseconds) => Promise.race([pause(milliseconds), new Promise((done) => { wake = done; })]);

// Runs and workers, or a run and its figures.
async function look(signal) {
  while (!signal.aborted) {
    if (document.hidden) {
      await pause(500);
      continue;
    }
    const name = looked();
    try {
      if (name === null) {
        const all = ["/v1/runs", "/v1/jobs", "/v1/workers", "/v1/links"].map((path) => ask(path, { signal }));
        const [runs, jobs, workers, links] = await Promise.all(all);
        if (looked() === null && !signal.aborted) overview.show(runs, jobs, workers, links, events, may);
      } else {
        const path = `/v1/runs/${part(name)}`;
        const [view, figures] = await Promise.all([ask(path, { signal }), ask(`${path}/figures`, { signal })]);
        if (looked() === name && !signal.aborted) run.show(view, figures, events, may);
      }
      trouble(null);
      if (name !== null) await propose(name, signal);
    } catch (error) {
      if (!signal.aborted) fail(error);
    }
    await soon(name === null ? 1500 : 1000);
  }
}

// Whether another plan is proposed for the run, now and then; a controller that proposes none is not asked again.
const proposing = { asks: true, next: 0, of: null };

async function propose(name, signal) {
  if (!proposing.asks || (proposing.of === name && Date.now() < proposing.next)) return;
  [proposing.of, proposing.next] = [name, Date.now() + 5000];
  try {
    const view = await ask(`/v1/runs/${part(name)}/replan`, { signal });
    if (looked() !== name) return;
    run.propose(view, may);
    run.showModels(view);
  } catch (error) {
    if (error.status === 404) proposing.asks = false;
    run.propose(null, may);
    run.showModels(null);
  }
}

// Events, as they happen.
async function listen(signal) {
  let after = 0;
  let wait = 0;
  while (!signal.aborted) {
    try {
      const news = await ask(`/v1/events?after=${after}&wait=${wait}`, { signal, patience: 60000 });
      if (signal.aborted) return;
      events.push(...news);
      events = events.slice(-MOST_EVENTS);
      after = events.at(-1)?.number ?? after;
      wait = 20;
      if (news.length > 0) wake();
    } catch {
      await pause(2000);
    }
  }
}

// Lines of the log of the run that is looked at.
async function read(signal) {
  let [name, after] = [null, 0];
  while (!signal.aborted) {
    const now = looked();
    if (now !== name) [name, after] = [now, 0];
    if (name !== null && !document.hidden) {
      try {
        const lines = await ask(`/v1/runs/${part(name)}/logs?after=${after}`, { signal });
        if (signal.aborted) return;
        if (looked() === name) {
          run.addLines(lines.slice(-500));
          after = lines.at(-1)?.number ?? after;
        }
      } catch {
        // `look` tells what is wrong.
      }
    }
    await pause(1000);
  }
}

// The newest records of the run that is looked at.
async function sample(signal) {
  while (!signal.aborted) {
    const name = looked();
    if (name !== null && name === run.name && !document.hidden) {
      try {
        const { last, round } = run.samples;
        const view = await ask(`/v1/runs/${part(name)}/samples?after=${last}`, { signal });
        if (signal.aborted) return;
        // An answer of the plan before would set the number that the next one begins behind.
        if (looked() === name && run.samples.round === round) run.samples.show(view, run.isOver);
      } catch {
        // `look` tells what is wrong.
      }
    }
    for (let n = 0; n < 5 && looked() === name && !signal.aborted; n += 1) await pause(500);
  }
}

at("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  say(at("token-wrong"), "");
  try {
    await enter(at("token").value.trim());
  } catch (error) {
    say(at("token-wrong"), error.message);
    at("token").focus();
  }
});
at("leave").addEventListener("click", leave);
at("skip").addEventListener("click", (event) => {
  event.preventDefault();
  at("main").focus();
});
addEventListener("hashchange", () => {
  route(true);
  wake();
});

const kept = token.get();
if (kept) {
  enter(kept).catch((error) => {
    route(false);
    fail(error);
  });
} else {
  route(false);
}
