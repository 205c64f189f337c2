//! Generates the files that deploy a plan.
//!
//! One pure function: equal plans, infrastructures and choices give identical files, byte by byte. It reads no clock,
//! queries no engine and creates no secrets; secrets are named, and the deployment's start puts them there.
//!
//! ```
//! use tidemill_deploy::{Request, deploy};
//! use tidemill_spec::plan::PlanFile;
//! let text = "
//! version: 1
//! workflow: {name: copy}
//! workers: [{id: local, tier: edge, worker_type: small}]
//! stages:
//!   - {id: rows, operator: rows, worker: local}
//!   - {id: lines, operator: lines, worker: local}
//! classes: [{id: 0, share: 1, route: {rows: rows, lines: lines}}]
//! edges: [{from: rows, to: lines}]
//! ";
//! let plan = PlanFile::parse(text, "plan.yaml")?;
//! let files = deploy(&Request::new(&plan, text))?;
//! assert!(files.get("edge/compose.yaml").is_some_and(|compose| compose.contains("worker-local")));
//! assert_eq!(files, deploy(&Request::new(&plan, text))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod addressed;
mod compose;
pub mod deployment;
mod error;
mod files;
mod kubernetes;
mod layout;
mod manual;
mod monitoring;
mod names;
mod request;
pub mod shell;
mod systemd;

pub use error::DeployError;
pub use files::Files;
pub use request::{NetworkMode, Request, Target};

use layout::Layout;
use tidemill_spec::kinds::texts;
use tidemill_spec::units::Bytes;
use tidemill_spec::workflow::{Sink, Workflow};

/// State folder of a controller and of a worker in containers; images have it, and it belongs to [`USER`].
pub const STATE_FOLDER: &str = "/var/lib/tidemill";
/// Folder in containers for sinks that write absolute paths; images have it, and it belongs to [`USER`].
pub const RESULTS_FOLDER: &str = "/results";
/// User and group of all containers.
pub const USER: u32 = 65_532;
/// Port of the controller for people and workers.
pub const PORT: u16 = 7420;
/// Port of the controller for the processes of runs.
pub const HOSTS_PORT: u16 = 7421;
/// Port at which the controller serves metrics to its own machine.
pub const CONTROLLER_METRICS_PORT: u16 = 9464;
/// Port at which the first worker serves metrics.
pub const WORKER_METRICS_PORT: u16 = 9465;
/// Marker in the first line of generated files of a worker, which a later plan may remove.
const MADE: &str = "made by `tidemill deploy`";
/// The file that keeps secrets out of repositories.
pub const IGNORED_FILE: &str = ".gitignore";
/// Its content: files that are secret or belong to one machine.
pub const IGNORED: &str = "admin.token
token
join
join-*
.env
compose.images.yaml
upgrade.json
";
/// Longest time that a controller or a worker takes to end.
const GRACE_SECONDS: u32 = 30;
/// Most processes and threads of a container.
const MOST_PROCESSES: u32 = 2048;

/// Memory limit of a controller: a cluster of 5,000 sources takes a quarter of it.
const CONTROLLER_MEMORY: Bytes = Bytes(2 << 30);

/// Returns sinks that write where a deployed worker cannot, with the path: everything but its own folder and
/// [`RESULTS_FOLDER`] is read-only.
pub fn unwritable(request: &Request<'_>) -> Vec<(String, String)> {
    let is_out = |path: &str| {
        let path = std::path::Path::new(path);
        path.is_absolute()
            && !path.starts_with(RESULTS_FOLDER)
            && !path.starts_with(STATE_FOLDER)
            && !path.starts_with("/tmp")
    };
    let of = |sink: &Sink| -> Vec<(String, String)> {
        let paths = texts(&sink.options, request.kinds.sink(&sink.kind).writes).into_iter();
        paths.filter(|path| is_out(path)).map(|path| (sink.id.as_str().to_owned(), path.to_owned())).collect()
    };
    request.workflow.iter().flat_map(|workflow| &workflow.sinks).flat_map(of).collect()
}

