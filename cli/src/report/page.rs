//! A run as one HTML page that needs nothing else: no script, no network, no other file.
use super::RunDocument;
use super::records::{self, SinkRecords};
use super::series::Recorder;
use super::{curves, devices, objects, processor, sections, windows};
use std::path::Path;
use tidemill_app::figures::{bytes, grouped, milliseconds, rate, seconds};
use tidemill_app::levels::SHORT_TICKS;
use tidemill_app::machine::{self, Machine, Usage};
use tidemill_app::preparation::{Prepared, kinds};
use tidemill_app::slo::{is_judged, is_short, measures_text, sink_accuracy_text, sink_rate};
use tidemill_drawing::markup::{Attribute, Markup};
use tidemill_engine::Observer;
use tidemill_spec::publication::Publication;

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// All sources ended.
    Complete,
    /// By a signal.
    Interrupted,
    /// With this error.
    Failed(String),
}

/// Everything that is on the page.
pub(crate) struct Page<'a> {
    /// The figures.
    pub(crate) document: &'a RunDocument<'a>,
    /// The workflow that ran.
    pub(crate) prepared: &'a Prepared,
    /// The source of the figures.
    pub(crate) observer: &'a Observer,
    /// The events with their times.
    pub(crate) recorder: &'a Recorder,
    /// Its end.
    pub(crate) end: End,
    /// When it began.
    pub(crate) begun: String,
    /// Place of the page.
    pub(crate) place: &'a Path,
    /// Requests on the command line, beside the workflow.
    pub(crate) options: Vec<(&'static str, String)>,
}

/// Name, value and what there is more to say of it.
type Tile = (String, String, String);

/// Id, name and text of a part of the page.
type Part = (&'static str, &'static str, Markup);

