//! Problems of a deployment, each with advice.
use std::path::PathBuf;
use tidemill_cluster::client::ClientError;

/// Name of this machine in messages.
pub(crate) const HERE: &str = "this machine";
/// The HTTP status for an unknown user.
const UNAUTHORIZED: u16 = 401;

/// A problem on a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A machine cannot be reached.
    #[error("cannot reach {machine} by ssh: {text}")]
    NotReached {
        /// Machine.
        machine: String,
        /// Output of ssh.
        text: String,
    },
    /// There is no `docker` program.
    #[error("{machine} has no program `docker`")]
    NoDocker {
        /// Machine.
        machine: String,
    },
    /// The engine does not answer.
    #[error("the container engine of {machine} does not answer: {text}")]
    NoEngine {
        /// Machine.
        machine: String,
        /// Output of `docker`.
        text: String,
    },
    /// The engine's socket is closed to this user.
    #[error("this user may not use the container engine of {machine}")]
    NotPermitted {
        /// Machine.
        machine: String,
    },
    /// There is no Compose program.
    #[error("{machine} has neither `docker compose` nor `docker-compose`")]
    NoCompose {
        /// Machine.
        machine: String,
    },
    /// A port is in use.
    #[error("{} of {machine} is taken{}", port_name(*port), by.as_ref().map_or_else(String::new, |by| format!(" by {by}")))]
    PortTaken {
        /// Machine.
        machine: String,
        /// Port; 0 if the engine does not report it.
        port: u16,
        /// The owner, if known.
        by: Option<String>,
    },
    /// Two containers of the deployment need one port of a machine.
    #[error("port {port} of {machine} is needed by {} and by {}", services[0], services[1])]
    PortShared {
        /// Machine.
        machine: String,
        /// Port.
        port: u16,
        /// The Compose services.
        services: [String; 2],
    },
    /// The image is missing and cannot be obtained.
    #[error("{machine} has no image {image}{}", if machine == HERE { "" } else { ", and neither has this machine" })]
    ImageMissing {
        /// Machine.
        machine: String,
        /// Image.
        image: String,
    },
    /// The image is for other processors.
    #[error("the image {image} is for {image_architecture}, but {machine} is {architecture}")]
    ArchitectureDiffers {
        /// Machine.
        machine: String,
        /// Its architecture.
        architecture: String,
        /// Image.
        image: String,
        /// Architecture of the image.
        image_architecture: String,
    },
    /// There is too little space.
    #[error(
        "the container engine of {machine} has {free_mib} MiB left in {folder}, but {needed_mib} MiB are needed"
    )]
    NoDisk {
        /// Machine.
        machine: String,
        /// Folder.
        folder: String,
        /// Free space.
        free_mib: u64,
        /// Needed space.
        needed_mib: u64,
    },
    /// The disk ran full.
    #[error("no space is left on {machine}: {text}")]
    DiskFull {
        /// Machine.
        machine: String,
        /// Output of the engine.
        text: String,
    },
    /// A clock is wrong: certificates would count as expired or as not valid yet.
    #[error("the clock of {machine} is {} s {} this machine's", seconds.abs(), if *seconds < 0 { "behind" } else { "ahead of" })]
    ClockOff {
        /// Machine.
        machine: String,
        /// Seconds that it is ahead.
        seconds: i64,
    },
    /// The engine has no addresses left for a network.
    #[error("the container engine of {machine} has no free range of addresses for a network")]
    NoNetwork {
        /// Machine.
        machine: String,
    },
    /// Another deployment uses the names of this one.
    #[error("on {machine} another deployment has these names: {}", what.join(", "))]
    OtherDeployment {
        /// Machine.
        machine: String,
        /// Its containers and volumes.
        what: Vec<String>,
    },
    /// A container needs more processors than the machine has.
    #[error("a container needs more processors than {machine} has: {text}")]
    TooFewProcessors {
        /// Machine.
        machine: String,
        /// Output of the engine.
        text: String,
    },
    /// A container was killed for lack of memory.
    #[error("{service} at {location} had too little memory and was killed")]
    OutOfMemory {
        /// Service.
        service: String,
        /// Location.
        location: String,
    },
    /// A container does not stay up.
    #[error("{service} at {location} ended with exit code {code}{}", told(log))]
    Ended {
        /// Service.
        service: String,
        /// Location.
        location: String,
        /// Its exit code.
        code: i64,
        /// Its last lines.
        log: String,
    },
    /// A container runs, but its health check fails.
    #[error("{service} at {location} is not healthy{}", told(log))]
    Unhealthy {
        /// Service.
        service: String,
        /// Location.
        location: String,
        /// Output of its health check, then its last lines.
        log: String,
    },
    /// A container runs, but the expected state is not reached in time.
    #[error("{service} at {location}: {what} did not happen within {seconds} s{}", told(log))]
    TooLate {
        /// Service.
        service: String,
        /// Location.
        location: String,
        /// The expected state.
        what: String,
        /// Seconds waited.
        seconds: u64,
        /// Its last lines.
        log: String,
    },
    /// A run failed while a container was changed.
    #[error("{service} at {location} has the image, but {text}")]
    RunFailed {
        /// Service.
        service: String,
        /// Location.
        location: String,
        /// The run, and the reason.
        text: String,
    },
    /// Another message of Compose or the engine.
    #[error("{what} failed on {machine}: {text}")]
    Other {
        /// Machine.
        machine: String,
        /// The attempted action.
        what: String,
        /// The message.
        text: String,
    },
}

