//! The transport service that a run of this machine uses, and the policies of its plan.
use crate::failure::{Failure, Kind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tidemill_engine::remote::Security;
use tidemill_engine::{Program, ServedBy};
use tidemill_net::policy::{self, Site};
use tidemill_net::protocol::{PolicySpec, Side};
use tidemill_net::{Client, Options, Service, usual_socket};
use tidemill_operators::bind::BoundWorkflow;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::plan::{PlanPolicy, Stage};
use tidemill_spec::policies::{Policy, PolicySide, resolve};
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
        for file in ["net.sock", "policies.json"] {
            let _ = std::fs::remove_file(self.folder.join(file));
        }
        // Logs of policies stay.
        let _ = std::fs::remove_dir(&self.folder);
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
            on_panic: None,
        };
        own.service = Some(Service::start(options).map_err(|error| failed(&error))?);
        Ok(Some(Self { socket, own: Some(own) }))
    }

    /// Returns whether the service is of this run alone.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns the folder for logs of policies, if the service is of this run alone and the plan has such a policy.
    pub fn logs(&self, program: &Program) -> Option<&Path> {
        let has_log = program.plan.policies.iter().any(|policy| policy.kind == "log");
        self.own.as_ref().filter(|_| has_log).map(|own| own.folder.as_path())
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

/// An edge with the columns of its records, where they are known.
pub(crate) type Typed<'a> = (&'a str, &'a str, Option<&'a StreamType>);

/// Checks the policies of a program.
///
/// # Errors
/// Everything that is wrong with them.
pub(crate) fn check_program(workflow: &Workflow, program: &Program) -> Result<(), Diagnostics> {
    let stages: BTreeMap<&str, &Stage> =
        program.plan.stages.iter().map(|stage| (stage.id.as_str(), stage)).collect();
    let edges = program.plan.edges.iter().filter_map(|edge| {
        let (from, to) = (stages.get(edge.from.as_str())?, stages.get(edge.to.as_str())?);
        Some((from.operator.as_str(), to.operator.as_str(), program.output(from)))
    });
    check_policies(workflow, &program.plan.policies, &edges.collect::<Vec<_>>())
}

/// Checks the policies of a workflow.
///
/// # Errors
/// Everything that is wrong with them.
pub(crate) fn check_workflow(workflow: &Workflow, bound: &BoundWorkflow) -> Result<(), Diagnostics> {
    let output = |id: &str| match bound.sources.get(id) {
        Some(source) => Some(&source.output),
        None => bound.operators.get(id).map(|operator| &operator.output),
    };
    let inputs = bound.inputs.iter().flat_map(|(to, inputs)| inputs.iter().map(move |from| (from, to)));
    let edges: Vec<Typed<'_>> = inputs.map(|(from, to)| (from.as_str(), to.as_str(), output(from))).collect();
    check_policies(workflow, &resolve(workflow, None), &edges)
}

/// Checks the kinds and options of policies, and that their conditions fit the columns of their edges.
fn check_policies(
    workflow: &Workflow,
    policies: &[PlanPolicy],
    edges: &[Typed<'_>],
) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    for policy in policies {
        let spec = spec(policy);
        // Libraries are loaded by the service, on the machine that has them.
        if spec.kind == "library" {
            continue;
        }
        let site = Site { id: spec.id.clone(), ..Site::default() };
        let checked = policy::make(&spec.kind, &spec.options, &site).and_then(|mut made| {
            for (from, to, columns) in edges.iter().filter(|(from, to, _)| policy.applies_to(from, to)) {
                if let Some(columns) = columns {
                    made.fits(columns).map_err(|error| format!("edge {from} -> {to}: {error}"))?;
                }
            }
            Ok(())
        });
        if let Err(error) = checked {
            let text = format!("policy `{}`: {error}", policy.id);
            let mut found = Diagnostic::error("E0217", text)
                .with_help("`tidemill net policy kinds` lists the kinds with their options");
            let same = |one: &&Policy| one.kind.value == policy.kind && one.options == policy.options;
            if let Some(declared) = workflow.policies.iter().find(same) {
                found = found.at(declared.kind.span.clone());
            }
            errors.push(found);
        }
    }
    errors.into_result(())
}
