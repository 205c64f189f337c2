//! Inferences with a session: upload, run and read in one message, on one host and over links.
use super::far_end::{Connected, Host, Way};
use super::now;
use super::page::{Found, Table, median, percent, time};
use super::relay::Shape;
use crate::result::Measurement;
use std::collections::VecDeque;
use std::time::Instant;
use tidemill_device::device::{Device, ModelId, Run, TensorId};
use tidemill_device::session::{CallError, Pending};
use tidemill_device::value::{Element, Value};
use tidemill_replay::{link::Link, run};

/// Bytes of 3 x 224 x 224 floats, and of the same as bytes.
const FLOATS: usize = 602_112;
const BYTES: usize = FLOATS / 4;
/// Milliseconds of the runs beside a device of this process.
const RUNS_MS: [f64; 5] = [0.0, 1.0, 2.0, 5.0, 20.0];
/// Bytes of the outputs: a vector of numbers.
const OUTPUT: usize = 4_000;
/// Links: milliseconds of a round trip, and Mbit/s.
const LINKS: [(f64, f64); 4] = [(5.0, 100.0), (20.0, 100.0), (20.0, 670.0), (50.0, 100.0)];

/// An inference that was posted, and its tensors.
struct Posted {
    begin: Instant,
    pending: Pending,
    tensors: [TensorId; 2],
}

/// Posts an inference. The input of the run is a tensor as large as the outputs: the emulated model makes outputs that are as large as its
/// input, of all of its bytes, which would take longer than what is measured. The upload comes before it all the same.
fn post(to: &Connected, input: &[u8], output: TensorId) -> Result<Posted, CallError> {
    let begin = now();
    let mut lane = to.lane();
    let uploaded = lane.upload(Element::Uint8, &[input.len()], input)?;
    let made = lane.run(to.model, &[output], &[0])?;
    let made = made.first().copied().unwrap_or(output);
    let pending = lane.read(made)?;
    lane.free(&[uploaded, made])?;
    drop(lane);
    Ok(Posted { begin, pending, tensors: [uploaded, made] })
}

impl Posted {
    /// Seconds until the output is here.
    fn wait(self) -> Result<f64, CallError> {
        let answer = self.pending.wait()?;
        std::hint::black_box((answer.value()?, self.tensors));
        Ok(self.begin.elapsed().as_secs_f64())
    }
}

/// A tensor whose size is that of the outputs.
fn template(to: &Connected) -> Result<TensorId, CallError> {
    let template = to.lane().create(Element::Uint8, &[OUTPUT])?;
    to.flush()?;
    Ok(template)
}

/// Seconds of an inference on a device of this process.
fn here(device: &mut dyn Device, model: ModelId, input: &[u8]) -> anyhow::Result<f64> {
    let begin = now();
    let [template, uploaded, made] = [TensorId(0), TensorId(1), TensorId(2)];
    device.upload(uploaded, Value::new(Element::Uint8, vec![input.len()], input.to_vec())?)?;
    device.run(&Run { model, inputs: vec![template], outputs: vec![(0, made)] })?;
    std::hint::black_box(device.read(made)?);
    device.free(uploaded);
    device.free(made);
    Ok(begin.elapsed().as_secs_f64())
}

fn milliseconds(seconds: &[f64]) -> Vec<f64> {
    seconds.iter().map(|seconds| seconds * 1e3).collect()
}

/// On one host, beside a device of this process.
pub(super) fn on_host(rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let columns = ["run", "in this process", "Unix socket", "over it", "", "TCP", "over it", ""];
    let mut table = Table::new(columns);
    let input = vec![7; FLOATS];
    for run_ms in RUNS_MS {
        let host = Host::new(run_ms)?;
        let (mut device, model) = host.here()?;
        device.create(TensorId(0), Element::Uint8, &[OUTPUT])?;
        let ways = Way::ON_HOST.map(|(way, name)| {
            let to = host.connect(way)?;
            let output = template(&to)?;
            Ok((to, output, name))
        });
        let ways = ways.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let mut local = Vec::new();
        let mut remote = vec![Vec::new(); ways.len()];
        // Turns, so that what else the machine does concerns all of them.
        for _ in 0..50 * rounds {
            local.push(here(device.as_mut(), model, &input)?);
            for ((to, output, _), samples) in ways.iter().zip(&mut remote) {
                samples.push(post(to, &input, *output)?.wait()?);
            }
        }
        let base = median(&local);
        let mut row = vec![format!("{run_ms} ms"), time(base)];
        let name = |way: &str| format!("inference of {run_ms} ms, 602,112 B, {way}");
        found
            .measurements
            .push(Measurement::new(name("in this process"), "ms", milliseconds(&local)).baseline());
        for ((.., way), samples) in ways.iter().zip(&remote) {
            let over = median(samples) - base;
            row.extend([time(median(samples)), time(over), percent(over / base)]);
            found.measurements.push(Measurement::new(name(way), "ms", milliseconds(samples)));
            let over = Measurement::new(format!("over it: {}", name(way)), "us", vec![over * 1e6]);
            found.measurements.push(match *way {
                "Unix socket" => over.goal(60.0),
                _ if run_ms >= 2.0 => over.goal(0.05 * base * 1e6),
                _ => over,
            });
        }
        table.row(row);
    }
    found.section = format!(
        "## An inference on one host\n\nUpload of 602,112 B, run, and read of {OUTPUT} B, beside the same device in this process; \
         medians of {}. Goals: 60 us and 2 % over the Unix socket, 5 % over TCP for runs of at least 2 ms. Where we lose: \
         whatever a run takes, its bytes are copied into the socket and out of it.\n\n{}",
        50 * rounds,
        table.text()
    );
    Ok(found)
}

/// One at a time over links: round trip, bytes and run, and nothing else.
pub(super) fn over_links(rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut table =
        Table::new(["link", "input", "run", "round trip + bytes + run", "measured", "over it", "p99"]);
    for (round_trip_ms, megabits) in LINKS {
        let shape = Shape::new(round_trip_ms, megabits);
        for (bytes, run_ms) in [(FLOATS, 2.0), (FLOATS, 40.0), (BYTES, 2.0)] {
            let host = Host::new(run_ms)?;
            let to = host.connect(Way::Link(shape))?;
            let (output, input) = (template(&to)?, vec![7; bytes]);
            let mut samples = Vec::new();
            for _ in 0..8 * rounds {
                samples.push(post(&to, &input, output)?.wait()?);
            }
            let all = run::Run {
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
        let to = host.connect(Way::Link(shape))?;
        let (output, input) = (template(&to)?, vec![7; bytes]);
        let all = run::Run {
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
                rates.push(rate(&to, &input, output, window)?);
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
fn rate(to: &Connected, input: &[u8], output: TensorId, window: usize) -> anyhow::Result<f64> {
    const COUNTED: usize = 24;
    let mut outstanding = VecDeque::new();
    for _ in 0..window {
        outstanding.push_back(post(to, input, output)?);
    }
    let mut begin = now();
    for done in 0..window + COUNTED {
        if let Some(first) = outstanding.pop_front() {
            first.wait()?;
        }
        if done + 1 == window {
            begin = now();
        }
        outstanding.push_back(post(to, input, output)?);
    }
    let seconds = begin.elapsed().as_secs_f64();
    for left in outstanding {
        left.wait()?;
    }
    Ok(COUNTED as f64 / seconds)
}
