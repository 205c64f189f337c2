//! Which threads of the process took how much of the processor.
use tidemill_app::figures::seconds;
use tidemill_drawing::markup::Markup;
use tidemill_engine::{Program, RunReport};

/// A thread, or several that do one thing.
#[derive(Debug, PartialEq)]
struct Share {
    name: String,
    what: String,
    seconds: f64,
}

/// Threads by their time, the longest first; what none of them accounts for comes last.
fn shares(report: &RunReport, program: &Program, whole: f64) -> Vec<Share> {
    let stages = report.stages.iter().filter(|stage| stage.processor_seconds > 0.0).map(|stage| Share {
        name: stage.stage.clone(),
        what: if program.sources.contains_key(&stage.operator) { "reading" } else { "model" }.to_owned(),
        seconds: stage.processor_seconds,
    });
    let slots = report.slots.iter().map(|slot| Share {
        name: slot.slot.clone(),
        what: format!("slot: {}", slot.stages.join(", ")),
        seconds: slot.processor_seconds,
    });
    let mut shares: Vec<Share> = stages.chain(slots).collect();
    shares.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let known: f64 = shares.iter().map(|share| share.seconds).sum();
    shares.push(Share {
        name: "everything else".to_owned(),
        what: "waiting for the run, progress, samples, this report".to_owned(),
        seconds: (whole - known).max(0.0),
    });
    shares
}

/// Bars of the threads' times; `whole`: seconds of the whole process since the run began.
pub(super) fn threads(report: &RunReport, program: &Program, whole: f64, part: &mut Markup) {
    let shares = shares(report, program, whole);
    let longest = shares.iter().map(|share| share.seconds).fold(0.0, f64::max);
    if longest <= 0.0 {
        return;
    }
    part.leaf("h3", &[], "Processor time by thread");
    part.leaf(
        "p",
        &[("class", &"note")],
        "A model has a thread of its own, which also prepares its records; a source reads on one. All other \
         work of a stage is done on the thread of its slot, which its stages share.",
    );
    part.element("div", &[("class", &"split threads")], |split| {
        for share in &shares {
            split.element("div", &[("class", &"row")], |row| {
                row.element("div", &[("class", &"thread")], |name| {
                    name.leaf("span", &[("class", &"id")], &share.name);
                    name.text(" ");
                    name.leaf("span", &[("class", &"soft")], &share.what);
                });
                row.element("div", &[("class", &"bar")], |bar| {
                    let width = format!("width:{:.2}%", share.seconds * 100.0 / longest);
                    bar.leaf("span", &[("class", &"b1"), ("style", &width)], "");
                });
                let percent = share.seconds * 100.0 / whole.max(share.seconds);
                row.leaf("div", &[("class", &"n")], &format!("{} · {percent:.0} %", seconds(share.seconds)));
            });
        }
    });
}
