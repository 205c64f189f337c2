//! `library`: a policy from a library of its own, by the interface in `include/tidemill_policy.h`.
//!
//! Install a new version of a library under a new name, or by renaming it over the old one, and set the policy again: the new
//! instance continues with the state of the old one. Never overwrite a file that is loaded, since its code is read from there.
mod abi;
mod library;
#[cfg(test)]
mod tests;

use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use arrow_array::BooleanArray;
use library::{Facts, Instance};
use serde::Deserialize;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tidemill_operators::record::metadata_fields;
use tidemill_spec::types::StreamType;

/// See the module.
pub const KIND: Kind = Kind {
    name: "library",
    help: "has a policy from a library of its own look at frames",
    example: r#"{"path": "/usr/lib/tidemill/libevery_nth.so", "options": {"n": 3}}"#,
    make,
};

/// A frame may be held for so long at once.
const LONGEST: Duration = Duration::from_secs(3600);
/// A frame is looked at again after so long at least: a library that always answers "at once" would take all the time.
const SHORTEST: Duration = Duration::from_millis(1);

/// First byte of a state: one that follows the name of its policy, or the reason why there is none.
const STATE: u8 = 1;
const NO_STATE: u8 = 0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The library.
    path: PathBuf,
    /// Options of its policy. Default: none.
    #[serde(default)]
    options: Value,
}

struct Foreign {
    instance: Instance,
    columns: Vec<String>,
}

fn make(value: &Value, site: &Site) -> Result<Box<dyn Policy>, String> {
    let Options { path, options } = options(value)?;
    if !site.may_load {
        return Err("only the user of the service or root may load libraries".to_owned());
    }
    if !path.is_absolute() {
        return Err(format!("`path` is `{}`: write it from `/` on", path.display()));
    }
    let options = if options.is_null() { "{}".to_owned() } else { options.to_string() };
    let mut instance = Instance::make(&path, &options)?;
    let columns = instance.columns().map_err(|error| format!("{}: {error}", instance.name()))?;
    Ok(Box::new(Foreign { instance, columns }))
}

/// Nanoseconds of the monotonic clock, which `Instant` keeps to itself.
#[expect(clippy::disallowed_methods, reason = "the same moment in both forms, from which others are counted")]
fn nanoseconds(now: Instant) -> u64 {
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, at) = START.get_or_init(|| {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        (Instant::now(), clock.tv_sec as u64 * 1_000_000_000 + clock.tv_nsec as u64)
    });
    match now.checked_duration_since(*start) {
        Some(later) => at.saturating_add(later.as_nanos() as u64),
        None => at.saturating_sub(start.saturating_duration_since(now).as_nanos() as u64),
    }
}

impl Foreign {
    fn missing<'a>(&self, name: &str, there: impl Iterator<Item = &'a str>) -> String {
        let there: Vec<&str> = there.collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        format!(
            "{} reads the column `{name}`; the edge has {there}: change its options",
            self.instance.name()
        )
    }
}

impl Policy for Foreign {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        // Only who reads content pays for a copy of it.
        let batch = if self.columns.is_empty() { None } else { Some(frame.records()?.clone()) };
        let mut columns = Vec::with_capacity(self.columns.len());
        for name in &self.columns {
            let Some(batch) = &batch else { break };
            let (at, field) = batch.schema_ref().column_with_name(name).ok_or_else(|| {
                self.missing(name, batch.schema_ref().fields().iter().map(|field| field.name().as_str()))
            })?;
            columns.push((field, batch.column(at).clone()));
        }
        let facts = Facts {
            now: nanoseconds(frame.now),
            channel: frame.channel,
            number: frame.number,
            epoch: frame.epoch(),
            rows: frame.rows()?,
            bytes: frame.bytes(),
            waiting: frame.waiting,
            edge: frame.edge,
            columns,
        };
        let decided = self.instance.look(&facts)?;
        match decided.verdict {
            abi::PASS => {}
            abi::WAIT => {
                let time = Duration::from_nanos(decided.wait).max(SHORTEST);
                return if time <= LONGEST {
                    Ok(Verdict::Wait(time))
                } else {
                    Err(format!("it would hold a frame for {} s, and an hour is the most", time.as_secs()))
                };
            }
            abi::CUT => return Ok(Verdict::Cut),
            other => return Err(format!("its verdict is {other}, which is none of tidemill_policy.h")),
        }
        if let Some(row) = decided.keep.iter().position(|keep| *keep > 1) {
            return Err(format!("it marks row {row} with {}, not with 0 or 1", decided.keep[row]));
        }
        if decided.keep.contains(&0) {
            frame.keep(&decided.keep.iter().map(|keep| Some(*keep == 1)).collect::<BooleanArray>())?;
        }
        Ok(Verdict::Pass)
    }

    fn fits(&mut self, columns: &StreamType) -> Result<(), String> {
        let metadata = metadata_fields();
        for name in &self.columns {
            let is_there = columns.columns.iter().any(|column| column.name == *name);
            if !is_there && !metadata.iter().any(|field| field.name() == name) {
                return Err(self.missing(name, columns.columns.iter().map(|column| column.name.as_str())));
            }
        }
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        match self.instance.state() {
            Ok(None) => Vec::new(),
            Ok(Some(state)) => [&[STATE], self.instance.name().as_bytes(), &[0], &state].concat(),
            Err(reason) => [&[NO_STATE], reason.as_bytes()].concat(),
        }
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let Some((kind, rest)) = state.split_first() else { return Ok(()) };
        if *kind != STATE {
            return Err(String::from_utf8_lossy(rest).into_owned());
        }
        let mut parts = rest.splitn(2, |byte| *byte == 0);
        let (name, state) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let own = self.instance.name();
        if name != own.as_bytes() {
            let name = String::from_utf8_lossy(name);
            return Err(format!("it is of {name}, and this is {own}; detach it, and attach the new one"));
        }
        self.instance.restore(state)
    }
}