impl Page<'_> {
    /// The whole page.
    pub(crate) fn html(&self) -> String {
        let samples = records::collect(&self.prepared.workflow, self.observer);
        let parts = self.parts(&samples);
        let name = self.document.workflow;
        let mut page = Markup::new();
        page.verbatim("<!DOCTYPE html>\n");
        page.element("html", &[("lang", &"en"), ("xmlns", &"http://www.w3.org/1999/xhtml")], |html| {
            html.element("head", &[], |head| {
                head.empty("meta", &[("charset", &"utf-8")]);
                let view = "width=device-width, initial-scale=1";
                head.empty("meta", &[("name", &"viewport"), ("content", &view)]);
                let generator = concat!("tidemill ", env!("CARGO_PKG_VERSION"));
                head.empty("meta", &[("name", &"generator"), ("content", &generator)]);
                head.leaf("title", &[], &format!("{name} · run report"));
                head.element("style", &[], |style| style.verbatim(include_str!("style.css")));
            });
            html.break_line();
            html.element("body", &[], |body| {
                self.header(&parts, body);
                body.element("main", &[], |main| {
                    self.verdict(main);
                    self.tiles(main);
                    for (id, title, part) in &parts {
                        // A long part may go over several printed pages.
                        let class = if matches!(*id, "samples" | "objects" | "losses" | "stages") {
                            "long"
                        } else {
                            "part"
                        };
                        main.element("section", &[("id", id), ("class", &class)], |section| {
                            section.leaf("h2", &[], title);
                            section.nest(part);
                        });
                        main.break_line();
                    }
                });
                body.element("footer", &[], |footer| {
                    footer.leaf(
                        "p",
                        &[],
                        &format!(
                            "Made by {generator}. Times are those of the run's clock.",
                            generator = concat!("tidemill ", env!("CARGO_PKG_VERSION"))
                        ),
                    );
                });
            });
        });
        page.break_line();
        page.finish()
    }

    fn parts(&self, samples: &[SinkRecords]) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut add = |id, title, write: &dyn Fn(&mut Markup)| {
            let mut part = Markup::new();
            write(&mut part);
            parts.push((id, title, part));
        };
        let (document, observer) = (self.document, self.observer);
        if !document.slo.is_empty() {
            let complete = self.end == End::Complete;
            add("levels", "Service levels", &|part| sections::levels(document.slo, complete, part));
        }
        if let Some(account) = document.emulation {
            add("emulation", "Predicted and measured", &|part| account.html(part));
        }
        add("workflow", "Workflow", &|part| sections::workflow(self.prepared, document.report, part));
        if document.report.sinks.iter().any(|sink| sink.latency.count > 0) {
            let slo = &self.prepared.workflow.slo;
            add("latency", "Latency", &|part| {
                let plan = &document.program.plan;
                let sinks = document.report.sinks.iter().map(|sink| sink.sink.as_str());
                let at_end = sinks.filter(|sink| self.is_seen_at_end(sink)).collect();
                curves::latency((document.report, plan), &at_end, observer, self.recorder, slo, part);
            });
        }
        if document.report.stages.iter().any(|stage| stage.compute.count > 0) {
            add("stages", "Where the time goes", &|part| sections::stages(document.report, part));
        }
        if devices::is_any(&document.report.stages) {
            let plan = &document.program.plan;
            add("devices", "Devices", &|part| devices::section(&document.report.stages, plan, part));
        }
        if !self.recorder.steps().is_empty() {
            add("resources", "Throughput and resources", &|part| {
                let has_processes = document.has_processes;
                curves::resources(self.recorder, document.factor(), has_processes, part);
                let whole = document.all_processor_seconds();
                processor::threads(document.report, document.program, (whole, has_processes), part);
            });
        }
        let judged = |sink: &str| {
            let report = document.report.sinks.iter().find(|known| known.sink == sink && known.scored > 0);
            report.map(|sink| match &sink.tracks {
                Some(measures) => format!("{}; {}", sink_accuracy_text(sink), measures_text(measures)),
                None => sink_accuracy_text(sink),
            })
        };
        let found = objects::collect(self.prepared, judged);
        let mut videos = Markup::new();
        let has_videos = objects::links(self.prepared, self.place, &mut videos);
        if has_videos || !found.is_empty() {
            add("objects", "Objects and cameras", &|part| {
                part.nest(&videos);
                found.iter().for_each(|objects| objects.section(part));
            });
        }
        let counted = windows::collect(self.prepared);
        if !counted.is_empty() {
            add("windows", "Windows", &|part| windows::section(&counted, part));
        }
        if !samples.is_empty() {
            add("samples", "Sample records", &|part| sections::samples(samples, part));
        }
        add("losses", "Lost records", &|part| {
            for line in document.promises() {
                part.leaf("p", &[], &format!("{line}."));
            }
            sections::losses(document.report, part);
        });
        if !self.prepared.models.is_empty() {
            add("models", "Models", &|part| sections::models(&self.prepared.models, part));
        }
        add("run", "This run", &|part| self.facts(part));
        parts
    }

    fn header(&self, parts: &[Part], body: &mut Markup) {
        body.element("header", &[], |header| {
            header.leaf("div", &[("class", &"brand")], "Tidemill run report");
            header.leaf("h1", &[], self.document.workflow);
            let length = seconds(self.document.report.seconds);
            let end = match self.end {
                End::Complete => "complete",
                End::Interrupted => "interrupted",
                End::Failed(_) => "failed",
            };
            header.leaf("p", &[("class", &"sub")], &format!("{} · {length} · {end}", self.begun));
            header.element("nav", &[], |nav| {
                for (id, title, _) in parts {
                    nav.leaf("a", &[("href", &format!("#{id}"))], title);
                    nav.text(" ");
                }
            });
        });
    }

    /// Writes the most important result, in one line.
    fn verdict(&self, main: &mut Markup) {
        let slo = self.document.slo;
        let missed: Vec<_> = slo.iter().filter(|verdict| verdict.met == Some(false)).collect();
        let doubtful: Vec<_> = slo.iter().filter(|verdict| verdict.met.is_none()).collect();
        let told = |verdict: &&tidemill_app::slo::Verdict| {
            let measured = verdict.measured.as_deref().unwrap_or("nothing to measure");
            format!("{}: {measured}, wanted {}", verdict.slo, verdict.wanted)
        };
        let (class, sign, strong, detail) = match (&self.end, slo.len(), missed.len()) {
            (End::Failed(error), ..) => (
                "bad",
                "!",
                "The run failed".to_owned(),
                format!("{error}. This page shows the run until then."),
            ),
            (End::Interrupted, ..) => {
                let detail = match missed.len() {
                    0 => "This page shows the run until then; committed rows stay.".to_owned(),
                    _ => missed.iter().map(told).collect::<Vec<_>>().join("; "),
                };
                ("warn", "…", "The run was interrupted".to_owned(), detail)
            }
            (End::Complete, 0, _) => (
                "none",
                "i",
                "No service levels are set".to_owned(),
                "`slo:` in the workflow sets them.".to_owned(),
            ),
            (End::Complete, all, 0) if !doubtful.is_empty() => (
                "warn",
                "?",
                format!(
                    "{} of {all} service levels are met, the run is no evidence for the rest",
                    all - doubtful.len()
                ),
                doubtful.iter().map(told).collect::<Vec<_>>().join("; "),
            ),
            (End::Complete, 1, 0) => (
                "good",
                "✓",
                "The service level is met".to_owned(),
                slo.iter().map(|v| told(&v)).collect::<Vec<_>>().join("; "),
            ),
            (End::Complete, all, 0) => (
                "good",
                "✓",
                format!("All {all} service levels are met"),
                slo.iter().map(|v| told(&v)).collect::<Vec<_>>().join("; "),
            ),
            (End::Complete, all, few) => (
                "bad",
                "✕",
                format!("{few} of {all} service levels missed"),
                missed.iter().map(told).collect::<Vec<_>>().join("; "),
            ),
        };
        main.element("div", &[("class", &format!("verdict {class}"))], |verdict| {
            verdict.leaf("div", &[("class", &"sign"), ("aria-hidden", &"true")], sign);
            verdict.element("div", &[], |text| {
                text.leaf("strong", &[], &strong);
                text.leaf("span", &[("class", &"detail")], &detail);
            });
        });
        main.break_line();
    }

    fn tiles(&self, main: &mut Markup) {
        let report = self.document.report;
        let program = self.document.program;
        // The sink that most came to stands for all.
        let Some(sink) = report.sinks.iter().max_by_key(|sink| sink.records) else { return };
        let mut tiles: Vec<Tile> = Vec::new();
        let all: u64 = report.sinks.iter().map(|sink| sink.records).sum();
        let committed = if self.end == End::Complete { "" } else { "committed " };
        let sinks = match report.sinks.len() {
            1 => format!("{committed}at {}", sink.sink),
            n => format!("{committed}at {n} sinks"),
        };
        tiles.push(("Results".into(), grouped(all), sinks));
        if let Some(measured) = sink_rate(sink, report, program) {
            let of = match is_short(report, program) {
                true => format!(
                    "at {}, in {} of fewer than {SHORT_TICKS} ticks",
                    sink.sink,
                    seconds(report.seconds)
                ),
                false => format!("at {}", sink.sink),
            };
            tiles.push(("Throughput".into(), rate(measured), of));
        }
        tiles.extend(self.latency_tiles().into_iter().flatten());
        for judged in report.sinks.iter().filter(|sink| is_judged(sink)) {
            let text = sink_accuracy_text(judged);
            let (share, interval) = text.split_once(" (").unwrap_or((&text, ""));
            let is_boxes = |sink: &&tidemill_spec::workflow::Sink| {
                let truth = sink.ground_truth.as_ref();
                sink.id == *judged.sink && truth.is_some_and(|truth| truth.boxes.is_some())
            };
            let name = match (self.prepared.workflow.sinks.iter().find(is_boxes), judged.accuracy_percent) {
                (Some(_), _) => "Accuracy, IDF1",
                (None, Some(_)) => "Accuracy",
                (None, None) => "Mean absolute error",
            };
            tiles.push((name.into(), share.to_owned(), interval.trim_end_matches(')').to_owned()));
        }
        let dropped: u64 = sections::drops(report).map(|(.., records)| records).sum();
        let letters = format!("{} dead letters", grouped(report.dead_letters));
        tiles.push(("Lost".into(), grouped(report.dead_letters + dropped), letters));
        if report.seconds > 0.0 {
            let used = self.document.all_processor_seconds();
            let cores = used / (report.seconds * self.document.factor());
            let of = match self.document.has_processes {
                true => "in all: the coordinating process, and the threads that workers reported",
                false => "in all",
            };
            tiles.push(("Processor".into(), format!("{cores:.2} cores"), format!("{} {of}", seconds(used))));
        }
        if let Some(peak) = Usage::look().peak {
            let of = match self.document.has_processes {
                true => "of the coordinating process alone",
                false => "of the whole process",
            };
            tiles.push(("Memory, peak".into(), bytes(peak), of.to_owned()));
        }
        main.element("div", &[("class", &"tiles")], |grid| {
            for (name, value, more) in tiles {
                grid.element("div", &[("class", &"tile")], |tile| {
                    tile.leaf("div", &[("class", &"name")], &name);
                    tile.leaf("div", &[("class", &"value")], &value);
                    tile.leaf("div", &[("class", &"more")], &more);
                });
            }
        });
        main.break_line();
    }

    /// Whether readers of a sink see its rows when the run ends and not before.
    fn is_seen_at_end(&self, id: &str) -> bool {
        let sink = self.prepared.workflow.sinks.iter().find(|sink| sink.id == *id);
        sink.is_some_and(|sink| kinds().sink(&sink.kind).publication == Publication::AtEnd)
    }

    /// Returns tiles for the sink that is furthest from its level: the slowest at the percentile of the level, without one at p99. A sink
    /// that publishes when the run ends, such as a video, only shows the length of the run.
    fn latency_tiles(&self) -> Option<[Tile; 2]> {
        let sinks = &self.document.report.sinks;
        let level = self.prepared.workflow.slo.latency.as_ref();
        let percentile = level.map_or(99.0, |level| level.percentile.0);
        let timely = sinks.iter().filter(|sink| sink.latency.count > 0 && !self.is_seen_at_end(&sink.sink));
        let measured = timely.filter_map(|sink| {
            Some((sink, self.observer.sink(&sink.sink)?.latency.percentile_ms(percentile)))
        });
        let (sink, slowest) = measured.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let place = if sinks.len() > 1 { format!("at {}, ", sink.sink) } else { String::new() };
        let more = match level {
            Some(level) => format!("{place}required below {}", level.below.value),
            None => format!("{place}largest {}", milliseconds(sink.latency.max_ms)),
        };
        let median = (
            "Latency, median".to_owned(),
            milliseconds(sink.latency.p50_ms),
            format!("{place}from due to visible"),
        );
        Some([median, (format!("Latency, p{percentile}"), milliseconds(slowest), more)])
    }

    fn facts(&self, part: &mut Markup) {
        let machine = Machine::look();
        let workflow = &self.prepared.workflow;
        let plan = &self.document.program.plan;
        let mut facts: Vec<(&str, String)> = vec![
            ("Begun", self.begun.clone()),
            ("Report made", machine::now()),
            ("Length", seconds(self.document.report.seconds)),
        ];
        if let Some(source) = workflow.name.span.source() {
            facts.push(("Workflow file", source.name().to_owned()));
        }
        facts.push(("Workflow digest", workflow.digest()));
        facts.extend(self.options.iter().cloned());
        let slots: std::collections::BTreeSet<_> =
            plan.stages.iter().map(|stage| (&stage.worker, &stage.slot_group)).collect();
        let several = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        let stages = format!(
            "{} on {}, {}; tick {}, checkpoint every {} ticks",
            several(plan.stages.len(), "stage"),
            several(plan.workers.len(), "worker"),
            several(slots.len(), "slot"),
            plan.tick,
            plan.checkpoint_every
        );
        facts.push(("Plan", stages));
        if self.document.report.restarts > 0 {
            facts.push(("Restarts", grouped(self.document.report.restarts)));
        }
        facts.push(("Machine", machine.name));
        let memory =
            machine.memory.map(|memory| format!(", {} of memory", bytes(memory))).unwrap_or_default();
        let cores = if machine.cores == 1 { "1 core".to_owned() } else { format!("{} cores", machine.cores) };
        let processor =
            if machine.processor.is_empty() { cores } else { format!("{}, {cores}", machine.processor) };
        facts.push(("Processor", format!("{processor}{memory}")));
        facts.push(("System", machine.system));
        facts.push(("Tidemill", env!("CARGO_PKG_VERSION").to_owned()));
        let mut backends: Vec<&str> =
            self.prepared.models.iter().map(|model| model.backend.as_str()).collect();
        backends.sort_unstable();
        backends.dedup();
        for name in backends {
            if let Ok(backend) = tidemill_inference::backend::backend(name, &workflow.directory.0) {
                facts.push(("Backend", format!("{name} {}", backend.version())));
            }
        }
        part.element("dl", &[("class", &"pairs")], |list| {
            for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
                list.leaf("dt", &[], name);
                let class: &[Attribute<'_>] =
                    if name.ends_with("digest") { &[("class", &"mono")] } else { &[] };
                list.leaf("dd", class, value);
            }
        });
    }
}
