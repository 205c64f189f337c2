//! Inferences on one host: what a proxy adds to the same device in this process.
use super::far_end::{Host, Way};
use super::inferences::{Client, FLOATS, Here, Input, OUTPUT, milliseconds};
use super::page::{Found, Table, median, percent, time};
use crate::result::Measurement;
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use tidemill_device::device::Opener;
use tidemill_device::emulated::artifact_of;
use tidemill_device::value::Element;
use tidemill_remote::backends::Backends;

/// Milliseconds of the emulated runs.
const RUNS_MS: [f64; 5] = [0.0, 1.0, 2.0, 5.0, 20.0];

/// A row of inferences on one host, beside a device of this process. `run`: what is known of the time of a run.
fn beside(
    host: &Host,
    input: &Input,
    name: &str,
    times: usize,
    run: Option<f64>,
) -> anyhow::Result<(Vec<String>, Vec<Measurement>)> {
    let mut here = Here::new(host, input)?;
    let ways = Way::ON_HOST.map(|(way, name)| Ok((Client::new(host.connect(way)?, input)?, name)));
    let ways = ways.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let (mut local, mut remote) = (Vec::new(), vec![Vec::new(); ways.len()]);
    // Turns, so that what else the machine does concerns all of them.
    for round in 0..times + 3 {
        let mut seconds = vec![here.infer()?];
        for (client, _) in &ways {
            seconds.push(client.post()?.wait()?);
        }
        // The first ones find cold caches.
        if round >= 3 {
            local.push(seconds[0]);
            remote.iter_mut().zip(&seconds[1..]).for_each(|(samples, more)| samples.push(*more));
        }
    }
    let base = median(&local);
    let mut row = vec![name.to_owned(), time(base)];
    let named = |way: &str| format!("inference of {name}, {} B, {way}", input.bytes.len());
    let mut measurements =
        vec![Measurement::new(named("in this process"), "ms", milliseconds(&local)).baseline()];
    for ((_, way), samples) in ways.iter().zip(&remote) {
        let over = median(samples) - base;
        row.extend([time(median(samples)), time(over), percent(over / base)]);
        measurements.push(Measurement::new(named(way), "ms", milliseconds(samples)));
        let over = Measurement::new(format!("over it: {}", named(way)), "us", vec![over * 1e6]);
        measurements.push(match *way {
            "TCP" if run.unwrap_or(base * 1e3) < 2.0 => over,
            "TCP" => over.goal(0.05 * base * 1e6),
            "shared memory" => over.goal(60.0),
            _ => over,
        });
    }
    Ok((row, measurements))
}

fn columns(first: &str) -> Vec<String> {
    let mut columns = vec![first.to_owned(), "in this process".to_owned()];
    for (_, name) in Way::ON_HOST {
        columns.extend([name.to_owned(), "over it".to_owned(), String::new()]);
    }
    columns
}

/// Emulated runs on one host.
pub(super) fn emulated(rounds: usize) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut table = Table::new(columns("run"));
    let input = Input::emulated(FLOATS);
    for run_ms in RUNS_MS {
        let host = Host::new(run_ms)?;
        let (row, more) = beside(&host, &input, &format!("{run_ms} ms"), 50 * rounds, Some(run_ms))?;
        table.row(row);
        found.measurements.extend(more);
    }
    found.section = format!(
        "## An inference on one host\n\nUpload of 602,112 B, run, and read of {OUTPUT} B, beside the same device in this process; \
         medians of {}. The emulated run takes no processor time. Goals: with shared memory 60 us and 2 % over a device of this process, over TCP 5 % for \
         runs of at least 2 ms. Where we lose: short runs.\n\n{}",
        50 * rounds,
        table.text()
    );
    Ok(found)
}

/// Models of the example that describe scenes, and the width of their pictures.
const MODELS: [(&str, usize); 4] = [("tiny", 128), ("medium", 192), ("large", 256), ("huge", 256)];

/// Runs of real models on one host, on the back end of the default build.
pub(super) fn of_models(rounds: usize, root: &Path) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut table = Table::new(columns("model"));
    let opener: Arc<dyn Opener> = Arc::new(Backends::open(&["rten".to_owned()], root)?);
    for (size, width) in MODELS {
        let name = format!("scene-features-{size}");
        let path = root.join(format!("models/vqa/{name}.onnx"));
        let content = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut artifact = artifact_of(&name, &content, 1, 1);
        artifact.files[0].name = format!("{name}.onnx");
        (artifact.inputs, artifact.outputs) = (vec!["image".to_owned()], vec!["features".to_owned()]);
        let shape = vec![1, 3, width, width];
        let count: usize = shape.iter().product();
        let bytes = (0..count).flat_map(|at| ((at % 251) as f32 / 251.0).to_le_bytes()).collect();
        let input = Input { element: Element::Float32, shape, bytes, outputs: None };
        let host = Host::of(Arc::clone(&opener), artifact, content)?;
        let (row, more) = beside(&host, &input, &name, 20 * rounds, None)?;
        table.row(row);
        found.measurements.extend(more);
    }
    found.section = format!(
        "## Models on one host\n\nThe back end `rten` on the processors, in this process and over a connection: one picture of 128, 192 or 256 points \
         a side as floats (0.2 to 0.8 MB); medians of {}. Runs and copies share the processors. Goals as above.\n\n{}",
        20 * rounds,
        table.text()
    );
    Ok(found)
}
