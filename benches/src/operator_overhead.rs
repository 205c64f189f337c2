//! Measures the processor time that the engine adds per record and operator, with chains of operators that do nothing:
//! the difference to a run without them, divided by records and operators. Also measures the overhead of engine and
//! channels over the bare call of each model of the example, in one process, across processes and across network
//! namespaces.
mod example;
mod table;

use crate::parts::{Middle, chain, cpu_microseconds, payload};
use crate::result::{Answer, Measurement};
pub(crate) use example::Options;
use std::path::Path;
use std::time::Instant;
use tidemill_engine::{Run, RunOptions};

const REPETITIONS: usize = 11;
const OPERATORS: usize = 8;

fn cpu_of(rows: usize, batches: usize, middle: Middle) -> anyhow::Result<f64> {
    let program = chain(payload(rows, 32), batches, None, middle, None);
    let before = cpu_microseconds();
    let report = Run::start(program, RunOptions::default())?.wait()?;
    let used = cpu_microseconds() - before;
    anyhow::ensure!(report.sinks[0].records == (rows * batches) as u64, "records are missing");
    Ok(used / (rows * batches) as f64)
}

#[expect(clippy::disallowed_methods, reason = "what a bare call takes is real time")]
fn now() -> Instant {
    Instant::now()
}

pub(crate) fn run(options: &Options, binary: &Path, folder: &Path) -> anyhow::Result<Answer> {
    let mut measurements = Vec::new();
    let chains = [(1, 40_000, 5.0), (64, 8_000, 0.5)];
    for (rows, batches, goal) in chains.into_iter().filter(|_| !options.overhead_of_models) {
        let (mut bare, mut operators, mut models) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..REPETITIONS {
            // Interleaved, so that a busy moment of the machine affects all three.
            let without = cpu_of(rows, batches, Middle::Operators(0))?;
            let with = cpu_of(rows, batches, Middle::Operators(OPERATORS))?;
            let with_models = cpu_of(rows, batches, Middle::Models(2))?;
            bare.push(without);
            operators.push((with - without) / OPERATORS as f64);
            models.push((with_models - without) / 2.0);
        }
        let name = |what: &str| format!("{what}, batch {rows}");
        let per = "us CPU per record";
        measurements.push(Measurement::new(name("source and sink alone"), per, bare).baseline());
        measurements
            .push(Measurement::new(name("added by one operator in the slot"), per, operators).goal(goal));
        measurements.push(Measurement::new(name("added by one model on its executor"), per, models));
    }
    let (of_example, rows) = example::measure(options, binary)?;
    table::write(folder, &rows)?;
    measurements.extend(of_example);
    Ok(Answer::new(
        "operator-overhead",
        "How much processor time does the engine add per record and operator?",
        measurements,
    ))
}
