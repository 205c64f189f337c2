//! Random workflows of relational operators and trackers, with machines and figures for them, as files. A run with any
//! plan of them gives the same results as a run without a plan.
use std::fmt::Write;
use tidemill_random::Random;

/// Frames of each source.
const FRAMES: usize = 60;
/// Boxes of a frame.
const BOXES: usize = 4;

/// The files of a random workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// `workflow.yaml`; it reads `a.csv` and `b.csv` and writes into `out`.
    pub workflow: String,
    /// `infrastructure.yaml`
    pub infrastructure: String,
    /// `profile.yaml`
    pub profile: String,
    /// Content by name of each file that a source reads.
    pub inputs: Vec<(String, String)>,
    /// Names of the files that sinks write, in `out`.
    pub outputs: Vec<String>,
}

/// The output of a source or an operator.
#[derive(Debug, Clone)]
struct Stream {
    id: String,
    /// Text and int64 columns.
    keys: Vec<&'static str>,
    has_boxes: bool,
    /// Rows may be revised, which only sinks accept here.
    is_revised: bool,
    /// It has pairs: a join of these would have too many to check.
    has_pairs: bool,
    is_read: bool,
}

/// Draws files.
pub fn files(random: &mut Random) -> Files {
    let mut draw = Draw {
        random,
        streams: Vec::new(),
        operators: String::new(),
        services: String::new(),
        messages: String::new(),
    };
    let mut inputs = Vec::new();
    let mut sources = String::new();
    for id in ["a", "b"].into_iter().take(1 + draw.random.below(2)) {
        let key = ["", "key: camera, ", "key: site, ", "key: n, "][draw.random.below(4)];
        let columns = "{camera: text, site: text, n: int64, at: int64, v: float64, frame: int64, left: float64, top: float64, \
                       width: float64, height: float64, score: float64}";
        let _ = writeln!(
            sources,
            "  - {{id: {id}, kind: csv, {key}options: {{path: {id}.csv, event_time: at, columns: {columns}}}}}"
        );
        inputs.push((format!("{id}.csv"), rows(draw.random)));
        let keys = vec!["camera", "site", "n"];
        draw.streams.push(Stream {
            id: id.into(),
            keys,
            has_boxes: true,
            is_revised: false,
            has_pairs: false,
            is_read: false,
        });
    }
    for number in 0..2 + draw.random.below(4) {
        draw.operator(number);
    }
    let mut sinks = String::new();
    let mut outputs = Vec::new();
    for stream in 0..draw.streams.len() {
        let (id, is_read) = (draw.streams[stream].id.clone(), draw.streams[stream].is_read);
        let is_source = inputs.iter().any(|(file, _)| *file == format!("{id}.csv"));
        if !is_read || !is_source && draw.random.chance(0.2) {
            let _ = writeln!(
                sinks,
                "  - {{id: out-{id}, kind: jsonl, input: {id}, options: {{path: out/{id}.jsonl, overwrite: true}}}}"
            );
            outputs.push(format!("{id}.jsonl"));
        }
    }
    let list = |name: &str, items: &str| match items {
        "" => format!("{name}: []\n"),
        items => format!("{name}:\n{items}"),
    };
    let operators = &draw.operators;
    let workflow = format!(
        "version: 1\nname: drawn\nsources:\n{sources}operators:\n{operators}sinks:\n{sinks}slo: {{rate: 1000/s}}\nrun: {{tick: 10ms}}\n"
    );
    let profile = format!(
        "version: 1\nworkflow: {{name: drawn}}\nmachines: [{{worker_type: e, how: predicted}}, {{worker_type: c, how: predicted}}]\n\
         {}{}",
        list("services", &draw.services),
        list("messages", &draw.messages)
    );
    Files { workflow, infrastructure: infrastructure(random), profile, inputs, outputs }
}

struct Draw<'a> {
    random: &'a mut Random,
    streams: Vec<Stream>,
    operators: String,
    services: String,
    messages: String,
}

