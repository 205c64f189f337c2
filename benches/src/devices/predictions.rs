//! Virtual time beside real time over links, and the published equation beside both.
use super::far_end::{Host, Way};
use super::now;
use super::page::{Found, Table, median, percent, time};
use super::relay::Shape;
use super::steps::{Software, Steps};
use super::traces::trace;
use crate::result::Measurement;
use tidemill_replay::call::{Call, Class};
use tidemill_replay::link::Link;
use tidemill_replay::published::Application;
use tidemill_replay::trace::Design;
use tidemill_replay::{replay, serial};

const ROUND_TRIPS: [f64; 4] = [1.0, 5.0, 20.0, 50.0];
const MEGABITS: [f64; 3] = [10.0, 100.0, 670.0];

/// An inference with a session: 602,112 bytes of input, a run of 5 ms, repeated.
fn inferences() -> Vec<Call> {
    let upload = Call { payload: 602_112.0 + 64.0, kernel: 1e-9, ..Call::new(Class::Async) };
    let run = Call { payload: 64.0, kernel: 5e-3, ..Call::new(Class::Async) };
    let read = Call { payload: 64.0, waits: true, reply: 64.0, ..Call::new(Class::Sync) };
    (0..4).flat_map(|_| [upload, run, read]).collect()
}

/// Processor time of messages, so that virtual time over this connection is what was measured.
fn fitted(steps: &Steps, post: f64, link: Link, measured: f64) -> Software {
    let (mut low, mut high) = (0.0, 1e-3);
    for _ in 0..50 {
        let handle = (low + high) / 2.0;
        let predicted = replay::remote(steps.calls(Software { post, handle }), link);
        if predicted < measured { low = handle } else { high = handle }
    }
    Software { post, handle: low }
}

/// Seconds of a call without payload and work, median.
fn round_trip(to: &super::far_end::Connected, times: usize) -> anyhow::Result<f64> {
    let mut samples = Vec::new();
    for _ in 0..times {
        let begin = now();
        to.flush()?;
        samples.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(&samples))
}

pub(super) fn run(rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut table = Table::new([
        "calls",
        "round trip",
        "Mbit/s",
        "measured",
        "virtual time",
        "error",
        "its equation 3",
        "error",
    ]);
    let (mut errors, mut published_errors) = (Vec::new(), Vec::new());
    let applications = [Application::RESNET, Application::BERT, Application::GPT2];
    let traces = applications
        .map(|application| (application.name.to_owned(), Steps::of(trace(&application, Design::Locality))));
    let inferences = ("4 inferences of 602,112 B".to_owned(), Steps::of(inferences().into_iter()));
    for (name, steps) in traces.iter().chain([&inferences]) {
        let host = Host::new(steps.run_ms)?;
        let to = host.connect(Way::Tcp)?;
        // The time beside the link is known from the same calls without one.
        let near = Link { round_trip: round_trip(&to, 200)?, ..Link::NONE };
        let (mut seconds, mut posting) = (Vec::new(), Vec::new());
        for _ in 0..3 * rounds {
            let (all, posts) = steps.play(&to, 1)?;
            seconds.push(all);
            posting.push(posts);
        }
        let post = median(&posting) / steps.posted() as f64;
        let software = fitted(steps, post, near, median(&seconds));
        let calls = steps.calls(software);
        let (mut device, model) = host.here()?;
        let local = steps.play_here(device.as_mut(), model)?;
        for round_trip_ms in ROUND_TRIPS {
            for megabits in MEGABITS {
                let shape = Shape::new(round_trip_ms, megabits);
                let to = host.connect(Way::Link(shape))?;
                let link = Link { round_trip: round_trip(&to, 20)?, up: shape.rate, down: shape.rate };
                let mut samples = Vec::new();
                for _ in 0..if *name == "GPT-2" { 1 } else { rounds } {
                    samples.push(steps.play(&to, 1)?.0);
                }
                let measured = median(&samples);
                let predicted = replay::remote(calls.iter().copied(), link);
                let published = local + serial::added(&calls, link);
                let [error, published_error] = [predicted, published].map(|value| value / measured - 1.0);
                errors.push(error.abs() * 100.0);
                published_errors.push(published_error.abs() * 100.0);
                let place = format!("{name}, {round_trip_ms} ms, {megabits} Mbit/s");
                let samples = samples.iter().map(|seconds| seconds * 1e3).collect();
                found.measurements.push(Measurement::new(place, "ms", samples));
                table.row([
                    name.clone(),
                    format!("{round_trip_ms} ms"),
                    megabits.to_string(),
                    time(measured),
                    time(predicted),
                    percent(error),
                    time(published),
                    percent(published_error),
                ]);
            }
        }
    }
    let mut sorted = errors.clone();
    sorted.sort_by(f64::total_cmp);
    let at_95 = sorted.get(sorted.len() * 95 / 100).copied().unwrap_or_default();
    let largest = published_errors.iter().copied().fold(0.0, f64::max);
    let names = ["error of virtual time", "error of the published equation 3"];
    let [ours, theirs] = [(names[0], errors), (names[1], published_errors)]
        .map(|(name, errors)| Measurement::new(name, "%", errors));
    let section = format!(
        "## Predicted and measured\n\nVirtual time (`tidemill-replay`) gets from measurements: the processor time of messages, from the same calls over TCP without \
         a link, and the round trip of a call without work over each link. Its error over all rows: median {:.1} %, p95 {:.1} %; goals 2 and 5 %. That \
         of equation 3: median {:.0} %, at most {:.0} %.\n\n{}",
        ours.median(),
        at_95,
        theirs.median(),
        largest,
        table.text()
    );
    found.measurements.extend([ours.goal(2.0), theirs]);
    found.section = section;
    Ok(found)
}
