//! `tidemill down` and `tidemill deployment upgrade`.
use super::{change, failure_of};
use crate::answer;
use crate::arguments::{DownArguments, OutputForm, UpgradeArguments};
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::io::Write;
use tidemill_deploy_operate::{self as operating, Cause, Down, Patience};

/// Removes a deployment.
pub(crate) fn down(arguments: &DownArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let left = format!("`tidemill down {}` continues", arguments.directory.display());
    let done = change(&arguments.directory, terminal, &left, |site, control| {
        Ok(operating::down(site, arguments.keep_state, control)?)
    })?;
    let done = match done {
        Ok(done) => done,
        Err(exit) => return Ok(exit),
    };
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        serde_json::to_writer_pretty(
            &mut out,
            &serde_json::json!({"version": 1, "ok": done.wrong.is_empty(), "deployment": done, "wrong": told(&done.wrong)}),
        )?;
        writeln!(out)?;
        return Ok(if done.wrong.is_empty() { Exit::Success } else { Exit::Unavailable });
    }
    match done.removed.is_empty() && done.wrong.is_empty() {
        true if done.left.is_empty() => writeln!(out, "there was nothing to remove")?,
        _ => done.removed.iter().try_for_each(|one| writeln!(out, "removed {one}"))?,
    }
    for one in &done.kept {
        writeln!(out, "kept {one}")?;
    }
    out.flush()?;
    done.left.iter().for_each(|text| terminal.alarm(text));
    ended(&done)
}

/// Formats problems for programs.
fn told(causes: &[Cause]) -> Vec<serde_json::Value> {
    let one = |cause: &Cause| serde_json::json!({"code": cause.code(), "text": cause.to_string(), "help": cause.fix()});
    causes.iter().map(one).collect()
}

/// Reports the failure after the completed steps.
fn ended(done: &Down) -> anyhow::Result<Exit> {
    if done.wrong.is_empty() { Ok(Exit::Success) } else { Err(failure_of(&done.wrong).into()) }
}

/// Upgrades a deployment to another image.
pub(crate) fn upgrade(arguments: &UpgradeArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let directory = arguments.directory.display();
    let left = format!(
        "`tidemill ps {directory}` shows the image of each container; the same command continues, and can still restore the old images"
    );
    let done = change(&arguments.directory, terminal, &left, |site, control| {
        let patience = Patience { container: arguments.wait, ..Patience::default() };
        Ok(operating::upgrade(site, &arguments.image, patience, control)?)
    })?;
    let done = match done {
        Ok(done) => done,
        Err(exit) => return Ok(exit),
    };
    let is_done = done.failed.is_none();
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        let document = serde_json::json!({"version": 1, "ok": is_done, "deployment": done});
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else if let Some(failed) = &done.failed {
        let reason = done.reason.as_deref().unwrap_or_default();
        writeln!(out, "{failed} does not start with {}: {reason}", done.image)?;
        match done.broken.is_empty() {
            true => writeln!(out, "all containers have their old images again")?,
            false => {
                writeln!(out, "these do not start with their old images either: {}", done.broken.join(", "))?
            }
        }
    } else {
        writeln!(
            out,
            "{} containers changed to {}, {} had it before",
            done.changed.len(),
            done.image,
            done.unchanged.len()
        )?;
    }
    Ok(if is_done { Exit::Success } else { Exit::No })
}
