//! Figures from the metrics that a run on this machine serves: what changed between two looks.
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use text::{Sample, parse};
use tidemill_app::failure::{Failure, Kind};
use tidemill_cluster::api::RunState;
use tidemill_cluster::figures::{
    CostFigures, LevelFigures, LinkFigures, RunFigures, SinkFigures, SourceFigures, SourceState,
    StageFigures, Times, limit,
};

/// An answer may take so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer.
const MOST: u64 = 64 << 20;
/// A source that is further behind is behind, seconds.
const BEHIND: f64 = 1.0;

#[expect(clippy::disallowed_methods, reason = "rates are of real time")]
fn instant() -> Instant {
    Instant::now()
}

/// An address, and what was there last.
pub(super) struct Scrapes {
    place: String,
    before: Option<(Instant, Table)>,
}

impl Scrapes {
    /// Metrics at `http://HOST:PORT`, with or without `/metrics`.
    ///
    /// # Errors
    /// It is no such address.
    pub(super) fn of(address: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            Failure::new(Kind::Usage, format!("`{address}` {why}")).with_help(
                "write the address that `tidemill run --metrics` tells, such as `http://127.0.0.1:9464`",
            )
        };
        if address.starts_with("https://") {
            return Err(wrong("is served with TLS: `tidemill top RUN` asks a controller"));
        }
        let place = address.strip_prefix("http://").unwrap_or(address);
        let place = place.trim_end_matches('/');
        let place = place.strip_suffix("/metrics").unwrap_or(place);
        match place.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self { place: place.to_owned(), before: None })
            }
            _ => Err(wrong("is no address of metrics")),
        }
    }

    /// What a run does: the one of this name, or the only one there.
    ///
    /// # Errors
    /// Nobody answers, or there is no such run.
    pub(super) fn look(&mut self, run: Option<&str>) -> Result<RunFigures, Failure> {
        let text = self.get().map_err(|error| {
            let text = format!("http://{}/metrics cannot be read: {error}", self.place);
            Failure::new(Kind::Unavailable, text).with_help("look whether the run still goes on")
        })?;
        let now = instant();
        let table = Table(parse(&text));
        let names = table.runs();
        let chosen = match (run, names.len()) {
            (Some(run), _) => names.iter().find(|(_, name)| name == run),
            (None, 0 | 1) => names.first(),
            (None, _) => {
                let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
                let text = format!("several runs are served there: {}", names.join(", "));
                return Err(Failure::new(Kind::Usage, text)
                    .with_help("name one of them: `tidemill top RUN --metrics ...`"));
            }
        };
        let Some((workflow, name)) = chosen else {
            let which = run.map_or_else(|| "any run".to_owned(), |run| format!("run `{run}`"));
            return Err(Failure::new(
                Kind::Unavailable,
                format!("{} serves no metrics of {which}", self.place),
            ));
        };
        let (earlier, wall) = match &self.before {
            Some((at, earlier)) => (Some(earlier), now.duration_since(*at).as_secs_f64()),
            None => (None, 0.0),
        };
        let figures = Of::new((workflow, name), &table, earlier, wall).figures();
        self.before = Some((now, table));
        Ok(figures)
    }

    fn get(&self) -> std::io::Result<String> {
        let addresses: Vec<_> = self.place.to_socket_addrs()?.collect();
        let mut last = std::io::Error::other("the host has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return self.ask(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn ask(&self, mut stream: TcpStream) -> std::io::Result<String> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", self.place)?;
        let mut answer = String::new();
        stream.take(MOST).read_to_string(&mut answer)?;
        let (head, body) =
            answer.split_once("\r\n\r\n").ok_or_else(|| std::io::Error::other("the answer is no HTTP"))?;
        match head.split_whitespace().nth(1) {
            Some("200") => Ok(body.to_owned()),
            status => Err(std::io::Error::other(format!("it answers {}", status.unwrap_or("nothing")))),
        }
    }
}

/// All samples of a look.
struct Table(Vec<Sample>);

impl Table {
    /// Workflow and name of each run.
    fn runs(&self) -> Vec<(String, String)> {
        let runs = self.0.iter().filter(|sample| sample.name == "tidemill_run_seconds");
        let runs: BTreeSet<_> =
            runs.map(|one| (one.label("workflow").to_owned(), one.label("run").to_owned())).collect();
        runs.into_iter().collect()
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }
}

/// A run in two looks.
struct Of<'a> {
    workflow: &'a str,
    run: &'a str,
    now: &'a Table,
    earlier: Option<&'a Table>,
    /// Between them, in the time of the run, which a dilation stretches.
    seconds: f64,
    /// The same in real time.
    wall: f64,
}

type Wanted<'a> = [(&'a str, &'a str)];