impl Draw<'_> {
    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.below(of.len())]
    }

    /// A stream that an operator may read.
    fn input(&mut self, fits: impl Fn(&Stream) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.streams.len())
            .filter(|at| !self.streams[*at].is_revised && fits(&self.streams[*at]))
            .collect();
        // The newest ones mostly, so that chains become long.
        let newest = all.last().copied()?;
        Some(if self.random.chance(0.6) { newest } else { self.one_of(&all) })
    }

    fn operator(&mut self, number: usize) {
        let id = format!("o{number}");
        let kind = self.one_of(&["filter", "map", "window", "window", "distinct", "join", "track"]);
        let drawn = match kind {
            "filter" => self.filter(),
            "map" => self.map(),
            "window" => self.window(),
            "distinct" => self.distinct(),
            "join" => self.join(),
            _ => self.track(),
        };
        let Some((inputs, options, stream)) = drawn else { return };
        let names: Vec<String> = inputs.iter().map(|at| self.streams[*at].id.clone()).collect();
        let reads = match &names[..] {
            [one] => format!("input: {one}"),
            several => format!("inputs: [{}]", several.join(", ")),
        };
        let _ = writeln!(self.operators, "  - {{id: {id}, kind: {kind}, {reads}, options: {{{options}}}}}");
        for (port, name) in names.iter().enumerate() {
            let bytes = 10 + self.random.below(500);
            let _ = writeln!(
                self.messages,
                "  - {{from: {name}, to: {id}, input: {port}, bytes_per_record: {bytes}B}}"
            );
        }
        if self.random.chance(0.75) {
            for (worker, factor) in [("e", 1.0), ("c", 0.4)] {
                let micros = (factor * self.random.uniform(50.0, 1_600.0)).round();
                let _ = writeln!(
                    self.services,
                    "  - {{operator: {id}, worker_type: {worker}, how: predicted, batches: [{{batch: 1, p50: {micros}us, p75: {micros}us, \
                     p90: {micros}us}}]}}"
                );
            }
        }
        inputs.iter().for_each(|at| self.streams[*at].is_read = true);
        self.streams.push(Stream { id, ..stream });
    }

    fn filter(&mut self) -> Option<(Vec<usize>, String, Stream)> {
        let at = self.input(|stream| stream.keys.contains(&"n"))?;
        let condition = self.one_of(&["n % 3 != 0", "n > 40", "n < 190"]);
        Some((vec![at], format!("where: {condition}"), Stream { is_read: false, ..self.streams[at].clone() }))
    }

    fn map(&mut self) -> Option<(Vec<usize>, String, Stream)> {
        let at = self.input(|stream| stream.keys.contains(&"camera") && stream.keys.contains(&"site"))?;
        let before = self.streams[at].clone();
        let options = self.one_of(&[
            "columns: {camera: \"camera + '!'\"}",
            "columns: {site: camera}",
            "columns: {camera: site}",
            "columns: {camera: camera}",
            "columns: {place: site}",
            "columns: {}, keep: [camera, site]",
            "columns: {site: camera}, keep: [camera]",
        ]);
        let is_short = options.contains("keep");
        let keys = if is_short { vec!["camera", "site"] } else { before.keys.clone() };
        let has_boxes = before.has_boxes && !is_short;
        Some((vec![at], options.into(), Stream { keys, has_boxes, is_read: false, ..before }))
    }

    fn window(&mut self) -> Option<(Vec<usize>, String, Stream)> {
        let at = self.input(|stream| !stream.keys.is_empty())?;
        let keys = self.streams[at].keys.clone();
        let mut groups = vec![self.one_of(&keys)];
        if self.random.chance(0.3) {
            let other = self.one_of(&keys);
            groups.extend((!groups.contains(&other)).then_some(other));
        }
        if self.random.chance(0.15) {
            groups.clear();
        }
        let mut aggregates = "{function: count, as: rows}".to_owned();
        // A computed column may have the name of a key.
        if keys.contains(&"n") && !groups.contains(&"n") && self.random.chance(0.5) {
            let function = self.one_of(&["sum", "max"]);
            let _ = write!(aggregates, ", {{function: {function}, column: n, as: n}}");
            groups.push("n");
        }
        let is_computed = aggregates.contains("as: n");
        let by: Vec<&str> = groups.iter().copied().filter(|group| !(is_computed && *group == "n")).collect();
        let size = self.one_of(&["500ms", "1s", "2s, slide: 1s"]);
        let options = format!("size: {size}, group_by: [{}], aggregates: [{aggregates}]", by.join(", "));
        let stream = Stream {
            id: String::new(),
            keys: groups,
            has_boxes: false,
            is_revised: false,
            has_pairs: false,
            is_read: false,
        };
        Some((vec![at], options, stream))
    }

    fn distinct(&mut self) -> Option<(Vec<usize>, String, Stream)> {
        let at = self.input(|stream| stream.has_boxes)?;
        let keys = self.streams[at].keys.clone();
        let (of, group) = (self.one_of(&keys), self.one_of(&keys));
        let group = if self.random.chance(0.85) { group } else { "" };
        let options = format!("of: {of}, group_by: [{group}], start: at, end: at, size: 1s, as: different");
        let stream = Stream {
            id: String::new(),
            keys: Vec::new(),
            has_boxes: false,
            is_revised: true,
            has_pairs: false,
            is_read: false,
        };
        Some((vec![at], options, stream))
    }

    fn join(&mut self) -> Option<(Vec<usize>, String, Stream)> {
        let left = self.input(|stream| !stream.keys.is_empty() && !stream.has_pairs)?;
        let right = self.input(|stream| !stream.keys.is_empty() && !stream.has_pairs)?;
        let common: Vec<&'static str> = self.streams[left]
            .keys
            .iter()
            .copied()
            .filter(|key| self.streams[right].keys.contains(key))
            .collect();
        if common.is_empty() {
            return None;
        }
        let key = self.one_of(&common);
        let within = self.one_of(&["0ms", "60ms", "120ms"]);
        let mut keys = self.streams[left].keys.clone();
        let more: Vec<&'static str> =
            self.streams[right].keys.iter().copied().filter(|name| !keys.contains(name)).collect();
        keys.extend(more);
        let options = format!("key: {key}, within: {within}, same_names: keep_first");
        // Its rows have the boxes of the left side, several times.
        let stream = Stream {
            id: String::new(),
            keys,
            has_boxes: false,
            is_revised: false,
            has_pairs: true,
            is_read: false,
        };
        Some((vec![left, right], options, stream))
    }

    fn track(&mut self) -> Option<(Vec<usize>, String, Stream)> {
        let at = self.input(|stream| stream.has_boxes)?;
        let camera = self.one_of(&["camera", "site"]);
        let gives = self.one_of(&["boxes", "tracks"]);
        let keys = if gives == "boxes" { self.streams[at].keys.clone() } else { vec!["camera"] };
        let options = format!("gives: {gives}, camera: {camera}, patience: 3");
        let stream = Stream {
            id: String::new(),
            keys,
            has_boxes: false,
            is_revised: false,
            has_pairs: false,
            is_read: false,
        };
        Some((vec![at], options, stream))
    }
}

