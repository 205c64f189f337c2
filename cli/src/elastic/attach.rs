//! Makes the limits of containers follow their load until a signal ends it.
use super::finding::{Finder, Found, Groups};
use super::guarding::Guard;
use super::{begin, telling, unavailable};
use crate::answer;
use crate::arguments::{AttachArguments, OutputForm, RuleChoice};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_elastic::agent::{Agent, AgentError, Options, Snapshot};
use tidemill_elastic::cgroup::{Hierarchy, Limits};
use tidemill_elastic::docker::Engine;
use tidemill_elastic::record::{Record, Records};
use tidemill_elastic::rules::{CpuRules, MemoryRules, Rule};

/// Interval of writing the record.
const RECORD: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "containers run in real time")]
fn instant() -> Instant {
    Instant::now()
}

pub(super) fn attach(arguments: &AttachArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let hierarchy = Hierarchy::find(Path::new(Hierarchy::ROOT)).map_err(|error| unavailable(&error))?;
    let (groups, finder) = match &arguments.label {
        Some(label) => {
            let engine = Engine::find().map_err(|error| unavailable(&error))?;
            let mut finder = Finder::new(engine, hierarchy.clone(), label, *terminal);
            (finder.look().map_err(|error| unavailable(&error))?, Some(finder))
        }
        None => (named(&hierarchy, &arguments.group)?, None),
    };
    if groups.is_empty() && !arguments.wait {
        let label = arguments.label.as_deref().unwrap_or_default();
        return Err(Failure::new(Kind::Unavailable, format!("no running container has the label `{label}`"))
            .with_help(format!(
                "`docker ps --filter label={label}` lists containers; `docker run --label {label} ...` starts one"
            ))
            .into());
    }
    let mut agent = Agent::new(options(arguments, &groups)?);
    let name = arguments.label.clone().unwrap_or_else(|| arguments.group.join(" "));
    let records = Records::of_user();
    let mut kept = None;
    let mut guard = None;
    if !arguments.dry_run {
        kept = Some(begin(&records, &name, terminal)?);
        match Guard::start(&name) {
            Ok(started) => guard = Some(started),
            Err(error) => terminal.warning(&format!(
                "cannot start the process that restores the limits if this one is killed: {error}; use `tidemill elastic restore` then"
            )),
        }
    }
    // The process that distributes time must get some itself.
    let _ = rustix::process::setpriority_process(None, -10);
    interrupt.is_watched();
    let names: Vec<String> = groups.iter().map(|(name, _)| name.clone()).collect();
    let mut waiting = BTreeSet::new();
    match take_in(&mut agent, groups, (&records, &mut kept), terminal) {
        Ok(()) => {}
        // With `--wait`, it waits for room in the caps as well.
        Err(AgentError::Cap(error)) if arguments.wait => {
            terminal.warning(&format!("{error}; until they fit, limits stay as they are"));
            waiting.extend(names);
        }
        Err(error) => {
            let left = agent.restore();
            records_end(&records, kept.as_mut(), &left, terminal);
            return Err(refused(&error).into());
        }
    }
    let count = agent.names().count();
    terminal.note(&format!(
        "{count} containers of {name}, control groups of {}: limits follow the load; Ctrl-C restores the old limits",
        hierarchy.version()
    ));
    let found = finder.map(Finder::start).transpose()?;
    if let Some(found) = &found {
        waiting.iter().for_each(|name| refuse(found, name));
    }
    let mut teller = ProgressPrinter { arguments, told: instant(), lines: 0, waiting };
    follow(&mut agent, &interrupt, found.as_ref(), (&records, &mut kept), &mut teller, terminal);
    let left = agent.restore();
    records_end(&records, kept.as_mut(), &left, terminal);
    drop(guard);
    if !left.is_empty() {
        let message = format!("cannot restore the old limits of {}", left.join(", "));
        return Err(Failure::new(Kind::Unavailable, message)
            .with_help("the old limits are saved: try `tidemill elastic restore`")
            .into());
    }
    if !arguments.dry_run {
        terminal.note("all containers have their old limits");
    }
    Ok(if interrupt.is_wanted() { Exit::Interrupted } else { Exit::Success })
}

/// Removes the record, or keeps in it the groups that were not restored.
fn records_end(records: &Records, kept: Option<&mut Record>, left: &[String], terminal: &Terminal) {
    let Some(record) = kept else { return };
    record.found.retain(|name, _| left.contains(name));
    if record.found.is_empty() && record.left.is_empty() {
        return records.remove(&record.name);
    }
    if let Err(error) = records.write(record) {
        terminal.warning(&error.to_string());
    }
}

/// Opens groups by their paths.
fn named(hierarchy: &Hierarchy, paths: &[String]) -> anyhow::Result<Groups> {
    let mut groups = Groups::new();
    for path in paths {
        let group = hierarchy.open_named(path).map_err(|error| {
            let help = format!(
                "write a path as in /proc/PID/cgroup; its folder here is {}",
                hierarchy.folder("memory", path).display()
            );
            unavailable(&error).with_help(help)
        })?;
        groups.push((path.clone(), group));
    }
    Ok(groups)
}

