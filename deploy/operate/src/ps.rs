//! States of a deployment's containers.
use crate::cause::{Cause, OperateError};
use crate::control::Control;
use crate::engine::{Container, Engine};
use crate::equipment::causes;
use crate::site::Site;
use serde::Serialize;
use tidemill_deploy::deployment::ServiceRole;

/// State of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerState {
    /// It does not exist.
    Absent,
    /// It runs, and its health check has no result yet.
    Starting,
    /// It runs, and is healthy if it has a health check.
    Healthy,
    /// It runs, but its health check fails.
    Unhealthy,
    /// It ended and is being restarted.
    Restarting,
    /// It ended.
    Ended,
    /// It is paused.
    Paused,
}

impl std::fmt::Display for ContainerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Absent => "not there",
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "UNHEALTHY",
            Self::Restarting => "RESTARTING",
            Self::Ended => "ENDED",
            Self::Paused => "paused",
        })
    }
}

/// A container of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceView {
    /// Its location.
    pub location: String,
    /// The machine.
    pub machine: String,
    /// Its service.
    pub service: String,
    /// The worker; `None` for the controller.
    pub worker: Option<String>,
    /// Its state.
    pub state: ContainerState,
    /// Its image.
    pub image: Option<String>,
    /// Start time, RFC 3339.
    pub started: Option<String>,
    /// Number of restarts.
    pub restarts: u64,
    /// Reason of its state, if it is not well and the reason is known.
    pub reason: Option<String>,
    /// Id of its first process on its machine; `None` if it does not run.
    pub pid: Option<i64>,
    /// The engine's name for it.
    pub container: Option<String>,
}

/// A deployment.
#[derive(Debug, Clone, Serialize)]
pub struct View {
    /// Its project.
    pub project: String,
    /// Its workflow.
    pub workflow: String,
    /// Its containers, in the order of the locations.
    pub services: Vec<ServiceView>,
    /// Unreachable machines, with the reason.
    pub unknown: Vec<String>,
}

fn state(container: &Container) -> ContainerState {
    match (container.status.as_str(), container.health.as_deref()) {
        ("running", None | Some("healthy")) => ContainerState::Healthy,
        ("running", Some("unhealthy")) => ContainerState::Unhealthy,
        ("running", Some(_)) | ("created", _) => ContainerState::Starting,
        ("restarting", _) => ContainerState::Restarting,
        ("paused", _) => ContainerState::Paused,
        _ => ContainerState::Ended,
    }
}

fn reason(container: &Container, state: ContainerState) -> Option<String> {
    match state {
        _ if container.was_out_of_memory => Some("it had too little memory and was killed".to_owned()),
        ContainerState::Unhealthy => Some(container.health_log.clone()).filter(|text| !text.is_empty()),
        ContainerState::Ended | ContainerState::Restarting => {
            Some(format!("exit code {}", container.exit_code))
        }
        _ => None,
    }
}

/// Inspects all containers.
///
/// # Errors
/// An interruption. Unreachable machines are part of the result.
pub fn ps(site: &Site, control: Control<'_>) -> Result<View, OperateError> {
    let deployment = site.deployment();
    let mut view = View {
        project: deployment.project.clone(),
        workflow: deployment.workflow.clone(),
        services: Vec::new(),
        unknown: Vec::new(),
    };
    let mut wrong: Vec<Cause> = Vec::new();
    for place in site.places() {
        let containers = Engine::of(&place.machine, control).containers(&place.location.project);
        let Some(containers) = causes(containers, &mut wrong)? else { continue };
        for service in &place.location.services {
            let found = containers.iter().find(|one| one.service == service.service);
            let state = found.map_or(ContainerState::Absent, state);
            view.services.push(ServiceView {
                location: place.location.name.clone(),
                machine: place.machine.name(),
                service: service.service.clone(),
                worker: service.worker.clone().filter(|_| service.role == ServiceRole::Worker),
                state,
                image: found.map(|one| one.image.clone()),
                started: found.map(|one| one.started.clone()),
                restarts: found.map_or(0, |one| one.restarts),
                reason: found.and_then(|one| reason(one, state)),
                pid: found.map(|one| one.pid).filter(|pid| *pid > 0),
                container: found.map(|one| one.id.clone()),
            });
        }
    }
    wrong.dedup();
    view.unknown = wrong.iter().map(ToString::to_string).collect();
    Ok(view)
}

impl View {
    /// Whether all containers exist and are well.
    pub fn is_well(&self) -> bool {
        self.unknown.is_empty() && self.services.iter().all(|one| one.state == ContainerState::Healthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_from_status_and_health() {
        let of = |status: &str, health: Option<&str>| {
            state(&Container {
                id: String::new(),
                service: String::new(),
                image: String::new(),
                image_id: String::new(),
                status: status.into(),
                health: health.map(str::to_owned),
                health_log: String::new(),
                exit_code: 0,
                was_out_of_memory: false,
                restarts: 0,
                started: String::new(),
                pid: 1,
            })
        };
        assert_eq!(of("running", None), ContainerState::Healthy);
        assert_eq!(of("running", Some("starting")), ContainerState::Starting);
        assert_eq!(of("running", Some("unhealthy")), ContainerState::Unhealthy);
        assert_eq!(of("restarting", Some("unhealthy")), ContainerState::Restarting);
        assert_eq!(of("exited", None), ContainerState::Ended);
    }
}