fn port_name(port: u16) -> String {
    if port == 0 { "a port".to_owned() } else { format!("port {port}") }
}

fn told(log: &str) -> String {
    let lines = log.lines().map(|line| format!("\n    {line}")).collect::<String>();
    if lines.is_empty() { String::new() } else { format!("; it says:{lines}") }
}

impl Cause {
    /// One word, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotReached { .. } => "not_reached",
            Self::NoDocker { .. } => "no_docker",
            Self::NoEngine { .. } => "no_engine",
            Self::NotPermitted { .. } => "not_permitted",
            Self::NoCompose { .. } => "no_compose",
            Self::PortTaken { .. } => "port_taken",
            Self::PortShared { .. } => "port_shared",
            Self::ImageMissing { .. } => "image_missing",
            Self::ArchitectureDiffers { .. } => "architecture_differs",
            Self::NoDisk { .. } | Self::DiskFull { .. } => "no_disk",
            Self::ClockOff { .. } => "clock_off",
            Self::NoNetwork { .. } => "no_network",
            Self::OtherDeployment { .. } => "other_deployment",
            Self::TooFewProcessors { .. } => "too_few_processors",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::Ended { .. } => "ended",
            Self::Unhealthy { .. } => "unhealthy",
            Self::TooLate { .. } => "too_late",
            Self::RunFailed { .. } => "run_failed",
            Self::Other { .. } => "other",
        }
    }

    /// Returns advice.
    pub fn fix(&self) -> String {
        match self {
            Self::NotReached { machine, .. } => {
                format!("try `ssh ssh://{machine} true`: it must work without a question (with a key in the agent and a known host)")
            }
            Self::NoDocker { .. } => "install it: `apt-get install docker.io`, or Docker's own packages".to_owned(),
            Self::NoEngine { .. } => "start it: `systemctl start docker`".to_owned(),
            Self::NotPermitted { .. } => "add the user to the group docker, or call as root".to_owned(),
            Self::NoCompose { .. } => {
                "install one: `apt-get install docker-compose`, or Docker's package docker-compose-plugin".to_owned()
            }
            Self::PortTaken { port, .. } => {
                let tells = match port {
                    0 => "see `ss -ltnp`".to_owned(),
                    port => format!("see `ss -ltnp 'sport = :{port}'`"),
                };
                format!(
                    "end the program that uses it ({tells}), or give the deployment other ports: `tidemill \
                     deploy PLAN --out DIR --force --first-port 7500` moves all of them, including those of \
                     metrics; `TIDEMILL_PORT=7500`, with hosts also `TIDEMILL_HOSTS_PORT=7501`, in the file \
                     `.env` of the controller's location moves only the controller's. The port of a source \
                     is that of its `listen` in the workflow"
                )
            }
            Self::PortShared { .. } => {
                "give one of the sources another port (`listen` in the workflow), or plan them on workers of two machines".to_owned()
            }
            Self::ImageMissing { .. } => {
                "build it with `make image`, or load it: `docker load --input FILE`".to_owned()
            }
            Self::ArchitectureDiffers { architecture, .. } => {
                format!("build the image on a machine that is {architecture}, and name it with `tidemill deploy --image`")
            }
            Self::NoDisk { .. } | Self::DiskFull { .. } => {
                "free space: `docker system df` shows the space of images, containers and volumes".to_owned()
            }
            Self::ClockOff { .. } => "set it: `timedatectl set-ntp true`, or by hand without network time".to_owned(),
            Self::NoNetwork { .. } => {
                "remove unused networks (`docker network ls`), or give the engine more in default-address-pools".to_owned()
            }
            Self::OtherDeployment { .. } => {
                "it is unchanged: remove it from its own folder, or write this one into another folder (`tidemill deploy --out`)".to_owned()
            }
            Self::TooFewProcessors { .. } => {
                "set the `vcpu` of that type of worker in the infrastructure to the number of the machine, then plan and deploy again".to_owned()
            }
            Self::OutOfMemory { .. } => {
                "give the worker more memory in the infrastructure, or smaller models, and deploy again".to_owned()
            }
            Self::Ended { .. } | Self::Unhealthy { .. } | Self::TooLate { .. } => {
                "`tidemill deployment logs DIR` shows its whole log; docs/troubleshooting.md lists causes".to_owned()
            }
            Self::RunFailed { .. } => {
                "`tidemill remove RUN` removes the run, `tidemill up DIR` submits it again; images with `-onnxruntime` have the library of ONNX Runtime".to_owned()
            }
            Self::Other { .. } => "this is the message of the engine or of Compose".to_owned(),
        }
    }
}

