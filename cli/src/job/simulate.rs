//! `tidemill job simulate`: policies of the queue beside each other.
use crate::arguments::{OutputForm, SimulateJobsArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::status_line::StatusLine;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::grouped;
use tidemill_app::listener::Listener;
use tidemill_jobs::simulator::{Input, SimulationError, simulate as simulated};
use tidemill_jobs::trace::{Costs, Trace};
use tidemill_jobs::{History, Machine, Measures, Settings, cluster, policy, workload};

/// Content of the answer.
#[derive(Serialize)]
struct Story {
    /// Number of jobs.
    jobs: usize,
    /// Seed of the jobs; none: they are those of a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Number of machines.
    machines: usize,
    /// Slots of all machines.
    slots: u64,
    /// Slot-seconds of all jobs.
    work: f64,
    /// Results, in the order of the arguments.
    policies: Vec<PolicyResult>,
    /// Whether some results are missing, because it was interrupted.
    is_interrupted: bool,
}

/// Result of a policy.
#[derive(Serialize)]
struct PolicyResult {
    policy: String,
    #[serde(flatten)]
    measures: Measures,
}

/// Executes the verb.
pub(crate) fn simulate(arguments: &SimulateJobsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let costs = Costs { checkpoint: arguments.checkpoint.into(), resume: arguments.resume.into() };
    let trace = match &arguments.trace {
        Some(file) => Trace::load(file, costs)?,
        None => generated(arguments, costs),
    };
    let machines = machines(&arguments.cluster)?;
    let history = arguments.history.as_deref().map(History::load).transpose()?;
    let mut inputs = Vec::new();
    for name in &arguments.policy {
        let settings = settings(arguments, name);
        settings.check().map_err(|error| Failure::new(Kind::Usage, error.to_string()))?;
        let mut input = Input::new(trace.jobs.clone(), machines.clone(), settings);
        if let Some(history) = &history {
            input.history = history.clone();
        }
        inputs.push(input);
    }
    let mut story = Story {
        jobs: trace.jobs.len(),
        seed: arguments.trace.is_none().then_some(arguments.seed),
        machines: machines.len(),
        slots: machines.iter().map(|machine| machine.capacity.slots).sum(),
        work: trace
            .jobs
            .iter()
            .map(|one| f64::from(one.job.tasks) * one.job.demand.slots as f64 * one.work.seconds())
            .sum(),
        policies: Vec::new(),
        is_interrupted: false,
    };
    let interrupt = Interrupt::listen()?;
    interrupt.is_watched();
    let mut line = StatusLine::new(*terminal);
    for input in &inputs {
        let name = &input.settings.policy;
        let outcome = simulated(input, &mut |progress| {
            line.show(|_| {
                let (completed, jobs) = (grouped(progress.completed as u64), grouped(progress.jobs as u64));
                format!("{name}: {completed} of {jobs} jobs complete, {} events", grouped(progress.events))
            });
            !interrupt.is_wanted()
        });
        let outcome = outcome.map_err(|error| {
            line.finish();
            failed(&error)
        })?;
        if outcome.is_interrupted {
            story.is_interrupted = true;
            break;
        }
        story.policies.push(PolicyResult { policy: name.clone(), measures: outcome.measures() });
    }
    line.finish();
    if let Some(file) = &arguments.write_trace {
        write(file, &trace.to_csv())?;
        terminal.note(&format!("wrote {}", file.display()));
    }
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => story.write_table(&mut out, arguments)?,
        OutputForm::Json => {
            serde_json::to_writer_pretty(&mut out, &story)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(if story.is_interrupted { Exit::Interrupted } else { Exit::Success })
}

fn generated(arguments: &SimulateJobsArguments, costs: Costs) -> Trace {
    let mut trace = workload::published(arguments.jobs, arguments.seed);
    for traced in &mut trace.jobs {
        (traced.checkpoint, traced.resume) = (costs.checkpoint, costs.resume);
    }
    trace
}

fn settings(arguments: &SimulateJobsArguments, policy: &str) -> Settings {
    Settings {
        policy: policy.trim().to_owned(),
        thresholds: arguments.thresholds.0.clone(),
        interval: arguments.interval.into(),
        promote_knob: arguments.promote_knob.0,
        least_run: arguments.least_run.into(),
        pack_limit: arguments.pack_limit,
        ..Settings::default()
    }
}

/// Returns the machines of `15x4` or of a file.
fn machines(text: &str) -> anyhow::Result<Vec<Machine>> {
    if let Some(machines) = cluster::product(text) {
        return Ok(machines);
    }
    let file = Path::new(text);
    if !file.exists() {
        let missing = format!("`{text}` is neither machines such as `15x4` nor a file");
        return Err(Failure::new(Kind::Usage, missing)
            .with_help("write `--cluster 15x4`, or name a file")
            .into());
    }
    Ok(cluster::load(file)?)
}

fn failed(error: &SimulationError) -> Failure {
    match error {
        SimulationError::TooWide { .. } => Failure::new(Kind::Configuration, error.to_string())
            .with_help("give a larger `--cluster`, or remove the job from the trace"),
        _ => Failure::new(Kind::Configuration, error.to_string()),
    }
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text)
        .map_err(|error| Failure::new(Kind::Unavailable, format!("cannot write {}: {error}", file.display())))
}

impl Story {
    fn write_table(&self, out: &mut dyn Write, arguments: &SimulateJobsArguments) -> io::Result<()> {
        let seed = self.seed.map(|seed| format!(" (seed {seed})")).unwrap_or_default();
        writeln!(
            out,
            "{} jobs{seed} of {} slot-seconds on {} machines with {} slots",
            grouped(self.jobs as u64),
            grouped(self.work.round() as u64),
            grouped(self.machines as u64),
            grouped(self.slots)
        )?;
        writeln!(out)?;
        let (left, right) = (Side::Left, Side::Right);
        let mut table = Table::new(&[
            ("POLICY", left),
            ("JCT", right),
            ("MEDIAN", right),
            ("P95", right),
            ("QUEUEING", right),
            ("MEDIAN", right),
            ("P95", right),
            ("MAKESPAN", right),
            ("PREEMPTED", right),
            ("OVERHEAD", right),
            ("BUSY", right),
            ("FACTOR", right),
        ]);
        let first = self.policies.first().map_or(0.0, |first| first.measures.completion.mean);
        for PolicyResult { policy, measures } in &self.policies {
            let (completion, queueing) = (measures.completion, measures.queueing);
            let times =
                [completion.mean, completion.p50, completion.p95, queueing.mean, queueing.p50, queueing.p95];
            let factor = if completion.mean > 0.0 { first / completion.mean } else { 1.0 };
            table.row(
                std::iter::once(policy.clone())
                    .chain(times.into_iter().chain([measures.makespan]).map(whole))
                    .chain([
                        grouped(measures.preemptions),
                        whole(measures.overhead),
                        format!("{:.0} %", measures.utilisation * 100.0),
                        format!("{factor:.2}"),
                    ]),
            );
        }
        table.write(out)?;
        writeln!(out)?;
        writeln!(
            out,
            "JCT: mean time from submission to completion. FACTOR: that of {} divided by it.",
            self.policies.first().map_or("the first policy", |first| first.policy.as_str())
        )?;
        if self.is_interrupted {
            writeln!(out, "interrupted: the results of other policies are missing")?;
        }
        for note in self.notes(arguments) {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }

    /// Facts that make results better than a cluster could be.
    fn notes(&self, arguments: &SimulateJobsArguments) -> Vec<String> {
        let of = |has: fn(&dyn policy::Policy) -> bool| {
            let names =
                self.policies.iter().filter_map(|one| policy::find(&one.policy)).filter(|one| has(*one));
            names.map(policy::Policy::name).collect::<Vec<_>>().join(" and ")
        };
        let mut notes = Vec::new();
        let oracles = of(|policy| policy.needs_durations());
        if !oracles.is_empty() {
            notes.push(format!("{oracles} know how long each job takes, which a cluster rarely knows"));
        }
        let historic = of(|policy| policy.needs_history());
        if arguments.history.is_none() && !historic.is_empty() {
            notes.push(format!(
                "{historic} knows the services of these very jobs as a distribution; --history gives another"
            ));
        }
        if arguments.promote_knob.0.is_none() {
            notes.push(
                "no job is promoted: a wide or long job may wait for ever; see --promote-knob".to_owned(),
            );
        }
        notes
    }
}

/// Formats seconds in at most eight characters, so that a row has at most 120.
fn whole(time: f64) -> String {
    match time {
        0.0 => "0 s".to_owned(),
        time if time < 1.0 => "< 1 s".to_owned(),
        time if time < 59.5 => format!("{time:.0} s"),
        time if time < 3597.0 => format!("{:.1} min", time / 60.0),
        time if time < 99.95 * 3600.0 => format!("{:.1} h", time / 3600.0),
        time => format!("{} h", grouped((time / 3600.0).round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(
            [0.0, 0.4, 12.6, 59.7, 1500.0, 3596.0, 3605.2, 45_000.0, 4_000_000.0].map(whole),
            ["0 s", "< 1 s", "13 s", "1.0 min", "25.0 min", "59.9 min", "1.0 h", "12.5 h", "1 111 h"]
        );
    }
}
