//! The curves of a report: latency by percentile and over time, throughput, processor and memory.
use super::bars::{in_colours, legend};
use super::series::{Recorder, Step};
use std::collections::BTreeSet;
use tidemill_app::figures::{milliseconds, rate};
use tidemill_app::publication::told;
use tidemill_drawing::axis::few_digits;
use tidemill_drawing::chart::{Chart, Curve, Scale, time_marks};
use tidemill_drawing::markup::Markup;
use tidemill_engine::{Observer, RunReport, SinkReport};
use tidemill_spec::plan::Plan;
use tidemill_spec::workflow::Slo;

/// Most sinks with curves of their own.
const SINKS: usize = 4;
/// Most steps of a curve; more are not visible.
const POINTS: usize = 160;

/// Latency by percentile and over time. Sinks in `at_end` publish everything when the run ends, which makes no curve: they
/// have one only if there are no others.
pub(crate) fn latency(
    (report, plan): (&RunReport, &Plan),
    at_end: &BTreeSet<&str>,
    observer: &Observer,
    recorder: &Recorder,
    slo: &Slo,
    part: &mut Markup,
) {
    part.leaf(
        "p",
        &[("class", &"note")],
        "Time from when a source record was due (with a rate) or was read, until readers of the sink can \
         see it. A result of several records counts from the latest one.",
    );
    for line in report.sinks.iter().filter_map(|sink| told(sink, plan, report.seconds)) {
        part.leaf("p", &[("class", &"note")], &format!("{line}."));
    }
    let mut sinks: Vec<&SinkReport> = report.sinks.iter().filter(|sink| sink.latency.count > 0).collect();
    if sinks.iter().any(|sink| !at_end.contains(sink.sink.as_str())) {
        sinks.retain(|sink| !at_end.contains(sink.sink.as_str()));
    }
    sinks.sort_by(|a, b| b.latency.p99_ms.total_cmp(&a.latency.p99_ms));
    let limit = slo.latency.as_ref().map(|wanted| {
        (wanted.below.0 as f64 / 1e6, format!("{} below {}", wanted.percentile.value, wanted.below.value))
    });
    part.element("div", &[("class", &"charts")], |charts| {
        charts.element("div", &[], |one| {
            one.leaf("h3", &[], "Share of records within this latency");
            let names: Vec<&str> = sinks.iter().take(SINKS).map(|sink| sink.sink.as_str()).collect();
            by_percentile(&sinks, observer, limit.clone(), one);
            legend(in_colours(&names), one);
        });
        if let Some(slowest) = sinks.first() {
            charts.element("div", &[], |one| {
                one.leaf("h3", &[], &format!("Over time, at {}", slowest.sink));
                over_time(&slowest.sink, recorder, limit.clone(), one);
                // The second of two percentiles has the warmer colour, as in its curve.
                legend([(1, "p50"), (3, "p99")], one);
            });
        }
    });
    if let Some((_, text)) = &limit {
        part.leaf("p", &[("class", &"note")], &format!("Dashed: the service level, {text}."));
    }
}

fn by_percentile(
    sinks: &[&SinkReport],
    observer: &Observer,
    limit: Option<(f64, String)>,
    markup: &mut Markup,
) {
    // Each step to the right leaves out nine of ten of the remaining slower records.
    let place = |percentile: f64| -(1.0 - percentile / 100.0).max(1e-9).log10();
    let most = sinks.iter().map(|sink| sink.latency.count).max().unwrap_or(1);
    let end = (most as f64).log10().clamp(1.0, 5.0);
    let mut curves = Vec::new();
    for (index, sink) in sinks.iter().take(SINKS).enumerate() {
        let Some(metrics) = observer.sink(&sink.sink) else { continue };
        let own_end = (sink.latency.count as f64).log10().clamp(0.3, end);
        let points = (0..=POINTS / 2).map(|step| {
            let x = own_end * step as f64 / (POINTS / 2) as f64;
            (x, metrics.latency.percentile_ms(100.0 * (1.0 - 10f64.powf(-x))))
        });
        curves.push(Curve { points: points.collect(), colour: index + 1, filled: index == 0 });
    }
    let marks =
        [(0.0, "0"), (50.0, "50 %"), (90.0, "90 %"), (99.0, "99 %"), (99.9, "99.9 %"), (99.99, "99.99 %")];
    let marks = marks.into_iter().map(|(percentile, name)| (place(percentile), name.to_owned()));
    let chart = Chart {
        title: "latency by percentile",
        across: (0.0, end),
        marks: marks.filter(|(x, _)| *x <= end + 1e-9).collect(),
        scale: scale(&curves, limit.as_ref()),
        written: short_milliseconds,
        curves,
        limit,
    };
    chart.draw(markup);
}

fn over_time(sink: &str, recorder: &Recorder, limit: Option<(f64, String)>, markup: &mut Markup) {
    let steps = recorder.steps();
    let curve = |percentile: f64, colour: usize| {
        let points = steps.iter().filter_map(|step| Some((step.until, step.percentile(sink, percentile)?)));
        Curve { points: points.collect(), colour, filled: false }
    };
    let curves = vec![curve(50.0, 1), curve(99.0, 3)];
    let end = steps.last().map_or(1.0, |step| step.until);
    let chart = Chart {
        title: "latency over time",
        across: (0.0, end),
        marks: time_marks(end),
        scale: scale(&curves, limit.as_ref()),
        written: short_milliseconds,
        curves,
        limit,
    };
    chart.draw(markup);
}

