//! Parts of a report: tables, bars and cards.
use super::bars::{Bar, bars, legend};
use super::records::{Medium, Pair, Shown, SinkRecords};
use crate::drawing::picture::{self, Line, Picture};
use crate::drawing::svg;
use crate::html_table::{NAME, NUMBER, table};
use crate::outline::{self, Role};
use tidemill_app::figures::{grouped, milliseconds, rate};
use tidemill_app::preparation::{ChosenModel, Prepared};
use tidemill_app::slo::{Verdict, is_short};
use tidemill_drawing::markup::{Attribute, Markup};
use tidemill_engine::{LatencySummary, LetterSample, RunReport, StageReport};

/// Required and measured values; `complete`: the run has ended.
pub(super) fn levels(slo: &[Verdict], complete: bool, part: &mut Markup) {
    let columns =
        [("Level", false), ("Wanted", false), ("Measured", false), ("Missed in", true), ("", false)];
    table(part, &columns, |body| {
        for verdict in slo {
            body.element("tr", &[], |row| {
                row.leaf("td", NAME, verdict.slo);
                let by = verdict.of.map(|of| format!(" ({})", of.text())).unwrap_or_default();
                row.leaf("td", &[], &format!("{}{by}", verdict.wanted));
                row.leaf("td", &[], verdict.measured.as_deref().unwrap_or("nothing to measure"));
                let windows = match verdict.windows {
                    0 => "–".to_owned(),
                    1 => format!("{} of 1 window", verdict.windows_missed),
                    all => format!("{} of {} windows", grouped(verdict.windows_missed), grouped(all)),
                };
                row.leaf("td", NUMBER, &windows);
                row.element("td", &[], |cell| {
                    let (class, text) = match (verdict.met, complete) {
                        (Some(true), true) => ("pill good", "met"),
                        (Some(true), false) => ("pill", "met until then"),
                        (Some(false), _) => ("pill bad", "missed"),
                        (None, _) => ("pill", "no evidence"),
                    };
                    cell.leaf("span", &[("class", &class)], text);
                });
            });
        }
    });
    for remedy in slo.iter().filter_map(|verdict| verdict.remedy.as_ref()) {
        part.leaf("p", &[("class", &"note")], &format!("{remedy}."));
    }
    let judged = match complete {
        true => "Judged over the whole run.",
        false => "Judged over the part until the early end, which says little about a whole run.",
    };
    let windows = "Windows are seconds of the run (longer for rates below 10/s); a window of accuracy \
                   contains all records judged until then.";
    part.leaf("p", &[("class", &"note")], &format!("{judged} {windows}"));
}

/// The workflow or the plan, with measurements.
pub(super) fn workflow(prepared: &Prepared, report: &RunReport, part: &mut Markup) {
    part.leaf(
        "p",
        &[("class", &"note")],
        "The stages with their measured figures: records, the median time of a computation, and on the \
         arrows records per second over the whole run. A filled dot is the chosen model.",
    );
    let mut drawing = Markup::new();
    let width = svg::write(&measured(prepared, report), &mut drawing);
    // The page scales it by this, within readable sizes.
    let style = format!("--width:{width:.0}px");
    part.element("div", &[("class", &"graph"), ("tabindex", &"0")], |graph| {
        graph.element("div", &[("style", &style)], |inner| inner.nest(&drawing));
    });
}

