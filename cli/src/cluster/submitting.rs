//! Sends a workflow to a controller, and reports its progress.
use super::asking::{ask, show};
use super::connect::{client, failure};
use super::plans::{self, Files};
use crate::arguments::{OutputForm, SubmitArguments};
use crate::exit::Exit;
use crate::terminal::Terminal;
use std::fs;
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::bytes;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::{Scope, load};
use tidemill_cluster::api::{Event, RunState, RunView, Submission};
use tidemill_cluster::bundle::{self, BundleError};
use tidemill_cluster::client::{Client, ClientError, segment};
use tidemill_cluster::parcel::{PARCEL, SMALL, pack};
use tidemill_spec::plan::PlanFile;
use tidemill_spec::variables::environment;

/// Sends a workflow and begins a run.
pub(crate) fn submit(arguments: &SubmitArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (client, run) = begin(arguments, terminal)?;
    if arguments.follow {
        return follow(&client, &run.name, arguments.output, terminal);
    }
    show(&run, arguments.output)?;
    Ok(Exit::Success)
}

/// Sends a workflow and begins a run, and shows nothing of it.
pub(crate) fn begin(arguments: &SubmitArguments, terminal: &Terminal) -> anyhow::Result<(Client, RunView)> {
    plans::can_replan(arguments)?;
    let workflow = load(&arguments.workflow, &environment, Scope::Files, terminal)?;
    let planning = plans::planning(arguments)?;
    let client = client(&arguments.of)?;
    let plan = arguments.plan.as_ref().map(PlanFile::load).transpose()?.map(|file| file.plan);
    let unreadable = |error: BundleError| Failure::new(Kind::Configuration, error.to_string());
    let mut gathered = bundle::gather(&arguments.workflow).map_err(unreadable)?;
    if let (Some(file), Some(_)) = (&arguments.planning.infrastructure, &planning) {
        gathered.bundle.variables.extend(bundle::variables_of(file).map_err(unreadable)?);
    }
    let planning = planning.map(|(planning, files)| {
        gathered.files.extend(files);
        planning
    });
    let is_planned = planning.is_some();
    let name = arguments.name.clone().unwrap_or_else(|| run_name(&workflow.name.value));
    let before = known(&client, &name)?;
    if let Some(before) = before.as_ref().filter(|_| arguments.again) {
        is_over(before)?;
    }
    send(&client, &gathered.files, terminal)?;
    let submission = Submission {
        name: name.clone(),
        bundle: gathered.bundle,
        plan,
        planning,
        replan: plans::replanning(arguments),
        quota: plans::quota(arguments),
        records: arguments.records,
        sent_from: Some(gathered.root.display().to_string()),
        again: arguments.again,
    };
    let run: RunView = client.post("/v1/runs", &submission).map_err(|error| refused(&error))?;
    match before.map(|before| before.state) {
        None => {}
        Some(state) if arguments.again => terminal.note(&format!("removed run {name}, which was {state}")),
        Some(RunState::Complete) => terminal.note(&format!(
            "run {name} is this submission, and complete: nothing to start. `--again` removes it and starts \
             it again, `--as NAME` starts another run"
        )),
        Some(_) => terminal.note(&format!("run {name} is this submission, and continues")),
    }
    if is_planned {
        plans::explain(&client, &name, terminal)?;
    }
    Ok((client, run))
}

/// Returns the reason for a rejected submission, with local paths.
fn refused(error: &ClientError) -> Failure {
    let told = failure(error);
    match (error, std::env::current_dir()) {
        (ClientError::Refused { text, .. }, _) if text.contains("unknown field `again`") => {
            Failure::new(told.kind(), "the version of the controller does not support `--again`".to_owned())
                .with_help("remove the ended run with `tidemill remove RUN`, then submit without `--again`")
        }
        (ClientError::Refused { text, .. }, Ok(here)) => Failure::new(told.kind(), from_here(text, &here)),
        _ => told,
    }
}

/// Paths below a folder as they are seen from there.
fn from_here(text: &str, here: &Path) -> String {
    match here.parent() {
        Some(_) => text.replace(&format!("{}/", here.display()), ""),
        None => text.to_owned(),
    }
}

