//! `tidemill up`: the containers, then the run.
use super::change;
use crate::answer;
use crate::arguments::{
    Arguments, ClusterVerb, OutputForm, ReplanChoice, SubmitArguments, UpArguments, Verb,
};
use crate::cluster;
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use clap::Parser;
use std::ffi::OsString;
use std::io::Write;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{RunState, RunView};
use tidemill_deploy_operate::{self as operating, Connection, Control, Patience, Site, Up};

/// Starts a deployment and submits its plan.
pub(crate) fn up(arguments: &UpArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let directory = arguments.directory.display();
    let left =
        format!("`tidemill up {directory}` continues, `tidemill down {directory}` removes the deployment");
    let started = change(&arguments.directory, terminal, &left, |site, control| {
        can_replan(arguments, site)?;
        let patience = Patience { container: arguments.wait, worker: arguments.wait, ..Patience::default() };
        let (up, connection) = operating::up(site, patience, control)?;
        let run = submit(arguments, site, &up, terminal)?;
        let run =
            run.map(|run| operating::submitted(&connection, &run.name, patience, control)).transpose()?;
        Ok(Started { rows: rows(site, &connection)?, up, run, project: site.deployment().project.clone() })
    })?;
    match started {
        Ok(started) => tell(&started, arguments),
        Err(exit) => Ok(exit),
    }
}

struct Started {
    up: Up,
    run: Option<RunView>,
    rows: Vec<[String; 4]>,
    project: String,
}

/// Checks that replanning has its files, if requested: before anything is started.
fn can_replan(arguments: &UpArguments, site: &Site) -> anyhow::Result<()> {
    let Some(choice) = arguments.replan.filter(|choice| *choice != ReplanChoice::Off) else { return Ok(()) };
    if site.deployment().files.profiles.is_empty() {
        let text = format!("--replan {choice}: the deployment names no profiles for another plan");
        let plan = site.path(&site.deployment().files.plan);
        return Err(Failure::new(Kind::Usage, text)
            .with_help(format!(
                "write it with profiles: `tidemill deploy {} --profiles FILE --infra FILE --out {} --force`",
                plan.display(),
                arguments.directory.display()
            ))
            .into());
    }
    Ok(())
}

/// Submits workflow and plan; `None` if nothing is to be submitted.
fn submit(
    arguments: &UpArguments,
    site: &Site,
    up: &Up,
    terminal: &Terminal,
) -> anyhow::Result<Option<RunView>> {
    if arguments.no_submit {
        return Ok(None);
    }
    let files = &site.deployment().files;
    let Some(workflow) = &files.workflow else {
        terminal.note(&format!(
            "the deployment was written without its workflow, so nothing is submitted: `tidemill submit WORKFLOW --plan {}`",
            site.path(&files.plan).display()
        ));
        return Ok(None);
    };
    // As a command line, so that the defaults are those of the verb.
    let mut words: Vec<OsString> =
        ["tidemill", "submit", "--controller", &up.address].map(OsString::from).into();
    words.extend(["--token-file".into(), up.token_file.clone().into()]);
    words.extend(["--plan".into(), site.path(&files.plan).into()]);
    if !files.profiles.is_empty() {
        words.push("--profiles".into());
        words.extend(files.profiles.iter().map(|path| site.path(path).into_os_string()));
        if let Some(infrastructure) = &files.infrastructure {
            words.extend(["--infra".into(), site.path(infrastructure).into()]);
        }
    }
    if let Some(choice) = arguments.replan {
        words.extend(["--replan".into(), choice.to_string().into()]);
    }
    if arguments.again {
        words.push("--again".into());
    }
    if let Some(name) = &arguments.name {
        words.extend(["--as".into(), name.into()]);
    }
    if let Some(records) = arguments.records {
        words.extend(["--records".into(), records.to_string().into()]);
    }
    words.extend(["--".into(), site.path(workflow).into()]);
    let submission: SubmitArguments = match Arguments::try_parse_from(words).map(|arguments| arguments.verb) {
        Ok(Verb::Cluster(ClusterVerb::Submit(submission))) => submission,
        Ok(_) | Err(_) => {
            return Err(Failure::new(
                Kind::Defect,
                "this version does not understand the submission of the deployment",
            )
            .into());
        }
    };
    cluster::begin(&submission, terminal).map(|(_, run)| Some(run))
}

/// Workers with their locations.
fn rows(site: &Site, connection: &Connection) -> anyhow::Result<Vec<[String; 4]>> {
    let nobody = Control { tell: &|_| (), is_interrupted: &|| false };
    let view = operating::ps(site, nobody)?;
    let known: Vec<tidemill_cluster::api::WorkerView> =
        connection.client.get("/v1/workers").map_err(|error| cluster::failure(&error))?;
    let rows = view.services.iter().map(|one| {
        let worker = one.worker.as_ref().and_then(|name| known.iter().find(|known| known.name == *name));
        let roles = worker
            .map(|worker| worker.hosts.iter().map(|(run, role)| format!("{run}/{role}")).collect::<Vec<_>>());
        let name = one.worker.clone().unwrap_or_else(|| one.service.clone());
        [one.location.clone(), name, one.state.to_string(), roles.unwrap_or_default().join(", ")]
    });
    Ok(rows.collect())
}

fn tell(started: &Started, arguments: &UpArguments) -> anyhow::Result<Exit> {
    let Started { up, run, rows, project } = started;
    let state = run.as_ref().map(|run| run.state);
    // A run that waits for a worker has not started.
    let is_well = matches!(state, None | Some(RunState::Running | RunState::Complete));
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        let document = serde_json::json!({
            "version": 1, "ok": is_well, "deployment": {"project": project, "up": up, "run": run},
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        let columns =
            [("location", Side::Left), ("what", Side::Left), ("state", Side::Left), ("runs", Side::Left)];
        let mut table = Table::new(&columns);
        rows.iter().for_each(|row| table.row(row.clone()));
        table.write(&mut out)?;
        writeln!(out)?;
        if let Some(run) = run {
            let reason = run.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            writeln!(out, "run {} is {}{reason}", run.name, run.state)?;
        }
        writeln!(out, "page: {}  (log in there with the token in {})", up.page, up.token_file)?;
        writeln!(out, "here: tidemill login {} --token-file {}", up.address, up.token_file)?;
        writeln!(out, "end:  tidemill down {}", arguments.directory.display())?;
    }
    Ok(if is_well { Exit::Success } else { Exit::No })
}