fn options(arguments: &AttachArguments, groups: &Groups) -> anyhow::Result<Options> {
    let mut limits = Vec::new();
    for (name, group) in groups {
        let found = group.limits().map_err(|error| unavailable(&error))?;
        limits.push((name.as_str(), found));
    }
    let processors = |of: &Limits| Some(of.quota? as f64 / of.period.max(1) as f64);
    let processors = match arguments.cpus {
        Some(processors) => processors,
        None => sum(&limits, processors, "processors", "--cpus 1.5")?.iter().sum(),
    };
    let memory = match arguments.memory {
        Some(memory) => memory,
        None => sum(&limits, |of| of.memory, "memory", "--memory 600MiB")?.iter().sum(),
    };
    let rule = match arguments.rule {
        RuleChoice::Slices => Rule::Slices,
        RuleChoice::Printed => Rule::Printed,
    };
    Ok(Options {
        period: arguments.period,
        cpu: CpuRules { rule, floor: arguments.floor, ..CpuRules::default() },
        memory_rules: MemoryRules::with_margin(arguments.margin),
        dry_run: arguments.dry_run,
        ..Options::new(processors, memory)
    })
}

/// Sums the limits, if all have one.
fn sum<T>(
    limits: &[(&str, Limits)],
    of: impl Fn(&Limits) -> Option<T>,
    what: &str,
    option: &str,
) -> Result<Vec<T>, Failure> {
    let one = |(name, limits): &(&str, Limits)| {
        of(limits).ok_or_else(|| {
            Failure::new(Kind::Usage, format!("{name} has no limit of {what}, so there is no sum of limits"))
                .with_help(format!("give the total: `{option}`"))
        })
    };
    limits.iter().map(one).collect()
}

/// Attaches groups; their original limits are on disk before.
fn take_in(
    agent: &mut Agent,
    groups: Groups,
    (records, kept): (&Records, &mut Option<Record>),
    terminal: &Terminal,
) -> Result<(), AgentError> {
    agent.attach(groups, &mut |found| {
        if let Some(record) = kept {
            record.found.clone_from(found);
            if let Err(error) = records.write(record) {
                terminal.warning(&format!("{error}: if this process is killed, nothing restores the limits"));
            }
        }
    })
}

fn refused(error: &AgentError) -> Failure {
    match error {
        AgentError::Cap(_) | AgentError::TooMany(_) => Failure::new(Kind::Usage, error.to_string()),
        AgentError::Group(_) => {
            unavailable(error).with_help("usually only root can write limits: try `sudo`")
        }
    }
}

/// Makes the finder return a rejected container again.
fn refuse(found: &Found, name: &str) {
    let _ = found.refused.send(name.to_owned()); // without the thread nothing is found any more
}

/// Moves limits until interrupted.
fn follow(
    agent: &mut Agent,
    interrupt: &Interrupt,
    found: Option<&Found>,
    (records, kept): (&Records, &mut Option<Record>),
    teller: &mut ProgressPrinter<'_>,
    terminal: &Terminal,
) {
    let end = teller.arguments.time.map(|time| instant() + time);
    let mut recorded = instant();
    let is_over = || interrupt.is_wanted() || !answer::is_read() || end.is_some_and(|end| instant() >= end);
    agent.run(is_over, |agent| {
        let new =
            found.into_iter().flat_map(|found| found.groups.try_iter().map(move |groups| (found, groups)));
        let each = new.flat_map(|(found, groups)| groups.into_iter().map(move |group| (found, group)));
        for (found, (name, group)) in each {
            // Separately: one that needs too much does not block the others.
            match take_in(agent, vec![(name.clone(), group)], (records, kept), terminal) {
                Ok(()) => {
                    teller.waiting.remove(&name);
                    terminal.note(&format!("included: {name}"));
                }
                Err(error) => {
                    refuse(found, &name);
                    // Further attempts are reported only when they succeed.
                    if teller.waiting.insert(name.clone()) {
                        terminal.warning(&format!("the limits of {name} stay fixed until it fits: {error}"));
                    }
                }
            }
        }
        let now = instant();
        if now.duration_since(recorded) >= RECORD
            && let Some(record) = kept.as_mut()
        {
            recorded = now;
            record.snapshot = agent.snapshot();
            record.found = agent.found();
            if let Err(error) = records.write(record) {
                terminal.warning(&error.to_string());
            }
        }
        if now.duration_since(teller.told) >= teller.arguments.every {
            teller.told = now;
            teller.tell(&agent.snapshot());
            agent.begin_anew();
        }
    });
}

/// Prints the agent's work from time to time.
struct ProgressPrinter<'a> {
    arguments: &'a AttachArguments,
    told: Instant,
    /// Lines of the table on the terminal.
    lines: usize,
    /// Containers that do not fit, reported once.
    waiting: BTreeSet<String>,
}

impl ProgressPrinter<'_> {
    fn tell(&mut self, snapshot: &Snapshot) {
        let mut out = answer::out();
        if self.arguments.output == OutputForm::Json {
            let line = serde_json::json!({"version": 1, "ok": true, "elastic": snapshot});
            let _ = writeln!(out, "{line}"); // it keeps what went wrong
            let _ = out.flush();
            return;
        }
        let mut text = Vec::new();
        let _ = telling::table(snapshot, &mut text); // memory takes it
        if std::io::stdout().is_terminal() {
            if self.lines > 0 {
                out.control(&format!("\u{1b}[{}A\u{1b}[J", self.lines));
            }
            self.lines = text.iter().filter(|byte| **byte == b'\n').count();
        }
        let _ = out.write_all(&text);
        let _ = out.flush();
    }
}