fn measured(prepared: &Prepared, report: &RunReport) -> Picture {
    let (workflow, program) = (&prepared.workflow, &prepared.program);
    let plan = &program.plan;
    let types = |id: &str| {
        let source = program.sources.get(id).map(|source| source.output.clone());
        source.or_else(|| program.operators.get(id).map(|operator| operator.output.clone()))
    };
    let mut picture = match prepared.is_planned {
        true => picture::of_plan(workflow, plan, &outline::of_plan(workflow, plan), &types),
        false => picture::of_workflow(workflow, &outline::of_workflow(workflow), &types),
    };
    for card in &mut picture.cards {
        let Some(stage) = report.stages.iter().find(|stage| stage.stage == card.id) else { continue };
        let chosen = prepared.models.iter().find(|model| model.stage == card.id);
        let written = |name: &str| {
            let variants = workflow.operators.iter().flat_map(|operator| &operator.variants);
            variants.map(|path| outline::stem(&path.value)).filter(|stem| *stem == name).count() == 1
        };
        for line in &mut card.lines {
            // Manifests are usually named like their model; if not, no mark is shown.
            if let (Line::Model(name, chosen_mark), Some(model)) = (line, chosen)
                && written(&model.variant)
            {
                *chosen_mark = Some(*name == model.variant);
            }
        }
        if card.role == Role::Sink {
            card.lines.push(Line::Fact("records in", grouped(stage.records_in)));
        } else {
            card.lines.push(Line::Fact("records out", grouped(stage.records_out)));
        }
        if stage.compute.count > 0 {
            card.lines.push(Line::Fact("compute p50", milliseconds(stage.compute.p50_ms)));
        }
        let lost: u64 = stage.dead_letters.values().sum();
        if lost > 0 {
            card.lines.push(Line::Fact("dead letters", grouped(lost)));
        }
    }
    for wire in &mut picture.wires {
        let (from, to) = (&picture.cards[wire.from].id, &picture.cards[wire.to].id);
        let stage = report.stages.iter().find(|stage| stage.stage == *from);
        let edge = report.edges.iter().find(|edge| edge.from == *from && edge.to == *to && edge.records > 0);
        // Between stages of a plan only the sent records show the shares.
        let records = match (edge, stage) {
            (Some(edge), _) => Some(edge.records),
            (None, Some(stage)) if plan.classes.len() == 1 => Some(stage.records_out),
            _ => None,
        };
        if let Some(records) = records.filter(|_| !is_short(report, program)) {
            let measured = rate(records as f64 / report.seconds);
            wire.label = match wire.label.is_empty() {
                true => measured,
                false => format!("{measured}, {}", wire.label),
            };
        }
    }
    picture
}

/// Bars of the time of a record in each stage, and the figures.
pub(super) fn stages(report: &RunReport, part: &mut Markup) {
    let shown: Vec<&StageReport> = report.stages.iter().filter(|stage| stage.compute.count > 0).collect();
    part.leaf(
        "p",
        &[("class", &"note")],
        "Mean time of a record in each stage. Joins and windows wait until an epoch is complete; models wait for a batch \
         and for their turn. Stages run side by side, so these times need not add up to the latency.",
    );
    let is_there = |of: fn(&StageReport) -> &LatencySummary| shown.iter().any(|stage| of(stage).count > 0);
    let kinds = [
        ((2, "transfer from another slot"), is_there(|stage| &stage.transfer)),
        ((3, "waiting"), is_there(|stage| &stage.queue)),
        ((1, "computing"), true),
    ];
    legend(kinds.into_iter().filter(|(_, is_there)| *is_there).map(|(kind, _)| kind), part);
    let parts = |stage: &StageReport| {
        vec![(2, stage.transfer.mean_ms), (3, stage.queue.mean_ms), (1, stage.compute.mean_ms)]
    };
    let split = shown.iter().map(|stage| Bar { stage: &stage.stage, parts: parts(stage) });
    bars(&split.collect::<Vec<_>>(), part);
    let columns = [
        ("Stage", false),
        ("In", true),
        ("Out", true),
        ("Batch, mean", true),
        ("Waiting p50", true),
        ("p99", true),
        ("Computing p50", true),
        ("p99", true),
        ("Transfer p50", true),
        ("p99", true),
    ];
    let way = shown.iter().any(|stage| stage.transfer.count > 0);
    let columns = if way { &columns[..] } else { &columns[..8] };
    table(part, columns, |body| {
        for stage in &shown {
            body.element("tr", &[], |row| {
                row.leaf("td", NAME, &stage.stage);
                row.leaf("td", NUMBER, &grouped(stage.records_in));
                row.leaf("td", NUMBER, &grouped(stage.records_out));
                let mean = stage.compute.count as f64 / stage.batches.max(1) as f64;
                row.leaf("td", NUMBER, &format!("{mean:.1}"));
                let summaries = [&stage.queue, &stage.compute, &stage.transfer];
                for summary in &summaries[..if way { 3 } else { 2 }] {
                    for text in percentiles(summary) {
                        row.leaf("td", NUMBER, &text);
                    }
                }
            });
        }
    });
}

fn percentiles(summary: &LatencySummary) -> [String; 2] {
    match summary.count {
        0 => ["–".to_owned(), "–".to_owned()],
        _ => [milliseconds(summary.p50_ms), milliseconds(summary.p99_ms)],
    }
}

