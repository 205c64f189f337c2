//! Transport services: that of this machine over its socket, those of workers through the controller.
use crate::arguments::ServiceChoice;
use crate::cluster;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tidemill_app::failure::{Failure, Kind};
use tidemill_cluster::api::{NetPolicy, WorkerNetView, WorkerView};
use tidemill_cluster::client::{Client as Controller, segment};
use tidemill_net::protocol::{Answer, Listing, Request};
use tidemill_net::{Client, ClientError, usual_socket};

/// The services that a verb asks.
pub(super) enum Place {
    /// That of this machine.
    Here(Here),
    /// Those of workers.
    Workers(Box<Workers>),
}

/// The service of this machine.
pub(super) struct Here {
    socket: PathBuf,
    client: Option<Client>,
}

/// The services of workers.
pub(super) struct Workers {
    pub(super) controller: Controller,
    /// None: all workers.
    pub(super) names: Option<Vec<String>>,
}

/// A machine with a service.
pub(super) struct Host {
    /// The worker; none: this machine.
    pub(super) worker: Option<String>,
    /// None: its service was not reached.
    pub(super) listing: Option<Listing>,
    /// Edges that the listing leaves out.
    pub(super) left_out: u64,
    /// Why the service was not reached.
    pub(super) problem: Option<String>,
    /// Policies that the controller wants there.
    pub(super) wanted: Vec<NetPolicy>,
    /// Why some of these are not in force, by id.
    pub(super) problems: BTreeMap<String, String>,
}

impl Host {
    fn here(listing: Listing) -> Self {
        Self {
            worker: None,
            listing: Some(listing),
            left_out: 0,
            problem: None,
            wanted: Vec::new(),
            problems: BTreeMap::new(),
        }
    }
}

impl From<WorkerNetView> for Host {
    fn from(view: WorkerNetView) -> Self {
        let WorkerNetView { worker, is_alive, report, wanted } = view;
        let unknown = || Some("its agent has not reported a transport service".to_owned());
        let (listing, left_out, problem, problems) = match report {
            Some(report) => (report.listing, report.left_out, report.problem, report.problems),
            None => (None, 0, unknown(), BTreeMap::new()),
        };
        // What a lost worker reported last is no state of now.
        let problem = if is_alive { problem } else { Some("the worker is lost".to_owned()) };
        let listing = listing.filter(|_| is_alive);
        Self { worker: Some(worker), listing, left_out, problem, wanted, problems }
    }
}

/// Converts an error of a service to a failure of a command.
fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Unreachable { .. } => Failure::new(Kind::Unavailable, error.to_string()).with_help(
            "start one with `tidemill net serve`, or name its socket with `--socket` or TIDEMILL_NET",
        ),
        ClientError::Refused(_) => Failure::new(Kind::Configuration, error.to_string()),
        ClientError::Broken(_) => Failure::new(Kind::Unavailable, error.to_string()),
    }
}

impl Here {
    /// Asks the service, over a connection that stays.
    ///
    /// # Errors
    /// It is not there, or refuses.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.socket, 0).map_err(failure)?,
        };
        match client.ask(request) {
            // The next question makes another connection.
            Err(error @ ClientError::Broken(_)) => Err(failure(error)),
            answer => {
                self.client = Some(client);
                answer.map_err(failure)
            }
        }
    }

    /// Everything that the service has.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn list(&mut self) -> Result<Listing, Failure> {
        match self.ask(&Request::List)? {
            Answer::Listing(listing) => Ok(*listing),
            _ => Err(failure(ClientError::Broken("answers something else".into()))),
        }
    }
}

impl Workers {
    /// What their agents reported last.
    ///
    /// # Errors
    /// The controller refuses, or does not know a worker.
    pub(super) fn views(&self) -> Result<Vec<WorkerNetView>, Failure> {
        let all;
        let names = match &self.names {
            Some(names) => names,
            None => {
                let workers: Vec<WorkerView> =
                    self.controller.get("/v1/workers").map_err(|error| cluster::failure(&error))?;
                all = workers.into_iter().map(|worker| worker.name).collect();
                &all
            }
        };
        let view = |name: &String| {
            let place = format!("/v1/workers/{}/net", segment(name));
            self.controller.get(&place).map_err(|error| cluster::failure(&error))
        };
        names.iter().map(view).collect()
    }
}

impl Place {
    /// Returns the services of the arguments.
    ///
    /// # Errors
    /// It is not known which controller is meant.
    pub(super) fn of(choice: &ServiceChoice) -> anyhow::Result<Self> {
        if choice.workers.is_empty() && !choice.all_workers {
            let socket = choice.socket.clone().unwrap_or_else(usual_socket);
            return Ok(Self::Here(Here { socket, client: None }));
        }
        let mut names = choice.workers.clone();
        names.sort();
        names.dedup();
        let names = (!choice.all_workers).then_some(names);
        Ok(Self::Workers(Box::new(Workers { controller: cluster::client(&choice.of)?, names })))
    }

    /// Looks at all of them.
    ///
    /// # Errors
    /// The service of this machine or the controller does not answer.
    pub(super) fn look(&mut self) -> Result<Vec<Host>, Failure> {
        match self {
            Self::Here(here) => Ok(vec![Host::here(here.list()?)]),
            Self::Workers(workers) => Ok(workers.views()?.into_iter().map(Host::from).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_is_not_there_is_told_with_the_way_to_start_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut here = Here { socket: folder.path().join("net.sock"), client: None };
        let error = here.list().unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("net.sock"), "{error}");
        assert!(error.help().unwrap().contains("`tidemill net serve`"));
    }

    #[test]
    fn what_a_lost_worker_reported_is_not_shown() {
        let report =
            tidemill_cluster::api::NetReport { listing: Some(Listing::default()), ..Default::default() };
        let view = |is_alive| WorkerNetView {
            worker: "edge".into(),
            is_alive,
            report: Some(report.clone()),
            wanted: Vec::new(),
        };
        let (alive, lost) = (Host::from(view(true)), Host::from(view(false)));
        assert!(alive.listing.is_some() && alive.problem.is_none());
        assert!(lost.listing.is_none() && lost.problem.unwrap().contains("lost"));
    }
}