/// Error of operating a deployment.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The operation was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The folder has no deployment.
    #[error("{path}: {text}", path = path.display())]
    Deployment {
        /// The file.
        path: PathBuf,
        /// Description.
        text: String,
    },
    /// Problems were found.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Causes(Vec<Cause>),
    /// A file cannot be written or read.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Path.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The controller does not answer, or refuses.
    #[error("the controller of the deployment: {0}")]
    Client(#[from] ClientError),
    /// The controller no longer accepts the deployment's admin token.
    #[error(
        "the controller of the deployment rejects the access token of its first admin, `admin.token` in its folder: {0}"
    )]
    TokenRefused(ClientError),
    /// The deployment is not running.
    #[error("the controller of the deployment is not running")]
    NotUp,
    /// The requested part does not belong to the deployment.
    #[error("the deployment has no {what}; it has {known}")]
    Unknown {
        /// The request.
        what: String,
        /// The existing parts.
        known: String,
    },
}

impl OperateError {
    /// Converts a refusal of a request with the first admin's token.
    pub fn refused(error: ClientError) -> Self {
        match error {
            ClientError::Refused { status: UNAUTHORIZED, .. } => Self::TokenRefused(error),
            other => Self::Client(other),
        }
    }

    /// Whether unreachable machines are the only problem.
    pub(crate) fn is_unreached(&self) -> bool {
        let is_it = |cause: &Cause| matches!(cause, Cause::NotReached { .. });
        matches!(self, Self::Causes(causes) if !causes.is_empty() && causes.iter().all(is_it))
    }

    /// Creates an error from problems without duplicates.
    pub(crate) fn of(causes: Vec<Cause>) -> Self {
        let mut each: Vec<Cause> = Vec::new();
        for cause in causes {
            if !each.contains(&cause) {
                each.push(cause);
            }
        }
        Self::Causes(each)
    }
}

impl From<Cause> for OperateError {
    fn from(cause: Cause) -> Self {
        Self::Causes(vec![cause])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_refused_is_named() {
        let refused = |status: u16| {
            OperateError::refused(ClientError::Refused { status, text: "it was revoked".into() })
        };
        let told = refused(401).to_string();
        assert!(told.contains("`admin.token`") && told.contains("it was revoked"), "{told}");
        assert!(matches!(refused(403), OperateError::Client(_)));
    }

    #[test]
    fn causes_say_what_and_what_to_do() {
        let machine = "ada@gate".to_owned();
        let clock = Cause::ClockOff { machine: machine.clone(), seconds: -75 };
        assert_eq!(clock.to_string(), "the clock of ada@gate is 75 s behind this machine's");
        let port = Cause::PortTaken { machine, port: 7420, by: Some("the container x".to_owned()) };
        assert_eq!(port.to_string(), "port 7420 of ada@gate is taken by the container x");
        assert!(port.fix().contains(":7420"), "{}", port.fix());
        let unknown = Cause::PortTaken { machine: "box".into(), port: 0, by: None };
        assert!(!unknown.fix().contains(":0'") && unknown.fix().contains("`ss -ltnp`"), "{}", unknown.fix());
        assert_eq!(unknown.to_string(), "a port of box is taken");
        let ended = Cause::Ended {
            service: "controller".into(),
            location: "hub".into(),
            code: 69,
            log: "a\nb".into(),
        };
        assert_eq!(ended.to_string(), "controller at hub ended with exit code 69; it says:\n    a\n    b");
    }
}
