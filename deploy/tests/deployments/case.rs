//! Plans with their infrastructures.
use std::path::PathBuf;
use tidemill_deploy::{DeployError, Files, Request, Target, deploy};
use tidemill_operators::registry::Registry;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::workflow::Workflow;

/// A folder with a plan.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) targets: &'static [Target],
}

/// All cases.
pub(crate) const CASES: &[Case] = &[
    Case { name: "one-machine", targets: &[Target::Compose, Target::Systemd] },
    // It names no machines, so systemd has none to run on.
    Case { name: "two-tiers", targets: &[Target::Compose, Target::Kubernetes] },
    // Elastic limits of workers of one machine.
    Case { name: "elastic", targets: &[Target::Compose, Target::Kubernetes, Target::Systemd] },
    // Kubernetes and systemd start no devices.
    Case { name: "devices", targets: &[Target::Compose] },
    Case { name: "three-tiers", targets: &[Target::Compose, Target::Kubernetes, Target::Systemd] },
];

/// The name on the command line.
pub(crate) fn name(target: Target) -> &'static str {
    match target {
        Target::Compose => "compose",
        Target::Kubernetes => "kubernetes",
        Target::Systemd => "systemd",
    }
}

pub(crate) fn find(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).unwrap()
}

/// A plan that was read.
pub(crate) struct Loaded {
    pub(crate) plan: PlanFile,
    pub(crate) plan_text: String,
    infrastructure: Option<(Infrastructure, String)>,
    workflow: Option<Workflow>,
}

impl Case {
    pub(crate) fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(self.name)
    }

    fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.folder().join(name)).ok()
    }

    pub(crate) fn infrastructure(&self) -> String {
        self.text("infrastructure.yaml").unwrap()
    }

    pub(crate) fn loaded(&self) -> Loaded {
        self.changed("", "")
    }

    /// Returns it with a change in its plan.
    pub(crate) fn changed(&self, from: &str, to: &str) -> Loaded {
        let plan_text = self.text("plan.yaml").unwrap().replace(from, to);
        let plan_text = if from.is_empty() { self.text("plan.yaml").unwrap() } else { plan_text };
        let infrastructure = self.text("infrastructure.yaml").map(|text| {
            let parsed = Infrastructure::parse(&text, "infrastructure.yaml");
            (parsed.unwrap_or_else(|errors| panic!("{errors}")), text)
        });
        let workflow = self.text("workflow.yaml").map(|text| Workflow::parse(&text, "workflow.yaml"));
        Loaded {
            plan: PlanFile::parse(&plan_text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}")),
            plan_text,
            infrastructure,
            workflow: workflow.map(|workflow| workflow.unwrap_or_else(|errors| panic!("{errors}"))),
        }
    }

    pub(crate) fn files(&self, target: Target) -> Files {
        self.loaded().deploy(|request| request.target = target).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Loaded {
    pub(crate) fn with_infrastructure(mut self, text: &str) -> Self {
        let parsed = Infrastructure::parse(text, "infrastructure.yaml");
        self.infrastructure = Some((parsed.unwrap_or_else(|errors| panic!("{errors}")), text.to_owned()));
        self
    }

    /// Changes the plan.
    pub(crate) fn changed_plan(mut self, from: &str, to: &str) -> Self {
        self.plan_text = self.plan_text.replace(from, to);
        self.plan = PlanFile::parse(&self.plan_text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        self
    }

    pub(crate) fn with_workflow(mut self, text: &str) -> Self {
        let parsed = Workflow::parse(text, "workflow.yaml");
        self.workflow = Some(parsed.unwrap_or_else(|errors| panic!("{errors}")));
        self
    }

    pub(crate) fn deploy(&self, change: impl Fn(&mut Request<'_>)) -> Result<Files, DeployError> {
        let mut request = Request::new(&self.plan, &self.plan_text);
        // The version changes; golden files must not.
        request.image = "tidemill:1".to_owned();
        request.id = Some("5c1e9a04".to_owned());
        request.infrastructure =
            self.infrastructure.as_ref().map(|(infrastructure, text)| (infrastructure, text.as_str()));
        request.workflow = self.workflow.as_ref();
        request.kinds = Registry::builtin().facts();
        request.workflow_path = self.workflow.as_ref().map(|_| "../workflow.yaml".to_owned());
        change(&mut request);
        deploy(&request)
    }
}

/// Writes files beneath a folder.
pub(crate) fn write(files: &Files, folder: &std::path::Path) {
    for (path, text) in files.iter() {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}