/// Dropped records that are lost: stage, reason, number. Filtered ones are not lost.
pub(super) fn drops(report: &RunReport) -> impl Iterator<Item = (String, &str, u64)> {
    let stages = report.stages.iter().flat_map(|stage| {
        let drops = super::lost(&stage.drops);
        drops.map(|(reason, records)| (stage.stage.clone(), reason, records))
    });
    let edges = report.edges.iter().flat_map(|edge| {
        let place = format!("{} → {}", edge.from, edge.to);
        super::lost(&edge.drops).map(move |(reason, records)| (place.clone(), reason, records))
    });
    let feeds = super::feeds(report).flat_map(|(source, feed)| {
        let place = format!("{source}, {}", feed.feed);
        super::lost(&feed.drops).map(move |(reason, records)| (place.clone(), reason, records))
    });
    stages.chain(feeds).chain(edges)
}

/// Dead letters by reason with examples, and drops.
pub(super) fn losses(report: &RunReport, part: &mut Markup) {
    for (place, reason, records) in super::notes(report) {
        part.leaf("p", &[], &format!("{place}: {}: {}.", super::note_text(reason), grouped(records)));
    }
    for (place, records) in super::unmatched(report) {
        part.leaf("p", &[], &format!("{place}: {}: {}.", super::UNMATCHED, grouped(records)));
    }
    let drops: Vec<_> = drops(report).collect();
    if report.dead_letters == 0 && drops.is_empty() {
        let text = match super::unmatched(report).next() {
            None => "None: every record of the sources reached its sinks.",
            Some(_) => "None.",
        };
        part.leaf("p", &[("class", &"empty")], text);
        return;
    }
    if !drops.is_empty() {
        part.leaf("h3", &[], "Dropped on purpose");
        table(part, &[("Reason", false), ("At", false), ("Records", true)], |body| {
            for (place, reason, records) in &drops {
                body.element("tr", &[], |row| {
                    row.leaf("td", NAME, reason);
                    row.leaf("td", &[], place);
                    row.leaf("td", NUMBER, &grouped(*records));
                });
            }
        });
    }
    if report.dead_letters == 0 {
        return;
    }
    part.leaf("h3", &[], "Dead letters: records that could not be processed");
    let mut groups: Vec<_> = report.dead_letter_groups.iter().collect();
    groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.reason.cmp(&b.reason)));
    table(part, &[("Reason", false), ("At", false), ("Records", true), ("The first ones", false)], |body| {
        for group in groups {
            body.element("tr", &[], |row| {
                row.leaf("td", NAME, &group.reason);
                row.leaf("td", &[], &group.operator);
                row.leaf("td", NUMBER, &grouped(group.count));
                row.element("td", &[], |cell| {
                    cell.element("ul", &[("class", &"letters")], |list| {
                        for letter in &group.samples {
                            list.element("li", &[], |item| letter_text(letter, item));
                        }
                    });
                });
            });
        }
    });
}

fn letter_text(letter: &LetterSample, item: &mut Markup) {
    item.leaf("div", &[], &letter.detail);
    if !letter.values.is_empty() {
        let values = letter.values.iter().map(|(name, value)| format!("{name}: {}", told(value)));
        item.leaf("div", &[("class", &"mono soft")], &values.collect::<Vec<_>>().join(", "));
    }
}

/// Formats a value of a dead letter.
fn told(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(blob) if blob.contains_key("bytes") => {
            let digest = blob.get("sha256").and_then(|digest| digest.as_str()).unwrap_or_default();
            let short: String = digest.chars().take(12).collect();
            format!("{} bytes, sha256 {short}…", blob["bytes"])
        }
        serde_json::Value::Object(tensor) => {
            tensor.get("tensor").and_then(|kind| kind.as_str()).unwrap_or("tensor").to_owned()
        }
        other => other.to_string(),
    }
}

/// Cards of records.
pub(super) fn samples(sinks: &[SinkRecords], part: &mut Markup) {
    let judged = sinks.iter().flat_map(|sink| &sink.samples).any(|sample| sample.right.is_some());
    let mut note = "A sample of the whole run, drawn evenly by the ids of the records.".to_owned();
    if judged {
        note.push_str(" Wrong ones come first and are overrepresented.");
    }
    part.leaf("p", &[("class", &"note")], &note);
    for sink in sinks {
        if sinks.len() > 1 {
            let names: Vec<&str> =
                std::iter::once(&sink.sink).chain(&sink.others).map(String::as_str).collect();
            part.leaf("h3", &[], &format!("At {}", names.join(", ")));
        }
        let is_plain = |shown: &Shown| {
            shown.media.is_empty()
                && shown.right.is_none()
                && shown.pairs.iter().all(|pair| pair.truth.is_none())
        };
        if sink.samples.iter().all(is_plain) {
            plain_samples(&sink.samples, part);
            continue;
        }
        part.element("div", &[("class", &"samples")], |grid| {
            for (index, shown) in sink.samples.iter().enumerate() {
                sample(&sink.sink, index, shown, grid);
                grid.break_line();
            }
        });
    }
}

