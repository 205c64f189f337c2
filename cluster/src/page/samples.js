// The newest records of each sink: values, pictures, sounds. All of it is somebody's data: it is set as text, and as pictures and sounds
// of known formats, never as markup.
import { element, milliseconds } from "./show.js";

const MOST = 10;
const LARGEST = 400000;
const PICTURES = ["image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif"];
const SOUNDS = ["audio/wav", "audio/flac", "audio/ogg", "audio/mpeg"];

// The column, with the source where it is of one.
const named = (one) => (one.source ? `${one.source}: ${one.name}` : one.name);

function size(bytes) {
  return bytes >= 1024 ? `${Math.round(bytes / 1024)} KiB` : `${bytes} B`;
}

function medium(one) {
  const name = named(one);
  const isText = typeof one.base64 === "string" && /^[A-Za-z0-9+/=]*$/.test(one.base64) && one.base64.length <= LARGEST;
  const address = isText && one.base64 ? `data:${one.media_type};base64,${one.base64}` : null;
  let shown = element("p", { className: "note", text: `${size(one.bytes)} in a format that this page cannot show` });
  if (address && PICTURES.includes(one.media_type)) {
    shown = element("img", { src: address, alt: `${name} of this record`, loading: "lazy" });
  } else if (address && SOUNDS.includes(one.media_type)) {
    shown = element("audio", { src: address, controls: "", preload: "metadata", "aria-label": `${name} of this record` });
  }
  return element("figure", {}, shown, element("figcaption", { text: name }));
}

function card(sample) {
  const verdict = sample.is_right === null ? [] : [
    element("span", { className: `state ${sample.is_right ? "good" : "bad"}`, text: sample.is_right ? "right" : "wrong" }),
  ];
  const values = element("dl");
  for (const one of sample.values) {
    values.append(element("div", {}, element("dt", { text: named(one) }), element("dd", { text: one.value })));
  }
  const head = element("p", { className: "beside" }, ...verdict, ` ${milliseconds(sample.latency_ms)}`);
  return element("li", {}, head, ...sample.media.map(medium), values);
}

export class Samples {
  constructor(place) {
    this.place = place;
    this.sinks = new Map();
    this.last = 0;
    // Sinks whose records here are those of an earlier plan, or of an earlier process of the run.
    this.former = new Set();
    this.round = 0;
    this.plan = null;
    this.seconds = 0;
  }

  // Another run is looked at.
  clear() {
    this.sinks.clear();
    this.former.clear();
    this.last = 0;
    this.round += 1;
    [this.plan, this.seconds] = [null, 0];
    this.place.replaceChildren(element("p", { className: "note", text: "No record has reached a sink yet." }));
  }

  // Records are counted anew by each plan and by each process that goes on with the run: what is asked for is counted anew then, too.
  follow(figures) {
    if (this.plan !== null && (figures.plan_version !== this.plan || figures.seconds < this.seconds)) {
      this.last = 0;
      this.round += 1;
      for (const sink of this.sinks.keys()) this.former.add(sink);
    }
    [this.plan, this.seconds] = [figures.plan_version, figures.seconds];
  }

  // What is new; `isOver`: nothing more comes.
  show(view, isOver) {
    const news = view.sinks.flatMap((sink) => sink.samples.map((one) => one.number));
    this.last = Math.max(this.last, ...news);
    if (this.sinks.size === 0 && news.length === 0) {
      const text = view.is_off
        ? "The workflow forbids to show records (samples: off)."
        : isOver ? "The run has ended: fetch its output with tidemill results." : "No record has reached a sink yet.";
      if (this.place.textContent !== text) this.place.replaceChildren(element("p", { className: "note", text }));
      return;
    }
    if (this.sinks.size === 0) this.place.replaceChildren();
    for (const sink of view.sinks) {
      let list = this.sinks.get(sink.sink);
      if (!list) {
        list = element("ul", { className: "samples", "aria-label": `Records of ${sink.sink}`, tabindex: "0" });
        this.sinks.set(sink.sink, list);
        this.place.append(element("h3", { text: sink.sink }), list);
      }
      if (sink.samples.length > 0 && this.former.delete(sink.sink)) list.replaceChildren();
      for (const sample of [...sink.samples].reverse()) list.prepend(card(sample));
      while (list.childElementCount > MOST) list.lastElementChild.remove();
    }
  }
}
