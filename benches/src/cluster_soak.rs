//! Measures whether a cluster stays stable in a long run: the example at its rated load over six workers on three sites
//! (`benches/experiments/cluster_soak.py`), with memory, descriptors and threads of each process every ten seconds.
use crate::fit::line;
use crate::panels::{Line, Panel, Panels};
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cluster-soak`.
#[derive(Debug, Clone, Args)]
#[group(id = "cluster-soak-options")]
pub(crate) struct Options {
    /// Minutes, for cluster-soak.
    #[arg(long, env = "TIDEMILL_SOAK_MINUTES", default_value_t = 2.0)]
    soak_minutes: f64,
    /// Judges and draws this table, which the script has written, instead of running; for cluster-soak.
    #[arg(long)]
    soak_table: Option<PathBuf>,
}

/// Largest growth of a process's memory that counts as flat, MiB per hour over the second half of the time.
const MEMORY_BOUND: f64 = 6.0;
/// Largest growth of the numbers of descriptors and of threads, as above.
const COUNT_BOUND: f64 = 2.0;
const MIB: f64 = (1 << 20) as f64;

/// One sample of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    seconds: f64,
    memory: f64,
    descriptors: f64,
    threads: f64,
    processor: f64,
}

/// The name and the value of a counter.
type Count = (&'static str, fn(&Sample) -> f64);

/// The counters of a process.
const COUNTS: [Count; 2] =
    [("descriptors", |sample| sample.descriptors), ("threads", |sample| sample.threads)];

/// Samples by kind, name and process id.
type Samples = BTreeMap<(String, String, u32), Vec<Sample>>;

pub(crate) fn run(options: &Options, binary: &Path, folder: &Path) -> anyhow::Result<Answer> {
    std::fs::create_dir_all(folder)?;
    let table = folder.join("cluster-soak.csv");
    match &options.soak_table {
        Some(given) => drop(std::fs::copy(given, &table).with_context(|| given.display().to_string())?),
        None => soak(options, binary, &table)?,
    }
    let samples = read(&std::fs::read_to_string(&table)?)?;
    draw(&samples, &folder.join("cluster-soak.svg"))?;
    Ok(Answer::new("cluster-soak", "Does a cluster stay as it is when it runs for long?", judge(&samples)))
}

/// Runs the script, which writes the table.
fn soak(options: &Options, binary: &Path, table: &Path) -> anyhow::Result<()> {
    let status = Command::new("python3")
        .arg("benches/experiments/cluster_soak.py")
        .arg("--binary")
        .arg(binary)
        .args(["--minutes", &options.soak_minutes.to_string()])
        .arg("--csv")
        .arg(table)
        .status()
        .context("cannot start python3 benches/experiments/cluster_soak.py")?;
    ensure!(status.success(), "the soak ended with {status}");
    Ok(())
}

/// Reads the table that the script wrote.
fn read(text: &str) -> anyhow::Result<Samples> {
    let mut samples = Samples::new();
    for row in text.lines().skip(1) {
        let parts: Vec<&str> = row.split(',').collect();
        let [seconds, kind, name, pid, rest @ ..] = parts.as_slice() else {
            anyhow::bail!("not a row: {row}")
        };
        let [memory, descriptors, threads, processor] = rest else { anyhow::bail!("not a row: {row}") };
        let sample = Sample {
            seconds: seconds.parse()?,
            memory: memory.parse()?,
            descriptors: descriptors.parse()?,
            threads: threads.parse()?,
            processor: processor.parse()?,
        };
        let key = ((*kind).to_owned(), (*name).to_owned(), pid.parse()?);
        samples.entry(key).or_default().push(sample);
    }
    ensure!(!samples.is_empty(), "the table is empty");
    Ok(samples)
}

/// Returns the growth per hour over the second half of the time.
fn growth(samples: &[Sample], of: fn(&Sample) -> f64) -> f64 {
    let half = samples.last().map_or(0.0, |last| last.seconds / 2.0);
    let points: Vec<_> = samples
        .iter()
        .filter(|sample| sample.seconds >= half)
        .map(|sample| (sample.seconds / 3600.0, of(sample)))
        .collect();
    line(&points).1
}

fn judge(samples: &Samples) -> Vec<Measurement> {
    let mut all = Vec::new();
    for ((kind, name, _), of_process) in samples {
        let name = |what: &str| format!("{kind} {name}: {what}");
        let values = |of: fn(&Sample) -> f64| of_process.iter().map(of).collect::<Vec<_>>();
        let memory: fn(&Sample) -> f64 = |sample| sample.memory / MIB;
        all.push(Measurement::new(name("memory"), "MiB", values(memory)));
        let growing = growth(of_process, memory);
        all.push(Measurement::new(name("memory, growth"), "MiB/h", vec![growing]).goal(MEMORY_BOUND));
        for (what, of) in COUNTS {
            all.push(Measurement::new(name(what), "", values(of)));
            let growing = growth(of_process, of);
            all.push(
                Measurement::new(name(&format!("{what}, growth")), "1/h", vec![growing]).goal(COUNT_BOUND),
            );
        }
        if let [first, .., last] = of_process.as_slice() {
            let used = (last.processor - first.processor) / (last.seconds - first.seconds).max(1e-9) * 100.0;
            all.push(Measurement::new(name("processor time"), "% of one", vec![used]));
        }
    }
    all
}

fn draw(samples: &Samples, path: &Path) -> anyhow::Result<()> {
    let lines = |kinds: &[&str], of: fn(&Sample) -> f64| -> Vec<Line> {
        let chosen = samples.iter().filter(|((kind, ..), _)| kinds.contains(&kind.as_str()));
        chosen
            .map(|((kind, name, _), samples)| Line {
                name: if kind == "run" { format!("run, {name}") } else { name.clone() },
                points: samples.iter().map(|sample| (sample.seconds / 60.0, of(sample))).collect(),
                fitted: None,
            })
            .collect()
    };
    let panel = |title: &str, kinds: &[&str], of: fn(&Sample) -> f64| Panel {
        title: title.to_owned(),
        lines: lines(kinds, of),
    };
    let everybody = ["controller", "agent"];
    let drawing = Panels {
        title: "A cluster at its rated load, process by process".to_owned(),
        across: "minutes".to_owned(),
        panels: vec![
            panel("memory of the controller and the agents, MiB", &everybody, |sample| sample.memory / MIB),
            panel("memory of the processes of the run, MiB", &["run"], |sample| sample.memory / MIB),
            panel("descriptors of the controller and the agents", &everybody, |sample| sample.descriptors),
            panel("descriptors of the processes of the run", &["run"], |sample| sample.descriptors),
            panel("threads of the controller and the agents", &everybody, |sample| sample.threads),
            panel("threads of the processes of the run", &["run"], |sample| sample.threads),
        ],
    };
    drawing.write(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "seconds,kind,process,pid,memory_bytes,descriptors,threads,processor_seconds
0.0,agent,edge-1,7,1048576,9,4,0.1
600.0,agent,edge-1,7,2097152,9,4,0.2
1200.0,agent,edge-1,7,2097152,10,4,0.3
1800.0,agent,edge-1,7,2097152,11,4,0.4
";

    #[test]
    fn growth_is_that_of_the_second_half() {
        let samples = read(TABLE).expect("a table");
        let (_, of_agent) = samples.first_key_value().expect("one process");
        assert!(growth(of_agent, |sample| sample.memory).abs() < 1e-9);
        assert!((growth(of_agent, |sample| sample.descriptors) - 6.0).abs() < 1e-9);
        assert!(read("seconds\n1,2\n").is_err());
    }
}