/// Widely spread values need a logarithmic scale.
fn scale(curves: &[Curve], limit: Option<&(f64, String)>) -> Scale {
    let values = || curves.iter().flat_map(|curve| curve.points.iter().map(|(_, y)| *y)).filter(|y| *y > 0.0);
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().chain(limit.map(|(value, _)| *value)).fold(0.0, f64::max);
    if most > 12.0 * least { Scale::Logarithmic } else { Scale::Linear }
}

/// Formats a round number: `0.5 ms`, `20 ms`, `5 s`.
fn short_milliseconds(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        small if small < 0.01 => format!("{} µs", trimmed(small * 1e3, 1)),
        small if small < 1.0 => format!("{} ms", trimmed(small, 2)),
        middle if middle < 1000.0 => format!("{} ms", trimmed(middle, 1)),
        large if large < 600_000.0 => format!("{} s", trimmed(large / 1e3, 1)),
        huge => milliseconds(huge),
    }
}

fn trimmed(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Throughput, processor and memory over time; `factor`: real seconds per second of the run; `has_processes`: the workers
/// of the plan have processes of their own, which are not recorded.
pub(crate) fn resources(recorder: &Recorder, factor: f64, has_processes: bool, part: &mut Markup) {
    let note = match has_processes {
        true => {
            "Results at the sinks, and resources of the coordinating process: these curves do not include \
             processor and memory of the workers' processes."
        }
        false => {
            "Results at the sinks, and resources of the whole process: models, sources, sinks and the \
             sampling of this report."
        }
    };
    part.leaf("p", &[("class", &"note")], note);
    let steps = coarse(recorder.steps());
    let end = steps.last().map_or(1.0, |step| step.until);
    let draw = |title: &str,
                written: fn(f64) -> String,
                colour,
                value: &dyn Fn(&Step) -> Option<f64>,
                into: &mut Markup| {
        let points = steps.iter().filter_map(|step| Some((step.until, value(step)?)));
        let curves = vec![Curve { points: points.collect(), colour, filled: true }];
        into.element("div", &[], |one| {
            one.leaf("h3", &[], title);
            let chart = Chart {
                title,
                across: (0.0, end),
                marks: time_marks(end),
                scale: Scale::Linear,
                written,
                curves,
                limit: None,
            };
            chart.draw(one);
        });
    };
    part.element("div", &[("class", &"charts three")], |charts| {
        let throughput = |step: &Step| Some(step.arrived as f64 / step.length.max(1e-9));
        draw("Results per second", short_rate, 2, &throughput, charts);
        let cores = |step: &Step| Some(cores(step, factor));
        draw("Processor cores in use", few_digits, 1, &cores, charts);
        if steps.iter().any(|step| step.resident.is_some()) {
            // In the unit of the axis, so that its numbers are round.
            let memory = |step: &Step| step.resident.map(|bytes| bytes as f64 / f64::from(1 << 20));
            draw("Memory in use", |value| format!("{} MiB", trimmed(value, 1)), 4, &memory, charts);
        }
    });
}

/// Processor time is real time, and the length of a step is that of the run.
fn cores(step: &Step, factor: f64) -> f64 {
    step.processor_seconds / (step.length * factor).max(1e-9)
}

/// Merges steps until a curve can show them all, and each is long enough for a rate.
fn coarse(steps: &[Step]) -> Vec<Step> {
    let end = steps.last().map_or(0.0, |step| step.until);
    // A quarter of a second has several ticks; less would show the ticks, not the rate.
    let least = (end / 30.0).max(0.25_f64.min(end / 8.0));
    let mut coarse: Vec<Step> = Vec::new();
    let join = |last: &mut Step, step: &Step| {
        last.until = step.until;
        last.length += step.length;
        last.arrived += step.arrived;
        last.processor_seconds += step.processor_seconds;
        last.resident = last.resident.max(step.resident);
    };
    for step in steps {
        match coarse.last_mut() {
            Some(last) if last.length < least * 0.99 => join(last, step),
            _ => coarse.push(Step { latencies: Default::default(), ..step.clone() }),
        }
    }
    // The rest at the end may be too short for a rate.
    if let Some(end) = coarse.pop_if(|end| end.length < least * 0.5) {
        match coarse.last_mut() {
            Some(last) => join(last, &end),
            None => coarse.push(end),
        }
    }
    coarse
}

fn short_rate(value: f64) -> String {
    if value < 1000.0 { format!("{} /s", few_digits(value)) } else { rate(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_axes_are_round() {
        let texts = [0.0, 0.005, 0.5, 20.0, 2000.0, 2_000_000.0].map(short_milliseconds);
        assert_eq!(texts, ["0", "5 µs", "0.5 ms", "20 ms", "2 s", "2000.0 s"]);
        assert_eq!(
            [short_rate(0.02), short_rate(40.0), short_rate(2500.0)],
            ["0.02 /s", "40 /s", "2 500 /s"]
        );
    }

    #[test]
    fn cores_of_a_stretched_run_are_of_real_time() {
        let step = Step { length: 0.5, processor_seconds: 3.0, ..Step::default() };
        assert_eq!([cores(&step, 1.0), cores(&step, 4.0)], [6.0, 1.5]);
    }

    #[test]
    fn coarse_steps_keep_all_records() {
        let step = |n: usize| Step { until: n as f64 * 0.1, length: 0.1, arrived: 4, ..Step::default() };
        let steps: Vec<Step> = (1..=239).map(step).collect();
        let coarse = coarse(&steps);
        assert!((20..=30).contains(&coarse.len()), "{}", coarse.len());
        assert_eq!(coarse.iter().map(|step| step.arrived).sum::<u64>(), 239 * 4);
    }
}
