//! Compares answers to a moving load over a bursty day: one plan for the peak, one for the mean, plans switched by
//! level, and cheaper variants on a fixed fleet, by their costs and the records that miss service levels. Plans come
//! from the `tidemill` command, as for users; late records come from the simulator.
mod day;
mod drawing;
mod judge;
mod report;

use anyhow::Context;
use clap::Args;
use day::{Workload, tidemill};
use judge::{DayStrategy, Level, Outcome, judge};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tidemill_simulator::{Spell, Trace};

/// Options of `load-moves`.
#[derive(Debug, Clone, Args)]
#[group(id = "load_moves")]
pub(crate) struct Options {
    /// Seed of the day of `load-moves`, for scripts/bursty_trace.py.
    #[arg(long, default_value_t = 7)]
    day_seed: u64,
    /// The repository, for the inputs of `load-moves`.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

/// A workload's day with all results.
struct Found {
    title: String,
    unit_rate: f64,
    trace: Trace,
    /// The levels of the switched plans over the day, in factors.
    steps: Vec<(f64, f64, f64)>,
    ways: Vec<(DayStrategy, Outcome)>,
}

pub(crate) fn run(options: &Options, binary: &Path, folder: &Path) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir().context("cannot make a folder for the plans")?;
    let file = scratch.path().join("day.csv");
    let text = day::bursty(&options.root, options.day_seed)?;
    std::fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    let trace = Trace::parse(&text, 1.0)?;
    let mut all = Vec::new();
    for workload in Workload::all(&options.root)? {
        println!("{}", workload.title);
        let contest =
            Contest { binary, workload: &workload, trace: &trace, file: &file, scratch: scratch.path() };
        all.push(contest.hold()?);
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    report::write(folder, options.day_seed, &all)?;
    drawing::write(&folder.join("load-moves.svg"), &all)
}

/// One workload's contest.
struct Contest<'a> {
    binary: &'a Path,
    workload: &'a Workload,
    trace: &'a Trace,
    file: &'a Path,
    scratch: &'a Path,
}

impl Contest<'_> {
    fn hold(&self) -> anyhow::Result<Found> {
        let switched = self.followed("plans switched by level", &[])?;
        let spells = switched.spells.iter();
        let steps = spells.map(|spell| (spell.begin, spell.end, switched.levels[spell.level].top)).collect();
        let scaling = ["--planner", "accuracy-scaling"];
        let level = ["--planner", "accuracy-scaling", "--goal", "level"];
        let quick = [&level[..], &["--dwell", "30s", "--reaction", "5s"]].concat();
        let ways = vec![
            self.followed("one plan for the peak", &["--levels", "1"])?,
            self.mean()?,
            switched,
            self.followed("accuracy scaling, most accurate", &scaling)?,
            self.followed("accuracy scaling, up to the level", &level)?,
            self.followed("the same, 5 s to react, 30 s dwell", &quick)?,
        ];
        let mut found = Vec::new();
        for way in ways {
            let outcome = judge(self.workload, self.trace, &way)?;
            println!("  {}", report::line(&way, &outcome));
            found.push((way, outcome));
        }
        Ok(Found {
            title: self.workload.title.clone(),
            unit_rate: self.workload.rate,
            trace: self.trace.clone(),
            steps,
            ways: found,
        })
    }

    /// Plans that follow the load, with `tidemill plan --trace`.
    fn followed(&self, name: &str, more: &[&str]) -> anyhow::Result<DayStrategy> {
        let out = self.scratch.join("plans");
        if out.exists() {
            std::fs::remove_dir_all(&out).context("cannot remove old plans")?;
        }
        let (file, folder) = (self.file.display().to_string(), out.display().to_string());
        let own = ["--trace", &file, "--out", &folder, "--output", "json"];
        let answer: Value =
            serde_json::from_str(&tidemill(self.binary, self.workload, &[&own[..], more].concat())?)?;
        let number = |value: &Value, path: &str| -> anyhow::Result<f64> {
            value.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} in the plans"))
        };
        let mut levels = Vec::new();
        for level in answer["levels"].as_array().context("no levels")? {
            let name = level["plan"].as_str().context("a level without a plan")?;
            let top = number(level, "/rates_up_to")? / self.workload.rate;
            let mut read = self.workload.level(&out.join(name), top)?;
            // A fleet's idle workers are paid too.
            read.compute = number(level, "/cost_per_hour/compute")?;
            levels.push(read);
        }
        let mut spells = Vec::new();
        for spell in answer["schedule"].as_array().context("no schedule")? {
            let level = number(spell, "/level")? as usize - 1;
            spells.push(Spell { begin: number(spell, "/begin")?, end: number(spell, "/end")?, level });
        }
        let switches = number(&answer, "/switched/switches_per_day")?;
        Ok(DayStrategy { name: name.to_owned(), levels, spells, switches })
    }

    /// Makes one plan for the mean load.
    fn mean(&self) -> anyhow::Result<DayStrategy> {
        let factor = self.trace.mean_factor();
        let file = self.scratch.join("mean.yaml");
        let (path, rate) = (file.display().to_string(), format!("rate={}/s", factor * self.workload.rate));
        tidemill(self.binary, self.workload, &["--slo", &rate, "--out", &path])?;
        let level: Level = self.workload.level(&file, factor)?;
        let spells = vec![Spell { begin: 0.0, end: self.trace.seconds(), level: 0 }];
        Ok(DayStrategy {
            name: "one plan for the mean".to_owned(),
            levels: vec![level],
            spells,
            switches: 0.0,
        })
    }
}