impl<'a> Of<'a> {
    fn new(
        (workflow, run): (&'a str, &'a str),
        now: &'a Table,
        earlier: Option<&'a Table>,
        wall: f64,
    ) -> Self {
        let of = Self { workflow, run, now, earlier, seconds: wall, wall };
        // It stands still where the run has ended, and begins anew where another process goes on with it.
        let told = of.grown("tidemill_run_seconds", &[]).filter(|told| *told > 0.0);
        Self { seconds: told.unwrap_or(wall), ..of }
    }

    fn is_own(&self, sample: &Sample) -> bool {
        sample.label("workflow") == self.workflow && sample.label("run") == self.run
    }

    fn own<'b>(
        &'b self,
        table: &'b Table,
        name: &'b str,
        wanted: &'b Wanted<'b>,
    ) -> impl Iterator<Item = &'b Sample> {
        let fits = move |sample: &&Sample| {
            self.is_own(sample) && wanted.iter().all(|(label, value)| sample.label(label) == *value)
        };
        table.all(name).filter(fits)
    }

    /// The sum of all values with these labels; none: there is none.
    fn value(&self, name: &str, wanted: &Wanted<'_>) -> Option<f64> {
        self.own(self.now, name, wanted).map(|sample| sample.value).reduce(|a, b| a + b)
    }

    fn count(&self, name: &str, wanted: &Wanted<'_>) -> u64 {
        self.value(name, wanted).unwrap_or(0.0) as u64
    }

    /// By how much the sum has grown, per second of the run.
    fn growth(&self, name: &str, wanted: &Wanted<'_>) -> Option<f64> {
        let grown = self.grown(name, wanted)?;
        (self.seconds > 0.0).then(|| grown / self.seconds)
    }

    /// By how much the sum has grown.
    fn grown(&self, name: &str, wanted: &Wanted<'_>) -> Option<f64> {
        let earlier = self.own(self.earlier?, name, wanted).map(|sample| sample.value).sum::<f64>();
        Some((self.value(name, wanted)? - earlier).max(0.0))
    }

    /// Cumulative counts by the end of the bucket, of what came since the look before; of all where there was none.
    fn buckets(&self, name: &str, wanted: &Wanted<'_>) -> Vec<(f64, f64)> {
        let name = format!("{name}_bucket");
        let cumulative = |table: &Table| {
            let mut counts: BTreeMap<u64, f64> = BTreeMap::new();
            for sample in self.own(table, &name, wanted) {
                let end = sample.label("le").parse().unwrap_or(f64::INFINITY);
                *counts.entry(f64::to_bits(end)).or_default() += sample.value;
            }
            counts
        };
        let earlier = self.earlier.map(cumulative).unwrap_or_default();
        // Ends of buckets are not negative: their bits are in their order.
        let now = cumulative(self.now).into_iter();
        now.map(|(end, count)| (f64::from_bits(end), count - earlier.get(&end).copied().unwrap_or(0.0)))
            .collect()
    }

    fn times(&self, name: &str, wanted: &Wanted<'_>) -> Times {
        let buckets = self.buckets(name, wanted);
        let ms = |part: f64| quantile(&buckets, part).unwrap_or(0.0) * 1e3;
        let count = buckets.last().map_or(0.0, |(_, count)| *count) as u64;
        Times { count, p50_ms: ms(0.5), p99_ms: ms(0.99) }
    }

    /// Counts by reason.
    fn reasons(&self, name: &str, wanted: &Wanted<'_>) -> BTreeMap<String, u64> {
        let samples = self.own(self.now, name, wanted).filter(|sample| sample.value > 0.0);
        samples.map(|sample| (sample.label("reason").to_owned(), sample.value as u64)).collect()
    }

    fn figures(&self) -> RunFigures {
        let links = self.links();
        let stages = self.stages(&links);
        let links: Vec<LinkFigures> = links
            .into_iter()
            .map(|link| {
                let worker = |id: &str| {
                    let stage = stages.iter().find(|stage| stage.stage == id);
                    stage.map(|stage| stage.worker.clone()).unwrap_or_default()
                };
                LinkFigures { from_worker: worker(&link.from), to_worker: worker(&link.to), ..link }
            })
            .collect();
        let sources = self.sources(&stages);
        let given = sources.iter().filter_map(|source| stages.iter().find(|one| one.stage == source.stage));
        let cost = |basis: &str| self.value("tidemill_run_cost_dollars_per_hour", &[("basis", basis)]);
        RunFigures {
            run: self.run.to_owned(),
            workflow: self.workflow.to_owned(),
            state: RunState::Running,
            taken: None,
            seconds: self.value("tidemill_run_seconds", &[]).unwrap_or(0.0),
            window_seconds: self.seconds,
            plan_version: 1,
            emitted: given.map(|stage| stage.records_out).sum(),
            arrived: self.count("tidemill_sink_records_total", &[]),
            dead_letters: self.count("tidemill_dead_letters_total", &[]),
            restarts: self.count("tidemill_run_restarts_total", &[]),
            limit: limit(&stages),
            levels: self.levels(&sources),
            sinks: self.sinks(),
            workers: Vec::new(),
            cost: CostFigures {
                predicted: cost("predicted"),
                now: cost("now"),
                compute: None,
                network: None,
            },
            stages,
            sources,
            links,
        }
    }

    fn links(&self) -> Vec<LinkFigures> {
        let edges: BTreeSet<&str> = self
            .own(self.now, "tidemill_edge_transfer_seconds_count", &[])
            .map(|one| one.label("edge"))
            .collect();
        let links = edges.into_iter().filter_map(|edge| {
            let (from, to) = edge.split_once("->")?;
            let of = [("edge", edge)];
            Some(LinkFigures {
                from: from.to_owned(),
                to: to.to_owned(),
                input: 0,
                from_worker: String::new(),
                to_worker: String::new(),
                records: self.count("tidemill_edge_records_total", &of),
                bytes: self.count("tidemill_edge_bytes_total", &of),
                per_second: self.growth("tidemill_edge_records_total", &of).unwrap_or(0.0),
                bytes_per_second: self.growth("tidemill_edge_bytes_total", &of).unwrap_or(0.0),
                transfer: self.times("tidemill_edge_transfer_seconds", &of),
                waiting: self.count("tidemill_edge_waiting_records", &of),
                drops: self.reasons("tidemill_records_dropped_total", &of),
            })
        });
        links.collect()
    }

    fn stages(&self, links: &[LinkFigures]) -> Vec<StageFigures> {
        let of_slots = self.busy_of_slots();
        let named = self.own(self.now, "tidemill_operator_records_total", &[("direction", "in")]);
        let stages = named.map(|sample| {
            let stage = sample.label("stage");
            let of = [("stage", stage)];
            let flow = |direction: &str| {
                let of = [("stage", stage), ("direction", direction)];
                let name = "tidemill_operator_records_total";
                (self.count(name, &of), self.growth(name, &of).unwrap_or(0.0))
            };
            let ((records_in, in_per_second), (records_out, out_per_second)) = (flow("in"), flow("out"));
            let into = links.iter().filter(|link| link.to == stage);
            let transfer =
                into.clone().map(|link| link.transfer).max_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms));
            let label = |name: &str| Some(sample.label(name).to_owned()).filter(|value| !value.is_empty());
            let variant = label("variant");
            let busy = self.value("tidemill_operator_busy_ratio", &of).or_else(|| match &variant {
                Some(_) => self.busy_of_model(&of),
                None => of_slots.get(stage).copied(),
            });
            StageFigures {
                stage: stage.to_owned(),
                operator: sample.label("operator").to_owned(),
                variant,
                worker: sample.label("worker").to_owned(),
                cluster_worker: label("cluster_worker"),
                in_per_second,
                out_per_second,
                records_in,
                records_out,
                queue: self.times("tidemill_operator_queue_seconds", &of),
                compute: self.times("tidemill_operator_compute_seconds", &of),
                transfer: transfer.unwrap_or_default(),
                busy: busy.map(|busy| busy.min(1.0)),
                waiting: self.count("tidemill_operator_waiting_records", &of)
                    + into.map(|link| link.waiting).sum::<u64>(),
                drops: self.reasons("tidemill_records_dropped_total", &of),
                dead_letters: self.reasons("tidemill_dead_letters_total", &of),
                restarts: self.count("tidemill_operator_restarts_total", &of),
                state_bytes: self.count("tidemill_operator_state_bytes", &of),
            }
        });
        stages.collect()
    }

    /// Batches of a model take their time one after the other; of several copies all together.
    fn busy_of_model(&self, of: &Wanted<'_>) -> Option<f64> {
        self.growth("tidemill_operator_computing_seconds_total", of)
    }

    fn busy_of_slots(&self) -> BTreeMap<String, f64> {
        let mut busy: BTreeMap<String, f64> = BTreeMap::new();
        for sample in self.own(self.now, "tidemill_slot_processor_seconds_total", &[]) {
            let of = [("slot", sample.label("slot"))];
            let Some(grown) = self.grown("tidemill_slot_processor_seconds_total", &of) else { continue };
            // Processor time is real time.
            let part = if self.wall > 0.0 { grown / self.wall } else { continue };
            for instance in sample.label("stages").split(',') {
                let stage = instance.split('#').next().unwrap_or(instance);
                let known = busy.entry(stage.to_owned()).or_default();
                *known = known.max(part);
            }
        }
        busy
    }

    fn sources(&self, stages: &[StageFigures]) -> Vec<SourceFigures> {
        let ended = self.own(self.now, "tidemill_source_ended", &[]);
        let sources = ended.filter_map(|sample| {
            let stage = stages.iter().find(|stage| stage.stage == sample.label("stage"))?;
            let of = [("stage", stage.stage.as_str())];
            let behind = self.value("tidemill_source_behind_seconds", &of).unwrap_or(0.0);
            let wanted = self.value("tidemill_source_wanted_records_per_second", &of);
            let expected = wanted.map_or(f64::INFINITY, |wanted| wanted * self.seconds);
            let state = match stage.out_per_second {
                _ if sample.value > 0.0 => SourceState::Ended,
                _ if stage.records_out == 0 => SourceState::Starting,
                0.0 if self.earlier.is_some() && expected >= 3.0 => SourceState::Silent,
                _ if behind > BEHIND => SourceState::Behind,
                _ => SourceState::Running,
            };
            Some(SourceFigures {
                source: stage.operator.clone(),
                stage: stage.stage.clone(),
                state,
                wanted_per_second: wanted,
                per_second: stage.out_per_second,
                behind_seconds: behind,
            })
        });
        sources.collect()
    }

    fn sinks(&self) -> Vec<SinkFigures> {
        let sinks = self.own(self.now, "tidemill_sink_records_total", &[]).map(|sample| {
            let sink = sample.label("sink");
            let of = [("sink", sink)];
            let scored = self.count("tidemill_sink_scored_records_total", &of);
            SinkFigures {
                sink: sink.to_owned(),
                promise: String::new(),
                records: sample.value as u64,
                per_second: self.growth("tidemill_sink_records_total", &of).unwrap_or(0.0),
                latency: self.times("tidemill_end_to_end_latency_seconds", &of),
                accuracy_percent: self.accuracy(sink),
                scored,
            }
        });
        sinks.collect()
    }

    fn accuracy(&self, sink: &str) -> Option<f64> {
        let name = "tidemill_sink_scored_records_total";
        let all = self.value(name, &[("sink", sink)]).filter(|all| *all > 0.0)?;
        Some(self.value(name, &[("sink", sink), ("is_right", "yes")])? * 100.0 / all)
    }

    fn levels(&self, sources: &[SourceFigures]) -> Vec<LevelFigures> {
        let levels = self.own(self.now, "tidemill_slo_wanted", &[]).map(|sample| {
            let level = sample.label("slo");
            let of = [("slo", level)];
            let percentile = sample.label("percentile").strip_prefix('p').and_then(|text| text.parse().ok());
            let unit = if percentile.is_some() { 1e3 } else { 1.0 };
            let going = sources.iter().filter(|source| source.state != SourceState::Ended);
            let sinks: BTreeSet<&str> =
                self.own(self.now, "tidemill_sink_records_total", &[]).map(|one| one.label("sink")).collect();
            let measured = match (level, percentile) {
                ("rate", _) => {
                    going.map(|source| source.per_second).reduce(f64::min).filter(|_| self.seconds > 0.0)
                }
                ("accuracy", _) => sinks.iter().filter_map(|sink| self.accuracy(sink)).reduce(f64::min),
                (_, Some(percentile)) => {
                    let of_sink = |sink: &&str| {
                        let buckets = self.buckets("tidemill_end_to_end_latency_seconds", &[("sink", sink)]);
                        quantile(&buckets, percentile / 100.0)
                    };
                    sinks.iter().filter_map(of_sink).reduce(f64::max).map(|seconds| seconds * 1e3)
                }
                _ => None,
            };
            let windows = self.growth("tidemill_slo_windows_total", &of).filter(|windows| *windows > 0.0);
            let missed = self.growth("tidemill_slo_violations_total", &of);
            LevelFigures {
                level: level.to_owned(),
                wanted: sample.value * unit,
                percentile,
                measured,
                is_missed: windows.and(missed).map(|missed| missed > 0.0),
                windows: self.count("tidemill_slo_windows_total", &of),
                windows_missed: self.count("tidemill_slo_violations_total", &of),
            }
        });
        levels.collect()
    }
}

/// The value that a part of all does not exceed, from cumulative counts by the ends of buckets: values are taken to lie
/// evenly in their bucket; those of the last one, which has no end, at its beginning.
fn quantile(buckets: &[(f64, f64)], part: f64) -> Option<f64> {
    let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let rank = part * all;
    let (mut begin, mut before) = (0.0, 0.0);
    for (end, count) in buckets {
        if *count >= rank {
            let inside = if *count > before { (rank - before) / (count - before) } else { 0.0 };
            return Some(if end.is_finite() { begin + (end - begin) * inside } else { begin });
        }
        (begin, before) = (*end, *count);
    }
    None
}

#[cfg(test)]
mod tests;