/// Boxes that move, of some cameras at some sites; the boxes of a frame have one time.
fn rows(random: &mut Random) -> String {
    let mut text = "camera,site,n,at,v,frame,left,top,width,height,score\n".to_owned();
    let (cameras, sites) = (2 + random.below(9), 1 + random.below(4));
    for frame in 0..FRAMES {
        for number in 0..BOXES {
            let (camera, site) = (random.below(cameras), random.below(sites));
            let (n, v) = (frame * BOXES + number, random.unit());
            let (left, top) = (number as f64 * 200.0 + frame as f64 * 2.0, 40.0);
            let at = 1_700_000_000_000_i64 + frame as i64 * 50;
            let _ = writeln!(text, "c{camera},place {site}x,{n},{at},{v:.3},{frame},{left},{top},80,60,0.9");
        }
    }
    text
}

fn infrastructure(random: &mut Random) -> String {
    let locations = ["", "locations: [north, south], "][random.below(2)];
    let (edges, clouds) = (1 + random.below(4), 1 + random.below(3));
    let mut text = format!(
        "version: 1\nname: drawn\ntiers:\n  - {{id: edge, {locations}workers: [{{type: e, count: {edges}, price: 0.01 $/h}}]}}\n"
    );
    if random.chance(0.6) {
        let price = [0.01, 0.5][random.below(2)];
        let _ = writeln!(text, "  - {{id: cloud, workers: [{{type: c, count: {clouds}, price: 0.03 $/h}}]}}");
        let _ = writeln!(text, "links:\n  - {{from: edge, to: cloud, price: {price} $/GiB, delay: 2ms}}");
        if !locations.is_empty() && random.chance(0.3) {
            text = text.replace("locations: [north, south], ", "");
        }
    }
    text
}
