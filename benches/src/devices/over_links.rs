//! Inferences over links, one at a time and several.
use super::far_end::{Host, Way};
use super::inferences::{Client, FLOATS, Input, OUTPUT, milliseconds};
use super::now;
use super::page::{Found, Table, median, percent, time};
use super::relay::Shape;
use crate::result::Measurement;
use std::collections::VecDeque;
use tidemill_replay::link::Link;
use tidemill_replay::run::Run;

/// Bytes of a picture that is not made floats.
const BYTES: usize = FLOATS / 4;
/// Links: milliseconds of a round trip, and Mbit/s.
const LINKS: [(f64, f64); 4] = [(5.0, 100.0), (20.0, 100.0), (20.0, 670.0), (50.0, 100.0)];

/// One at a time over links: round trip, bytes and run, and nothing else.
pub(super) fn alone(rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut table =
        Table::new(["link", "input", "run", "round trip + bytes + run", "measured", "over it", "p99"]);
    for (round_trip_ms, megabits) in LINKS {
        let shape = Shape::new(round_trip_ms, megabits);
        for (bytes, run_ms) in [(FLOATS, 2.0), (FLOATS, 40.0), (BYTES, 2.0)] {
            let host = Host::new(run_ms)?;
            let input = Input::emulated(bytes);
            let client = Client::new(host.connect(Way::Link(shape))?, &input)?;
            let mut samples = Vec::new();
            for _ in 0..8 * rounds {
                samples.push(client.post()?.wait()?);
            }
            let all = Run {
                up: bytes as f64,
                down: OUTPUT as f64,
                round_trips: 1,
                local: run_ms / 1e3,
                software: 0.0,
                queue: 0.0,
            };
            let link = Link { round_trip: round_trip_ms / 1e3, up: shape.rate, down: shape.rate };
            let least = all.remote(&link);
            let measured = median(&samples);
            let name = format!("{bytes} B and {run_ms} ms over {round_trip_ms} ms, {megabits} Mbit/s");
            let measurement = Measurement::new(name, "ms", milliseconds(&samples));
            let p99 = time(measurement.p99() / 1e3);
            found.measurements.push(measurement.goal(least * 1.05e3));
            table.row([
                format!("{round_trip_ms} ms, {megabits} Mbit/s"),
                format!("{bytes} B"),
                format!("{run_ms} ms"),
                time(least),
                time(measured),
                percent(measured / least - 1.0),
                p99,
            ]);
        }
    }
    found.section = format!(
        "## An inference over a link\n\nOne at a time, medians of {}. Goal: 5 % over round trip, bytes and run. Published: the best system took \
         1.37 times the least that it could.\n\n{}",
        8 * rounds,
        table.text()
    );
    Ok(found)
}

/// Several outstanding inferences over one link.
pub(super) fn windows(rounds: usize) -> anyhow::Result<Found> {
    const LINK: (f64, f64) = (20.0, 100.0);
    const RUN_MS: f64 = 2.0;
    let mut found = Found::default();
    let mut table = Table::new(["outstanding", "input", "predicted", "measured", "error"]);
    let shape = Shape::new(LINK.0, LINK.1);
    let link = Link { round_trip: LINK.0 / 1e3, up: shape.rate, down: shape.rate };
    let host = Host::new(RUN_MS)?;
    for bytes in [FLOATS, BYTES] {
        let input = Input::emulated(bytes);
        let client = Client::new(host.connect(Way::Link(shape))?, &input)?;
        let all = Run {
            up: bytes as f64,
            down: OUTPUT as f64,
            round_trips: 1,
            local: RUN_MS / 1e3,
            software: 0.0,
            queue: 0.0,
        };
        for window in 1..=8 {
            let mut rates = Vec::new();
            for _ in 0..rounds {
                rates.push(rate(&client, window)?);
            }
            let predicted = all.throughput(&link, window as u32).rate();
            let measured = median(&rates);
            table.row([
                window.to_string(),
                format!("{bytes} B"),
                format!("{predicted:.1}/s"),
                format!("{measured:.1}/s"),
                percent(measured / predicted - 1.0),
            ]);
            let name = format!("{bytes} B, {window} outstanding, {} ms, {} Mbit/s", LINK.0, LINK.1);
            found.measurements.push(Measurement::new(name, "1/s", rates).goal(predicted * 0.95));
        }
    }
    found.section = format!(
        "## Several inferences at once\n\nOver {} ms and {} Mbit/s, runs of {RUN_MS} ms: what limits is the window first, the bytes then. \
         Goal: within 5 % of the prediction.\n\n{}",
        LINK.0,
        LINK.1,
        table.text()
    );
    Ok(found)
}

/// Inferences per second with this many outstanding, after as many that are not counted.
fn rate(client: &Client<'_>, window: usize) -> anyhow::Result<f64> {
    const COUNTED: usize = 24;
    let mut outstanding = VecDeque::new();
    for _ in 0..window {
        outstanding.push_back(client.post()?);
    }
    let mut begin = now();
    for done in 0..window + COUNTED {
        if let Some(first) = outstanding.pop_front() {
            first.wait()?;
        }
        if done + 1 == window {
            begin = now();
        }
        outstanding.push_back(client.post()?);
    }
    let seconds = begin.elapsed().as_secs_f64();
    for left in outstanding {
        left.wait()?;
    }
    Ok(COUNTED as f64 / seconds)
}
