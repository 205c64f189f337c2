//! `tidemill job remove`: deletes jobs that have ended.
use crate::arguments::{OutputForm, RemoveJobsArguments};
use crate::cluster::{ask, client, json};
use crate::exit::Exit;
use crate::terminal::Terminal;
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{JobRemoval, JobsRemoved};

/// Removes jobs.
pub(crate) fn remove(arguments: &RemoveJobsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let wanted = JobRemoval { jobs: arguments.jobs.clone(), ended: arguments.ended };
    let removed: JobsRemoved = ask(client(&arguments.asked.of)?.post("/v1/jobs/remove", &wanted))?;
    match (arguments.asked.output, removed.jobs.as_slice()) {
        (OutputForm::Json, jobs) => json("removed", &jobs)?,
        (OutputForm::Table, []) => terminal.note("no job has ended: nothing is removed"),
        (OutputForm::Table, [job]) => {
            terminal.note(&format!("job {job} is removed, with its results and its log"))
        }
        (OutputForm::Table, jobs) => {
            terminal.note(&format!("{} jobs are removed, with their results and logs", jobs.len()));
        }
    }
    Ok(Exit::Success)
}
