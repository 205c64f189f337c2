// Elements, tables that keep their rows, and numbers as people read them. Everything from outside is set as text.

// An element with attributes, classes and children.
export function element(tag, { className, text, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Sets a text only if it is another one, so that nothing is told again to screen readers.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function classOf(node, name) {
  if (node.className !== name) node.className = name;
}

// A table in a frame that scrolls by itself. Rows have a key and keep their elements, so that the focus stays where it is.
// A column is { title, number, wide }; a cell is a text or { text, tone, href, act, label }.
export class Table {
  constructor(place, label, columns, empty) {
    this.columns = columns;
    this.rows = new Map();
    const head = element("tr");
    for (const column of columns) {
      const cell = element("th", { scope: "col", className: Table.#class(column), text: column.title });
      if (!column.title) cell.append(element("span", { className: "unseen", text: "Actions" }));
      head.append(cell);
    }
    this.body = element("tbody");
    this.empty = element("p", { className: "note", text: empty });
    this.frame = element(
      "div",
      { className: "frame", role: "region", "aria-label": label, tabindex: "0" },
      element("table", {}, element("thead", {}, head), this.body),
    );
    place.replaceChildren(this.frame, this.empty);
  }

  static #class(column) {
    return [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim();
  }

  show(rows) {
    this.frame.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    const keys = new Set(rows.map((row) => row.key));
    for (const [key, row] of this.rows) {
      if (!keys.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    rows.forEach((row, at) => {
      let line = this.rows.get(row.key);
      if (!line) {
        line = element("tr");
        this.columns.forEach((column, first) => {
          const cell = element(first === 0 ? "th" : "td", { className: Table.#class(column) });
          if (first === 0) cell.scope = "row";
          line.append(cell);
        });
        this.rows.set(row.key, line);
      }
      if (this.body.children[at] !== line) this.body.insertBefore(line, this.body.children[at] ?? null);
      row.cells.forEach((cell, column) => this.#cell(line.children[column], cell));
    });
  }

  #cell(place, cell) {
    const { text = "", tone = "", href, act, label } = typeof cell === "string" ? { text: cell } : (cell ?? {});
    if (act) {
      let button = place.querySelector("button");
      if (!button) {
        button = element("button", { type: "button", className: "small" });
        place.replaceChildren(button);
      }
      say(button, text);
      if (button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
      button.onclick = act;
      return;
    }
    if (href) {
      let link = place.querySelector("a");
      if (!link) {
        link = element("a");
        place.replaceChildren(link);
      }
      if (link.getAttribute("href") !== href) link.setAttribute("href", href);
      say(link, text);
      return;
    }
    if (tone) {
      let mark = place.querySelector("span");
      if (!mark) {
        mark = element("span");
        place.replaceChildren(mark);
      }
      classOf(mark, `state ${tone}`);
      say(mark, text);
      return;
    }
    if (place.firstElementChild) place.replaceChildren();
    say(place, text);
  }
}

// Numbers with their names, side by side.
export class Tiles {
  constructor(place) {
    this.list = element("dl");
    this.all = new Map();
    place.replaceChildren(this.list);
  }

  // name, value, what it is beside, tone
  show(tiles) {
    for (const [name, value, beside = "", tone = ""] of tiles) {
      let tile = this.all.get(name);
      if (!tile) {
        tile = { box: element("div"), value: element("dd", { className: "value" }), beside: element("dd", { className: "beside" }) };
        tile.box.append(element("dt", { text: name }), tile.value, tile.beside);
        this.all.set(name, tile);
        this.list.append(tile.box);
      }
      classOf(tile.box, `tile ${tone}`.trim());
      say(tile.value, value);
      say(tile.beside, beside);
    }
  }
}

function digits(value, places) {
  const text = value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  return text.replaceAll(",", "\u202f");
}

export const count = (value) => digits(value ?? 0, 0);

// Below one with two digits: what comes once a minute does come.
export function rate(value) {
  if (value >= 1000) return `${count(value)}/s`;
  if (value > 0 && value < 0.995) return `${value.toLocaleString("en", { maximumSignificantDigits: 2 })}/s`;
  return `${digits(value ?? 0, value >= 100 ? 0 : 1)}/s`;
}

export const percent = (value) => (value === null || value === undefined ? "" : `${digits(value, value >= 10 ? 0 : 1)} %`);
export const money = (value) => (value === null || value === undefined ? "" : `${digits(value, 4)} $/h`);

export function milliseconds(value) {
  if (!(value > 0)) return "";
  if (value >= 10000) return `${digits(value / 1000, 1)} s`;
  return `${digits(value, value >= 100 ? 0 : value >= 10 ? 1 : 2)} ms`;
}

export function bytes(value) {
  let [left, at] = [value ?? 0, 0];
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (left >= 1024 && at + 1 < names.length) [left, at] = [left / 1024, at + 1];
  return `${digits(left, at > 0 && left < 10 ? 1 : 0)} ${names[at]}`;
}

// Bits per second, as the rates of links are told.
export function bits(value) {
  const units = [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]];
  const [size, unit] = units.find(([least]) => value >= least) ?? [1, "bit/s"];
  return `${digits(value / size, value / size >= 100 ? 0 : 1)} ${unit}`;
}

export function span(seconds) {
  if (!(seconds > 0)) return "";
  if (seconds < 100) return `${digits(seconds, 1)} s`;
  const whole = Math.round(seconds);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  return parts.filter(([n]) => n > 0).slice(0, 2).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

// A point of time in the time of whoever looks.
export function moment(text) {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return text ?? "";
  const today = new Date().toDateString() === time.toDateString();
  return today ? time.toLocaleTimeString() : time.toLocaleString();
}

// Reasons with their counts: `late 3, freshness 12`.
export const reasons = (counts) => Object.entries(counts ?? {}).map(([reason, n]) => `${reason} ${count(n)}`).join(", ");

const TONES = {
  alive: "good", running: "good", met: "good", complete: "done", ended: "done", cancelled: "done", drained: "warn", starting: "warn", waiting: "warn",
  behind: "warn", lost: "bad", failed: "bad", silent: "bad", MISSED: "bad",
};

// A state as a cell: its word, and a colour beside it.
export const state = (word) => ({ text: word, tone: TONES[word] ?? "done" });
