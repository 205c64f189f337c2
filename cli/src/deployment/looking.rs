//! `tidemill ps` and `tidemill deployment logs`.
use super::operate;
use crate::answer;
use crate::arguments::{DeploymentLogsArguments, OutputForm, PsArguments};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use std::io::Write;
use tidemill_cluster::api::{RunView, WorkerView};
use tidemill_cluster::client::ClientError;
use tidemill_deploy_operate::{self as operating, Connection, LogOptions, OperateError, View};

/// Message about a controller without other information.
const SILENT: &str = "the controller does not answer";

/// Data from the controller, if it answers.
struct Cluster {
    workers: Vec<WorkerView>,
    runs: Vec<RunView>,
}

/// Queries the controller; an error has the reason.
fn ask(connection: &Connection) -> Result<Cluster, String> {
    let get = || {
        let workers = connection.client.get("/v1/workers")?;
        Ok(Cluster { workers, runs: connection.client.get("/v1/runs")? })
    };
    get().map_err(untold)
}

/// A refusal is an answer, too.
fn untold(error: ClientError) -> String {
    match error.is_refusal() {
        true => OperateError::refused(error).to_string(),
        false => SILENT.to_owned(),
    }
}

/// Shows the state of a deployment.
pub(crate) fn ps(arguments: &PsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let looked = operate(&arguments.directory, terminal, "nothing changed", |site, control| {
        let view = operating::ps(site, control)?;
        let cluster = match operating::connect(site, control) {
            Ok(connection) => ask(&connection),
            Err(OperateError::Interrupted) => return Err(OperateError::Interrupted.into()),
            Err(_) => Err(SILENT.to_owned()), // the table says how its container is
        };
        Ok((view, cluster))
    })?;
    match looked {
        Ok((view, cluster)) => show(&view, cluster.as_ref().map_err(String::as_str), arguments),
        Err(exit) => Ok(exit),
    }
}

fn show(view: &View, cluster: Result<&Cluster, &str>, arguments: &PsArguments) -> anyhow::Result<Exit> {
    let (cluster, untold) = (cluster.ok(), cluster.err());
    let is_well = view.is_well() && cluster.is_some_and(|cluster| has_all(view, cluster));
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        let document = serde_json::json!({
            "version": 1, "ok": is_well, "deployment": view, "workers": cluster.map(|one| &one.workers),
            "runs": cluster.map(|one| &one.runs), "untold": untold,
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
        return Ok(if is_well { Exit::Success } else { Exit::No });
    }
    let columns = [
        ("location", Side::Left),
        ("service", Side::Left),
        ("state", Side::Left),
        ("in the cluster", Side::Left),
        ("restarts", Side::Right),
        ("image", Side::Left),
        ("started", Side::Left),
        ("why", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for one in &view.services {
        let worker = one.worker.as_ref().zip(cluster).map(|(name, cluster)| {
            let worker = cluster.workers.iter().find(|worker| worker.name == *name);
            worker.map_or("has not joined", |worker| if worker.is_alive { "alive" } else { "lost" })
        });
        table.row([
            one.location.clone(),
            one.service.clone(),
            one.state.to_string(),
            worker.unwrap_or_default().to_owned(),
            one.container.as_ref().map_or_else(String::new, |_| one.restarts.to_string()),
            one.image.clone().unwrap_or_default(),
            // Truncated to seconds.
            one.started
                .as_ref()
                .map_or_else(String::new, |time| time.split('.').next().unwrap_or_default().to_owned()),
            one.reason.clone().unwrap_or_default(),
        ]);
    }
    table.write(&mut out)?;
    for line in &view.unknown {
        writeln!(out, "not known: {line}")?;
    }
    match cluster {
        Some(cluster) => {
            for run in &cluster.runs {
                writeln!(out, "run {} is {}, {} records arrived", run.name, run.state, run.arrived)?;
            }
        }
        None => writeln!(out, "{}", untold.unwrap_or(SILENT))?,
    }
    Ok(if is_well { Exit::Success } else { Exit::No })
}

/// Whether all workers of a deployment are in the cluster.
fn has_all(view: &View, cluster: &Cluster) -> bool {
    let is_there =
        |name: &String| cluster.workers.iter().any(|worker| worker.name == *name && worker.is_alive);
    view.services.iter().filter_map(|one| one.worker.as_ref()).all(is_there)
}

/// Prints logs of containers.
pub(crate) fn logs(arguments: &DeploymentLogsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let options =
        LogOptions { services: arguments.services.clone(), tail: arguments.tail, follow: arguments.follow };
    let done = operate(&arguments.directory, terminal, "the containers continue", |site, control| {
        let print = |who: &str, line: &str| {
            let mut out = answer::out();
            let _ = writeln!(out, "{who}  {line}"); // the end of the verb tells what could not be written
            let _ = out.flush();
            answer::is_read()
        };
        Ok(operating::logs(site, &options, control, print)?)
    })?;
    Ok(done.err().unwrap_or(Exit::Success))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_that_refuses_is_not_called_silent() {
        let refused =
            |status: u16| untold(ClientError::Refused { status, text: "the token was revoked".into() });
        assert!(refused(401).contains("rejects the access token of its first admin"), "{}", refused(401));
        assert_eq!(refused(503), SILENT);
    }
}