/// Records of values alone: a row each.
fn plain_samples(samples: &[Shown], part: &mut Markup) {
    let mut names: Vec<&str> = Vec::new();
    for name in samples.iter().flat_map(|sample| &sample.pairs).map(|pair| pair.name.as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let columns = names.iter().map(|name| (*name, false)).chain([("at the sink after", true)]);
    table(part, &columns.collect::<Vec<_>>(), |body| {
        for sample in samples {
            body.element("tr", &[], |row| {
                for name in &names {
                    let pair = sample.pairs.iter().find(|pair| pair.name == *name);
                    row.leaf(
                        "td",
                        &[("class", &"value")],
                        pair.and_then(|pair| pair.value.as_deref()).unwrap_or("–"),
                    );
                }
                row.leaf("td", NUMBER, &milliseconds(sample.latency_ms));
            });
        }
    });
}

fn sample(sink: &str, index: usize, shown: &Shown, grid: &mut Markup) {
    grid.element("article", &[("class", &"sample"), ("id", &format!("{sink}-{}", index + 1))], |card| {
        card.element("div", &[("class", &"top")], |top| {
            top.leaf(
                "span",
                &[("class", &"soft")],
                &format!("at the sink after {}", milliseconds(shown.latency_ms)),
            );
            match shown.right {
                Some(true) => top.leaf("span", &[("class", &"pill good")], "right"),
                Some(false) => top.leaf("span", &[("class", &"pill bad")], "wrong"),
                None => {}
            }
        });
        for (from, medium) in &shown.media {
            if let Medium::Picture(address) = medium {
                card.empty("img", &[("class", &"media"), ("src", address), ("alt", from)]);
            }
        }
        card.element("div", &[("class", &"body")], |body| {
            for (from, medium) in &shown.media {
                match medium {
                    Medium::Picture(_) => {}
                    Medium::Sound(address) => {
                        let attributes: [Attribute<'_>; 4] = [
                            ("controls", &"controls"),
                            ("preload", &"none"),
                            ("src", address),
                            ("aria-label", from),
                        ];
                        body.leaf("audio", &attributes, "");
                    }
                    Medium::Other(text) => body.leaf("p", &[("class", &"soft")], &format!("{from}: {text}")),
                }
            }
            body.element("dl", &[("class", &"pairs")], |list| {
                for pair in &shown.pairs {
                    write_pair(pair, list);
                }
            });
        });
    });
}

fn write_pair(pair: &Pair, list: &mut Markup) {
    list.leaf("dt", &[], &pair.name);
    let same = pair.truth.is_some() && pair.truth == pair.value;
    let class = match (&pair.truth, &pair.value) {
        (Some(_), Some(_)) if same && pair.judged => "same",
        (Some(_), Some(_)) if !same => "differs",
        _ => "plain",
    };
    list.element("dd", &[("class", &class)], |value| {
        if let Some(text) = &pair.value {
            value.text(text);
        }
        match &pair.truth {
            Some(_) if same => value.leaf("span", &[("class", &"truth")], "as in the ground truth"),
            Some(truth) => value.leaf("span", &[("class", &"truth")], &format!("ground truth: {truth}")),
            None => {}
        }
    });
}

/// Model of each stage, with the reason.
pub(super) fn models(models: &[ChosenModel], part: &mut Markup) {
    table(
        part,
        &[
            ("Stage", false),
            ("Model", false),
            ("Why this model", false),
            ("Runs on", false),
            ("Why there", false),
        ],
        |body| {
            for model in models {
                body.element("tr", &[], |row| {
                    row.leaf("td", NAME, &model.stage);
                    row.leaf("td", &[], &model.variant);
                    row.leaf("td", &[("class", &"soft")], &model.why);
                    row.leaf("td", &[], &model.backend);
                    row.leaf("td", &[("class", &"soft")], &model.backend_why);
                });
            }
        },
    );
}