/// Returns sources that are unreachable once deployed, with the address: a container has its own network, and its addresses
/// are not known before.
pub fn unheard(request: &Request<'_>) -> Vec<(String, String)> {
    match layout::network(request) {
        NetworkMode::Bridge => {
            request.workflow.map(|workflow| layout::unheard(workflow, &request.kinds)).unwrap_or_default()
        }
        NetworkMode::Host => Vec::new(),
    }
}

/// Returns manual steps for devices that sources read, one sentence each.
pub fn devices(request: &Request<'_>) -> Vec<String> {
    let told = |(source, path): (String, String)| {
        let rule = "allowed to read and write it on its machine: by a rule of udev with `MODE=\"0666\"`, for instance";
        let what = match request.target {
            Target::Compose if !layout::has_a_plain_name(&path) => {
                "which its container does not get, because Compose accepts no `:` in a name: give the device another name by a rule of udev"
                    .to_owned()
            }
            Target::Compose => format!("which its container gets: the user {USER} must be {rule}"),
            Target::Systemd => format!("which its unit may use: every user must be {rule}"),
            Target::Kubernetes => {
                "which no pod has: run its worker with Compose or systemd".to_owned()
            }
        };
        format!("source `{source}` reads the device {path}, {what}")
    };
    let found =
        request.workflow.map(|workflow| layout::devices(workflow, &request.kinds)).unwrap_or_default();
    found.into_iter().map(told).collect()
}

/// Returns a note on `resources: {mode: elastic}` if no container moves limits between workers.
pub fn elastic_elsewhere(workflow: &Workflow, target: Target) -> Option<String> {
    layout::elastic_wanted(Some(workflow))?;
    let text = match target {
        Target::Compose => return None,
        Target::Kubernetes => {
            "`resources: {mode: elastic}` has no effect in pods: each keeps the limits of its machine in the infrastructure; clusters have vertical \
             autoscalers for it"
        }
        Target::Systemd => {
            "`resources: {mode: elastic}` moves limits between the processes of the run within each worker, \
             whose unit has its own control group; limits do not move between workers of one machine"
        }
    };
    Some(text.to_owned())
}

/// Returns kinds of devices that the deployment serves and that a later plan of the controller would not use: the infrastructure
/// has one address for several of them, or their machines are no workers.
///
/// # Errors
/// As [`deploy`].
pub fn lost_when_replanned(request: &Request<'_>) -> Result<Vec<String>, DeployError> {
    match request.profiles.is_empty() {
        true => Ok(Vec::new()),
        false => Ok(addressed::infrastructure(&Layout::of(request)?, request)?.1),
    }
}

/// Whether a file was written by [`deploy`]: one that a new plan lacks may be removed.
pub fn is_generated(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with('#') && line.contains(MADE))
}

/// Generates all files of a deployment.
///
/// # Errors
/// The plan does not fit the infrastructure, or the controller has no reachable location.
pub fn deploy(request: &Request<'_>) -> Result<Files, DeployError> {
    let layout = Layout::of(request)?;
    let mut files = Files::default();
    match request.target {
        Target::Compose => compose::write(&layout, &mut files)?,
        Target::Kubernetes => kubernetes::write(&layout, &mut files)?,
        Target::Systemd => systemd::write(&layout, &mut files),
    }
    monitoring::write(&layout, request.target, &mut files)?;
    if request.target == Target::Compose {
        files.add(deployment::FILE_NAME, layout.document(request).to_json()?);
    }
    files.add(IGNORED_FILE, IGNORED);
    files.add(request::PLAN, addressed::plan(&layout, request)?);
    if let (Some(text), _) = addressed::infrastructure(&layout, request)? {
        files.add(request::INFRASTRUCTURE, text);
    }
    files.add("README.md", manual::text(&layout, request));
    Ok(files)
}