/// A run of this name that there is already.
fn known(client: &Client, name: &str) -> anyhow::Result<Option<RunView>> {
    match client.get(&format!("/v1/runs/{}", segment(name))) {
        Ok(run) => Ok(Some(run)),
        Err(ClientError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(failure(&error).into()),
    }
}

/// Only a run that has ended makes room for another one of its name: the controller looks, too, but then the files were sent.
fn is_over(run: &RunView) -> Result<(), Failure> {
    if run.state.is_over() {
        return Ok(());
    }
    let text = format!("run {} has not ended: another run of its name cannot start", run.name);
    let help = format!("end it first: `tidemill cancel {}`; or use another name: `--as NAME`", run.name);
    Err(Failure::new(Kind::Configuration, text).with_help(help))
}

/// A name for a run of a workflow.
fn run_name(workflow: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' };
    workflow.chars().map(plain).take(63).collect()
}

/// Sends the files that are not there: large ones one by one, small ones many at once.
pub(crate) fn send(client: &Client, files: &Files, terminal: &Terminal) -> anyhow::Result<()> {
    let digests: Vec<&String> = files.keys().collect();
    let missing: Vec<String> = ask(client.post("/v1/blobs/missing", &digests))?;
    let (mut sent, mut parcel) = (0, Vec::new());
    for digest in &missing {
        let Some(path) = files.get(digest) else { continue };
        let unreadable =
            |error: std::io::Error| Failure::new(Kind::Configuration, format!("{}: {error}", path.display()));
        let size = fs::metadata(path).map_err(unreadable)?.len();
        if size > SMALL {
            sent += ask(client.put_file(&format!("/v1/blobs/{digest}"), path))?;
            continue;
        }
        let content = fs::read(path).map_err(unreadable)?;
        if !parcel.is_empty() && parcel.len() + content.len() > PARCEL {
            send_parcel(client, &mut parcel)?;
        }
        if !pack(&mut parcel, digest, &content) {
            let text = format!("{}: it grew too large during the upload", path.display());
            return Err(Failure::new(Kind::Configuration, text).into());
        }
        sent += content.len() as u64;
    }
    send_parcel(client, &mut parcel)?;
    if !missing.is_empty() {
        terminal.note(&format!("{} of {} files sent, {}", missing.len(), files.len(), bytes(sent)));
    }
    Ok(())
}

fn send_parcel(client: &Client, parcel: &mut Vec<u8>) -> anyhow::Result<()> {
    if !parcel.is_empty() {
        ask(client.post_bytes::<u64>("/v1/blobs", parcel))?;
        parcel.clear();
    }
    Ok(())
}

/// Prints events until the run is over.
fn follow(client: &Client, name: &str, form: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (mut after, mut is_first) = (0, true);
    loop {
        let wait = if is_first { 0 } else { 2 };
        let events: Vec<Event> = ask(client.get(&format!("/v1/events?after={after}&wait={wait}")))?;
        is_first = false;
        after = events.iter().map(|event| event.number).fold(after, u64::max);
        of_run(&events, name).for_each(|event| terminal.note(&event.text));
        let run: RunView = ask(client.get(&format!("/v1/runs/{}", segment(name))))?;
        if run.state.is_over() {
            show(&run, form)?;
            return Ok(match run.state {
                RunState::Failed | RunState::Cancelled => Exit::No,
                _ => Exit::Success,
            });
        }
    }
}

/// Events of the run that has a name now: what came before a removal is of another run that had it.
fn of_run<'a>(events: &'a [Event], name: &'a str) -> impl Iterator<Item = &'a Event> {
    let is_of = move |event: &&Event| event.run.as_deref() == Some(name);
    let removed = events.iter().rposition(|event| is_of(&event) && event.kind == "run_removed");
    events[removed.map_or(0, |at| at + 1)..].iter().filter(is_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_a_run_that_was_removed_is_not_told_of_the_next_one_of_its_name() {
        let all = [
            (1, "a", "run_failed"),
            (2, "b", "run_failed"),
            (3, "a", "run_removed"),
            (4, "a", "run_running"),
        ];
        let events = all.map(|(number, run, kind)| Event {
            number,
            time: String::new(),
            kind: kind.into(),
            run: Some(run.into()),
            worker: None,
            text: String::new(),
        });
        let numbers = |name| of_run(&events, name).map(|event| event.number).collect::<Vec<_>>();
        assert_eq!((numbers("a"), numbers("b"), numbers("c")), (vec![4], vec![2], vec![]));
    }

    #[test]
    fn paths_are_as_they_are_seen_from_here() {
        let text = "/srv/flows/day/w.yaml:3:5: no; /opt/models/a.yaml: none";
        assert_eq!(from_here(text, Path::new("/srv/flows")), "day/w.yaml:3:5: no; /opt/models/a.yaml: none");
        assert_eq!(from_here(text, Path::new("/")), text);
    }
}
