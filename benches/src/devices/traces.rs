//! The published experiment: calls of four applications by class, replayed on the emulated device. Two over links, all four in
//! virtual time.
use super::far_end::{Host, Way};
use super::page::{Found, Table, median, time};
use super::relay::Shape;
use super::steps::Steps;
use crate::result::Measurement;
use tidemill_replay::call::Call;
use tidemill_replay::link::Link;
use tidemill_replay::published::Application;
use tidemill_replay::trace::{Design, Times, Trace};
use tidemill_replay::{replay, serial};

/// Milliseconds of a round trip.
const ROUND_TRIPS: [f64; 3] = [1.0, 5.0, 20.0];
/// Applications that are played over links: the others have too many waits.
const PLAYED: [Application; 2] = [Application::RESNET, Application::BERT];
/// Published goal of the gain at 20 ms.
const GAIN: f64 = 100.0;

pub(super) fn trace(application: &Application, design: Design) -> Trace {
    Trace::new(application, design, Times::on(application, &application.v100))
}

/// 534 posted calls and four waits over 10 ms in each direction: a link that makes messages wait for each other takes 5.4 s.
pub(super) fn pipelining(rounds: usize) -> anyhow::Result<Found> {
    let steps = Steps::of(trace(&Application::RESNET, Design::Locality));
    let host = Host::new(steps.run_ms)?;
    let to = host.connect(Way::Link(Shape::new(20.0, f64::INFINITY)))?;
    let mut samples = Vec::new();
    for _ in 0..3 * rounds {
        samples.push(steps.play(&to, 1)?.0 * 1e3);
    }
    let took = median(&samples);
    let section = format!(
        "## 538 calls over 10 ms\n\n{} posted calls and four that wait, 10 ms in each direction: **{took:.1} ms**, median of {}. Goal: 120 ms. Where \
         messages wait for each other it takes 5.4 s.\n",
        steps.posted(),
        3 * rounds
    );
    let measurement = Measurement::new("538 calls over 10 ms one way", "ms", samples).goal(120.0);
    Ok(Found { measurements: vec![measurement], section })
}

pub(super) fn run(rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut table =
        Table::new(["application", "round trip", "", "base", "+OR", "+SR", "+locality", "base / best"]);
    for application in Application::ALL {
        let designs = Design::ALL.map(|design| Steps::of(trace(&application, design)));
        let is_played = PLAYED.contains(&application);
        for round_trip_ms in ROUND_TRIPS {
            let link = Link { round_trip: round_trip_ms / 1e3, ..Link::NONE };
            let place = [application.name.to_owned(), format!("{round_trip_ms} ms")];
            if is_played {
                let mut seconds = Vec::new();
                for (design, steps) in Design::ALL.into_iter().zip(&designs) {
                    let host = Host::new(steps.run_ms)?;
                    let to = host.connect(Way::Link(Shape::new(round_trip_ms, f64::INFINITY)))?;
                    // A round trip for each of a thousand calls is as good as a thousand rounds.
                    let rounds = if design == Design::Locality { 3 * rounds } else { 1 };
                    let mut samples = Vec::new();
                    for _ in 0..rounds {
                        samples.push(steps.play(&to, 1)?.0);
                    }
                    seconds.push(median(&samples));
                    let name = format!("{}, {}, {round_trip_ms} ms", application.name, design.name());
                    let samples = samples.iter().map(|seconds| seconds * 1e3).collect();
                    let measured = Measurement::new(name, "ms", samples);
                    found.measurements.push(if design == Design::Base {
                        measured.baseline()
                    } else {
                        measured
                    });
                }
                let gain = seconds[0] / seconds[3];
                let name = format!("{}, base / +locality, {round_trip_ms} ms", application.name);
                let gained = Measurement::new(name, "times", vec![gain]);
                let is_goal = round_trip_ms >= 20.0 && application == Application::RESNET;
                found.measurements.push(if is_goal { gained.goal(GAIN) } else { gained });
                table.row(cells(&place, "measured", &seconds));
            }
            let calls = designs.each_ref().map(|steps| steps.calls(super::steps::Software::default()));
            let predicted = calls.each_ref().map(|calls| replay::remote(calls.iter().copied(), link));
            table.row(cells(&place, "virtual time", &predicted));
            let local = replay::local(calls[3].iter().copied());
            let published = calls.each_ref().map(|calls| local + serial::added(calls, link));
            table.row(cells(&place, "its equation 3", &published));
        }
    }
    found.section = format!(
        "## The published calls\n\nThe calls of one inference by class (Table 2) on an emulated device, evenly spread; the program's and the device's \
         time are split as `tidemill-replay` says. *Base*: every call waits. *+OR*: calls without a result are posted. *+SR*: handles are chosen by \
         the program. *+locality*: queries are answered from the greeting. `SD` and `GPT-2` wait too often to be measured for each design and link: \
         virtual time, without software. Its equation 3 charges half a round trip to every posted call.\n\n{}\n{}",
        table.text(),
        published()
    );
    Ok(found)
}

fn cells(place: &[String; 2], what: &str, seconds: &[f64]) -> Vec<String> {
    let mut row = place.to_vec();
    row.push(what.to_owned());
    row.extend(seconds.iter().map(|seconds| time(*seconds)));
    row.push(format!("{:.0}", seconds[0] / seconds[3]));
    row
}

/// Milliseconds on the V100, as published (Table 5): local, RDMA, RDMA with all, what its model says of that.
const PUBLISHED: [(&Application, [f64; 4]); 4] = [
    (&Application::RESNET, [5.8, 12.0, 6.2, 5.7]),
    (&Application::SD, [8_118.3, 8_282.0, 8_107.4, 7_752.4]),
    (&Application::BERT, [50.5, 57.3, 48.5, 49.3]),
    (&Application::GPT2, [596.9, 742.5, 568.6, 590.1]),
];

/// Published times, beside virtual time over the same network without its software.
fn published() -> String {
    // 2.6 us in one direction, 180 Gbit/s: what was measured between its two machines.
    let link = Link { round_trip: 5.2e-6, up: 180e9 / 8.0, down: 180e9 / 8.0 };
    let mut table = Table::new([
        "application",
        "local",
        "RDMA",
        "all of it",
        "base / all",
        "its model of all",
        "virtual time, base",
        "all of it",
        "base / all",
    ]);
    for (application, [local, base, all, model]) in PUBLISHED {
        let [ours_base, ours_all] = [Design::Base, Design::Locality].map(|design| {
            let calls: Vec<Call> = trace(application, design).collect();
            replay::remote(calls, link)
        });
        let milliseconds = |value: f64| time(value / 1e3);
        table.row([
            application.name.to_owned(),
            milliseconds(local),
            milliseconds(base),
            milliseconds(all),
            format!("{:.2}", base / all),
            milliseconds(model),
            time(ours_base),
            time(ours_all),
            format!("{:.2}", ours_base / ours_all),
        ]);
    }
    format!(
        "Its own network had 2.6 us in one direction. Published times of the V100 in the largest batch, beside virtual time over that network: the \
         latter counts round trips and bytes, the former processors at both ends too.\n\n{}",
        table.text()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_times_are_those_of_the_applications() {
        for (application, [local, ..]) in PUBLISHED {
            assert!((application.v100.local * 1e3 / local - 1.0).abs() < 1e-9, "{}", application.name);
        }
        assert!(published().lines().count() > 6);
    }
}
