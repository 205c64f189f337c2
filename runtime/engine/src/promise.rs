//! Delivery guarantee of a run for the rows of its sinks, with reasons.
//!
//! A function of the program alone. A sink has the guarantee of the weakest source whose records can reach it, through any
//! joins and windows, and its own.
use crate::graph::Program;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tidemill_operators::api::{SourcePromise, Unread};
use tidemill_spec::plan::Freshness;

/// Number of times that a row is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// Once.
    ExactlyOnce,
    /// Once, or more often after a restart.
    AtLeastOnce,
    /// Once, or not at all after a restart or under load.
    AtMostOnce,
}

impl Guarantee {
    /// Returns the guarantee in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::ExactlyOnce => "exactly once",
            Self::AtLeastOnce => "at least once",
            Self::AtMostOnce => "at most once",
        }
    }
}

/// Scope of a guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The lifetime of the process: the run keeps no state, another process starts from nothing.
    Process,
    /// All processes that continue the run.
    Run,
}

/// Guarantee for the rows of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Promise {
    /// The guarantee.
    pub guarantee: Guarantee,
    /// Its scope.
    pub scope: Scope,
    /// Reasons for not exactly once: the sources, edges or sinks, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<String>,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.guarantee.text())?;
        if self.scope == Scope::Process {
            f.write_str(" within this process")?;
        }
        match self.because.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.because.join("; ")),
        }
    }
}

/// Returns the guarantees of the sinks of a program. `keeps_state`: another process can continue the run.
pub fn promises(program: &Program, keeps_state: bool) -> BTreeMap<String, Promise> {
    let scope = if keeps_state { Scope::Run } else { Scope::Process };
    let of = |sink: &String| {
        let mut weak = of_sources(program, sink, keeps_state);
        weak.extend(repeats(program, sink, keeps_state));
        let guarantee = weak.iter().map(|(guarantee, _)| *guarantee).max();
        let guarantee = guarantee.unwrap_or(Guarantee::ExactlyOnce);
        let because = weak.into_iter().map(|(_, why)| why).collect();
        (sink.clone(), Promise { guarantee, scope, because })
    };
    program.sinks.keys().map(of).collect()
}

/// Causes of lost and repeated records on the path to a sink.
fn of_sources(program: &Program, sink: &str, keeps_state: bool) -> Vec<(Guarantee, String)> {
    let (plan, mut lost, mut repeated) = (&program.plan, Vec::new(), Vec::new());
    let operator = |stage: &str| {
        let stage = plan.stages.iter().find(|known| known.id == stage);
        stage.map_or("", |stage| stage.operator.as_str())
    };
    let (mut seen, mut open) = (BTreeSet::new(), vec![sink]);
    let mut ways = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        for edge in plan.edges.iter().filter(|edge| operator(&edge.to) == id) {
            let from = operator(&edge.from);
            open.push(from);
            if matches!(edge.freshness, Some(Freshness::DropOldest | Freshness::Latest)) {
                ways.insert((from, id));
            }
        }
    }
    for source in program.sources.values().filter(|source| seen.contains(source.id.as_str())) {
        let id = &source.id;
        if let (Some(stream), Some(reading)) = (&source.stream, &source.journalled)
            && reading.unread == Unread::IsSentAgain
        {
            repeated.push(format!(
                "source `{id}` receives {stream}: what it had not acknowledged when a connection or a process broke off is sent again"
            ));
        }
        if source.live && source.rereads {
            let mut workers = plan.stages.iter().map(|stage| &stage.worker);
            let first = workers.next();
            if keeps_state && workers.any(|worker| Some(worker) != first) {
                repeated.push(format!(
                    "source `{id}` ends its epochs by the clock: if its worker alone is lost, records since the checkpoint come again"
                ));
            }
        } else if source.live {
            lost.push(format!("source `{id}` is live: data that is not read in time is lost"));
        } else if let (true, SourcePromise::AtMostOnce, Some(stream)) =
            (keeps_state, source.promise(), &source.stream)
        {
            lost.push(format!("source `{id}` reads {stream} without a journal"));
        } else if let (true, Some(stream), Some(reading)) = (keeps_state, &source.stream, &source.journalled)
            && reading.unread == Unread::IsLost
        {
            lost.push(format!(
                "source `{id}` receives {stream}: data that was sent and is not in its journal is lost with the process"
            ));
        }
    }
    let ways = ways.into_iter();
    lost.extend(ways.map(|(from, to)| format!("from `{from}` to `{to}` records are dropped for freshness")));
    let lost = lost.into_iter().map(|why| (Guarantee::AtMostOnce, why));
    lost.chain(repeated.into_iter().map(|why| (Guarantee::AtLeastOnce, why))).collect()
}

/// Cause of repeated rows.
fn repeats(program: &Program, sink: &str, keeps_state: bool) -> Option<(Guarantee, String)> {
    use crate::failure::OnPanic;
    let bound = program.sinks.get(sink).filter(|bound| bound.durable.is_none() || bound.repeats)?;
    // Without a restart nothing is written twice.
    let begins_again = keeps_state || program.on_panic.values().any(|reaction| *reaction == OnPanic::Restart);
    begins_again.then(|| {
        let to = match (bound.is_standard_output, bound.files.first()) {
            (true, _) => "standard output".to_owned(),
            (false, Some(file)) => format!("the pipe or device `{}`", file.display()),
            (false, None) => format!("`{}`", bound.kind),
        };
        (Guarantee::AtLeastOnce, format!("sink `{sink}` writes to {to}, which takes nothing back"))
    })
}

#[cfg(test)]
mod tests;
