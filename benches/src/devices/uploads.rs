//! A model of 46.8 MB, as ResNet-18 has, comes to a host: the first time, and again.
use super::far_end::{Host, Way};
use super::now;
use super::page::{Found, Table, median, time};
use super::relay::Shape;
use crate::result::Measurement;
use std::io::Cursor;
use tidemill_device::emulated::artifact_of;

const BYTES: usize = 46_800_000;
const ROUND_TRIP_MS: f64 = 20.0;
const MEGABITS: f64 = 100.0;

pub(super) fn run(rounds: usize) -> anyhow::Result<Found> {
    let shape = Shape::new(ROUND_TRIP_MS, MEGABITS);
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for round in 0..rounds.min(3) {
        // Another content is another model.
        let content: Vec<u8> =
            (0..BYTES).map(|at| (at >> 3) as u8 ^ (at >> 11) as u8 ^ round as u8).collect();
        let artifact = artifact_of("resnet", &content, 1, 1);
        let host = Host::new(0.0)?;
        for times in [&mut first, &mut again] {
            let session = host.connect(Way::Link(shape))?;
            let begin = now();
            session.load(&artifact, |_| Ok(Box::new(Cursor::new(content.clone()))))?;
            session.flush()?;
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    let (least, trips) = (BYTES as f64 / shape.rate, 2.0 * ROUND_TRIP_MS / 1e3);
    let mut table = Table::new(["", "bytes and round trips", "measured"]);
    table.row(["the host does not have it".to_owned(), time(least + trips), time(median(&first))]);
    table.row(["another session loads it".to_owned(), time(trips), time(median(&again))]);
    let section = format!(
        "## A model of 46.8 MB\n\nOver {ROUND_TRIP_MS} ms and {MEGABITS} Mbit/s, until the device has loaded it. Files go by content: a host that \
         has one gets its hash.\n\n{}",
        table.text()
    );
    let seconds = Measurement::new("a model of 46.8 MB, the first time", "s", first).goal(3.9);
    let trips = again.iter().map(|seconds| seconds / ROUND_TRIP_MS * 1e3).collect();
    let trips = Measurement::new("the same model, in another session", "round trips", trips).goal(2.0);
    Ok(Found { measurements: vec![seconds, trips], section })
}
