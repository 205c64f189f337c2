//! Processor time by threads of the process.
use tidemill_app::figures::seconds;
use tidemill_drawing::markup::Markup;
use tidemill_engine::{Program, RunReport};

/// A thread, or several with one task.
#[derive(Debug, PartialEq)]
struct Share {
    name: String,
    what: String,
    seconds: f64,
}

/// Threads that report their time.
fn of_threads(report: &RunReport, program: &Program) -> Vec<Share> {
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
    stages.chain(slots).collect()
}

/// Seconds of all threads that report their time, including other processes.
pub(super) fn told(report: &RunReport) -> f64 {
    let stages = report.stages.iter().map(|stage| stage.processor_seconds);
    stages.chain(report.slots.iter().map(|slot| slot.processor_seconds)).sum()
}

/// Threads by their time, the longest first, and the total; unaccounted time comes last.
fn with_rest(mut shares: Vec<Share>, whole: f64, rest: &str) -> (Vec<Share>, f64) {
    shares.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let known: f64 = shares.iter().map(|share| share.seconds).sum();
    shares.push(Share {
        name: "everything else".to_owned(),
        what: rest.to_owned(),
        seconds: (whole - known).max(0.0),
    });
    (shares, whole.max(known))
}

/// Bars of the threads' times; `whole`: seconds of all processes since the run started; `has_processes`: the workers of the
/// plan have processes of their own.
pub(super) fn threads(
    report: &RunReport,
    program: &Program,
    (whole, has_processes): (f64, bool),
    part: &mut Markup,
) {
    let rest = match has_processes {
        true => "the coordinating process; the time of the workers' processes is not known",
        false => "waiting for the run, progress, samples, this report",
    };
    let (shares, whole) = with_rest(of_threads(report, program), whole, rest);
    let longest = shares.iter().map(|share| share.seconds).fold(0.0, f64::max);
    if longest <= 0.0 {
        return;
    }
    part.leaf("h3", &[], "Processor time by thread");
    part.leaf(
        "p",
        &[("class", &"note")],
        "A model has its own thread, which also prepares its records; a source reads on its own thread. All \
         other work of a stage runs on the thread of its slot, which several stages share.",
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
                let percent = share.seconds * 100.0 / whole;
                row.leaf("div", &[("class", &"n")], &format!("{} · {percent:.0} %", seconds(share.seconds)));
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_all_that_is_known() {
        let thread = |name: &str, seconds| Share { name: name.to_owned(), what: "slot".to_owned(), seconds };
        let of = |whole| {
            let (shares, all) = with_rest(vec![thread("a", 1.0), thread("b", 3.0)], whole, "rest");
            let shares = shares.into_iter().map(|share| (share.name, share.seconds / all));
            shares.collect::<Vec<_>>()
        };
        let told = |shares: [(&str, f64); 3]| shares.map(|(name, share)| (name.to_owned(), share));
        assert_eq!(of(5.0), told([("b", 0.6), ("a", 0.2), ("everything else", 0.2)]));
        // Threads of other processes used more than this one did.
        assert_eq!(of(0.5), told([("b", 0.75), ("a", 0.25), ("everything else", 0.0)]));
    }
}
