//! The transport service that a run of this machine uses, and the policies of its plan.
use crate::failure::{Failure, Kind};
use std::path::{Path, PathBuf};
use tidemill_engine::remote::Security;
use tidemill_engine::{Program, ServedBy};
use tidemill_net::policy::{self, Site};
use tidemill_net::protocol::{PolicySpec, Side};
use tidemill_net::{Client, Options, Service, usual_socket};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::plan::PlanPolicy;
use tidemill_spec::policies::PolicySide;
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::Workflow;

/// The service for a run: that of the machine, or one of its own.
pub struct Serving {
    socket: PathBuf,
    /// Ends with the run.
    own: Option<OwnService>,
}

struct OwnService {
    service: Option<Service>,
    folder: PathBuf,
}

impl Drop for OwnService {
    fn drop(&mut self) {
        self.service = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Serving {
    /// Finds the service of this machine; none answers: a run whose plan has policies gets one of its own.
    ///
    /// # Errors
    /// The own one cannot start.
    pub fn find(program: &Program) -> Result<Option<Self>, Failure> {
        let socket = usual_socket();
        if socket.exists() && Client::connect(&socket, 0).is_ok() {
            return Ok(Some(Self { socket, own: None }));
        }
        if program.plan.policies.is_empty() {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(
                Kind::Unavailable,
                format!("a transport service for the policies of this run: {error}"),
            )
        };
        let number = crate::processes::secret_number().map_err(|error| failed(&error))?;
        // Short, because the path of a socket has at most 107 bytes.
        let folder = std::env::temp_dir().join(format!("tidemill-net-{:016x}", number as u64));
        std::fs::create_dir_all(&folder).map_err(|error| failed(&error))?;
        let mut own = OwnService { service: None, folder: folder.clone() };
        let socket = folder.join("net.sock");
        let options = Options {
            socket: socket.clone(),
            folder,
            public: None,
            security: Security::none(),
            on_upgrade: None,
        };
        own.service = Some(Service::start(options).map_err(|error| failed(&error))?);
        Ok(Some(Self { socket, own: Some(own) }))
    }

    /// Returns whether the service is of this run alone.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// The file of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// The service at a socket, for a run with this program.
pub fn served_by(socket: &Path, program: &Program, workflow: &Workflow) -> ServedBy {
    let policies = program.plan.policies.iter().map(spec).collect();
    ServedBy { socket: socket.into(), policies, workflow: workflow.name.value.clone() }
}

fn spec(policy: &PlanPolicy) -> PolicySpec {
    PolicySpec {
        id: policy.id.clone(),
        edges: tidemill_net::edge_name::EdgePattern {
            workflow: None,
            from: policy.from.clone(),
            to: policy.to.clone(),
        },
        side: match policy.side {
            PolicySide::Sender => Side::Sender,
            PolicySide::Receiver => Side::Receiver,
        },
        kind: policy.kind.clone(),
        options: serde_json::to_value(&policy.options).unwrap_or_default(),
    }
}

/// Checks the kinds and options of the policies of a plan, and that their conditions fit the columns of their edges.
///
/// # Errors
/// Everything that is wrong with them.
pub(crate) fn check_policies(workflow: &Workflow, program: &Program) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    let operators: std::collections::BTreeMap<&str, (&str, Option<&StreamType>)> = program
        .plan
        .stages
        .iter()
        .map(|stage| (stage.id.as_str(), (stage.operator.as_str(), program.output(stage))))
        .collect();
    for policy in &program.plan.policies {
        let spec = spec(policy);
        // Libraries are loaded by the service, on the machine that has them.
        if spec.kind == "library" {
            continue;
        }
        let site = Site { id: spec.id.clone(), ..Site::default() };
        let checked = policy::make(&spec.kind, &spec.options, &site).and_then(|mut made| {
            for edge in &program.plan.edges {
                let (Some((from, columns)), Some((to, _))) =
                    (operators.get(edge.from.as_str()), operators.get(edge.to.as_str()))
                else {
                    continue;
                };
                if let Some(columns) = columns.filter(|_| policy.applies_to(from, to)) {
                    made.fits(columns).map_err(|error| format!("edge {from} -> {to}: {error}"))?;
                }
            }
            Ok(())
        });
        if let Err(error) = checked {
            let declared = workflow.policies.iter().find(|one| one.kind.value == policy.kind);
            let text = format!("policy `{}`: {error}", policy.id);
            let mut found = Diagnostic::error("E0217", text);
            if let Some(declared) = declared {
                found = found.at(declared.kind.span.clone());
            }
            errors.push(found.with_help("`tidemill net policy kinds` lists the kinds with their options"));
        }
    }
    errors.into_result(())
}
