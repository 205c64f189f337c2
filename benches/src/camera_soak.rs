//! Measures whether a run over eight cameras stays as it is while they are killed, stopped and started again
//! (`benches/experiments/cameras.py soak`): memory, descriptors and threads every five seconds, and where each frame went.
use crate::fit::line;
use crate::panels::{Line, Panel, Panels};
use crate::result::{Answer, Measurement};
use anyhow::{Context, ensure};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `camera-soak`.
#[derive(Debug, Clone, Args)]
#[group(id = "camera-soak-options")]
pub(crate) struct Options {
    /// Minutes, for camera-soak.
    #[arg(long, default_value_t = 2.0)]
    camera_minutes: f64,
    /// Judges and draws what is in this folder, in which the script has run, instead of running it; for camera-soak.
    #[arg(long)]
    camera_folder: Option<PathBuf>,
}

/// Largest growth of memory that counts as flat, MiB per hour over the second half of the time, and of descriptors and
/// threads.
const MEMORY_BOUND: f64 = 6.0;
const COUNT_BOUND: f64 = 2.0;
/// Columns of the table, from its first: time, memory, descriptors, threads.
const SHOWN: [(&str, usize, &str, f64); 4] = [
    ("memory", 1, "MiB", MEMORY_BOUND),
    ("memory of its children", 2, "MiB", MEMORY_BOUND),
    ("descriptors", 3, "", COUNT_BOUND),
    ("threads", 4, "", COUNT_BOUND),
];
const LIVE: usize = 6;

pub(crate) fn run(options: &Options, binary: &Path, out: &Path) -> anyhow::Result<Answer> {
    let own = tempfile::tempdir()?;
    let folder = options.camera_folder.as_deref().unwrap_or(own.path());
    if options.camera_folder.is_none() {
        let mut script = Command::new("python3");
        script.args([
            "benches/experiments/cameras.py",
            "soak",
            "--minutes",
            &options.camera_minutes.to_string(),
        ]);
        let status = script.arg("--out").arg(folder).arg("--binary").arg(binary).status();
        ensure!(status.context("cannot start python3")?.success(), "the soak failed");
    }
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let rows = table(&read("cameras-soak.csv")?)?;
    let told: serde_json::Value = serde_json::from_str(&read("cameras-soak.json")?)?;
    std::fs::create_dir_all(out)?;
    std::fs::copy(folder.join("cameras-soak.csv"), out.join("camera-soak.csv"))?;
    draw(&rows, &out.join("camera-soak.svg"))?;
    let mut all = Vec::new();
    for (name, column, unit, bound) in SHOWN {
        all.push(Measurement::new(name, unit, rows.iter().map(|row| row[column]).collect()));
        let growth = Measurement::new(format!("{name}, growth"), "1/h", vec![growth(&rows, column)]);
        all.push(growth.goal(bound));
    }
    let number = |of: &serde_json::Value, name: &str| {
        of[name].as_f64().with_context(|| format!("no `{name}` in cameras-soak.json"))
    };
    for name in ["cuts", "stalls"] {
        all.push(Measurement::new(name, "", vec![number(&told, name)?]));
    }
    let back = |name: &str| number(&told["resumed_seconds"], name);
    let count = back("count")? as usize;
    // The script gives no p90; its p95 is not below.
    let resumed = [back("p50")?, back("p95")?, back("p99")?, back("max")?];
    all.push(
        Measurement::summed_up("live again after the camera is back (p90: p95)", "s", count, resumed)
            .goal(1.0),
    );
    for (name, goal) in [("received", None), ("dropped", None), ("unexplained", Some(0.0))] {
        let measured = Measurement::new(format!("frames, {name}"), "", vec![number(&told["frames"], name)?]);
        all.push(match goal {
            Some(goal) => measured.goal(goal),
            None => measured,
        });
    }
    Ok(Answer::new("camera-soak", "Does a run over eight cameras stay as it is while they fail?", all))
}

/// Numbers of the table that the script wrote, row by row.
fn table(text: &str) -> anyhow::Result<Vec<Vec<f64>>> {
    let parse =
        |row: &str| row.split(',').map(|value| value.trim().parse::<f64>()).collect::<Result<Vec<_>, _>>();
    let rows: Vec<Vec<f64>> = text
        .lines()
        .skip(1)
        .map(|row| parse(row).with_context(|| format!("not a row: {row}")))
        .collect::<Result<_, _>>()?;
    ensure!(
        !rows.is_empty() && rows.iter().all(|row| row.len() > LIVE),
        "the table is empty or has other columns"
    );
    Ok(rows)
}

/// Growth per hour over the second half of the time.
fn growth(rows: &[Vec<f64>], column: usize) -> f64 {
    let half = rows.last().map_or(0.0, |last| last[0] / 2.0);
    let points: Vec<_> =
        rows.iter().filter(|row| row[0] >= half).map(|row| (row[0] / 3600.0, row[column])).collect();
    line(&points).1
}

fn draw(rows: &[Vec<f64>], path: &Path) -> anyhow::Result<()> {
    let curve = |name: &str, column: usize| Line {
        name: name.to_owned(),
        points: rows.iter().map(|row| (row[0] / 60.0, row[column])).collect(),
        fitted: None,
    };
    let panel = |title: &str, lines: Vec<Line>| Panel { title: title.to_owned(), lines };
    let drawing = Panels {
        title: "Eight cameras that fail".to_owned(),
        across: "minutes".to_owned(),
        panels: vec![
            panel("memory, MiB", vec![curve("tidemill", 1), curve("its children", 2)]),
            panel("descriptors and threads", vec![curve("descriptors", 3), curve("threads", 4)]),
            panel("cameras that are live", vec![curve("live", LIVE)]),
        ],
    };
    drawing.write(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_second_half() {
        let head = "seconds,memory_mib,children_mib,descriptors,threads,processor_seconds,live\n";
        let rows =
            table(&format!("{head}0,50,1,2,3,4,8\n1800,90,1,2,3,4,8\n3600,91,1,3,3,4,8\n")).expect("a table");
        assert!((growth(&rows, 1) - 2.0).abs() < 1e-9, "{}", growth(&rows, 1));
        assert!(table(head).is_err() && table("a\n1,x\n").is_err());
    }
}
