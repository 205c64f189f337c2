//! Measures calls, inferences and the published call sequences on a device over a connection, beside the same device in this
//! process. The device is emulated: what it takes is known, so that the rest is ours.
mod batching;
mod calls;
mod far_end;
mod inferences;
mod on_host;
mod over_links;
mod page;
mod predictions;
mod relay;
pub(crate) mod sharing;
mod steps;
mod traces;
mod uploads;

use crate::result::Answer;
use clap::{Args, ValueEnum};
use page::Found;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options of `devices`.
#[derive(Debug, Clone, Args)]
#[group(id = "devices")]
pub(crate) struct Options {
    /// Parts of devices to measure; with all of them, the page and the result file are written.
    #[arg(long, value_enum, value_delimiter = ',')]
    devices_parts: Vec<Part>,
    /// Rounds of devices.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    devices_rounds: u16,
    /// The repository, for the models of devices.
    #[arg(long, default_value = ".")]
    devices_root: PathBuf,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One call of each class, by kind of connection.
    Calls,
    /// Inferences on one host.
    Host,
    /// Inferences with real models on one host.
    Models,
    /// Inferences over links.
    Links,
    /// Several outstanding inferences.
    Windows,
    /// Files of a model.
    Uploads,
    /// 538 calls over 10 ms.
    Pipelining,
    /// Calls that go together.
    Batching,
    /// The published calls.
    Traces,
    /// Virtual time beside real time.
    Predictions,
    /// Tenants, and a drained device.
    Sharing,
}

impl Part {
    fn measure(self, rounds: usize, root: &Path) -> anyhow::Result<Found> {
        match self {
            Part::Calls => calls::run(rounds),
            Part::Host => on_host::emulated(rounds),
            Part::Models => on_host::of_models(rounds, root),
            Part::Links => over_links::alone(rounds),
            Part::Windows => over_links::windows(rounds),
            Part::Uploads => uploads::run(rounds),
            Part::Pipelining => traces::pipelining(rounds),
            Part::Batching => batching::run(rounds),
            Part::Traces => traces::run(rounds),
            Part::Predictions => predictions::run(rounds),
            Part::Sharing => sharing::run(rounds),
        }
    }
}

/// Measures the parts; the answer, if it is of all of them.
pub(crate) fn run(options: &Options, folder: &Path) -> anyhow::Result<Option<Answer>> {
    let all = Part::value_variants();
    let parts = if options.devices_parts.is_empty() { all } else { &options.devices_parts };
    // The device of this process sleeps on this thread, as the others on theirs.
    relay::exact_timers();
    let (mut measurements, mut sections) = (Vec::new(), Vec::new());
    for part in parts {
        let begin = now();
        let found = part.measure(usize::from(options.devices_rounds), &options.devices_root)?;
        println!("{}\n({:.0} s)\n", found.section, begin.elapsed().as_secs_f64());
        measurements.extend(found.measurements);
        sections.push(found.section);
    }
    let answer =
        Answer::new("devices", "What does a model cost on a device over a connection?", measurements);
    if all.iter().any(|part| !parts.contains(part)) {
        answer.print();
        return Ok(None);
    }
    page::write(folder, &sections)?;
    Ok(Some(answer))
}

#[expect(clippy::disallowed_methods, reason = "the time that calls take is real time")]
fn now() -> Instant {
    Instant::now()
}
