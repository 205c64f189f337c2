//! The README of a deployment: files to copy, and commands to run.
mod containers;
mod manifests;
mod units;

use crate::layout::{ELASTIC, Layout};
use crate::request::{PLAN, Request, Target};
use crate::shell::quoted;
use tidemill_spec::infrastructure::Architecture;

/// Before commands within a numbered step.
const INDENT: &str = "       ";

pub(crate) fn text(layout: &Layout, request: &Request<'_>) -> String {
    let mut text = format!(
        "# {} in {}\n\nMade by `tidemill deploy`, which overwrites changes. These files contain no secrets; Git ignores later secrets in this folder.\n\n",
        layout.workflow,
        match layout.sites.len() {
            1 => "one place".to_owned(),
            count => format!("{count} places"),
        }
    );
    text += &table(layout);
    text += &match request.target {
        Target::Compose => containers::text(layout, request),
        Target::Kubernetes => manifests::text(layout, request),
        Target::Systemd => units::text(layout, request),
    };
    if let Some(elsewhere) =
        request.workflow.and_then(|workflow| crate::elastic_elsewhere(workflow, request.target))
    {
        text += &format!("## Limits that follow the load\n\n{elsewhere}.\n\n");
    }
    text + &watching(layout, request.target)
}

fn table(layout: &Layout) -> String {
    let mut text = "| location | tier | machine | what runs there |\n|---|---|---|---|\n".to_owned();
    for (index, site) in layout.sites.iter().enumerate() {
        let machine = site.host.as_deref().or(site.reached_at.as_deref()).unwrap_or("this one");
        let architecture =
            site.architecture.map_or_else(String::new, |of| format!(", {}", Architecture::name(of)));
        let controller = (index == layout.controller).then(|| "the controller".to_owned());
        let workers = site.workers.iter().map(|unit| format!("worker {}{}", unit.name, limits(unit)));
        let elastic = site.elastic.as_ref().map(|of| {
            format!(
                "{ELASTIC}: {} processors and {} of memory follow the load of the workers on this machine",
                of.processors, of.memory
            )
        });
        let devices = site.served.iter().map(|served| format!("device {} at {}", served.id, served.address));
        let what: Vec<String> = controller.into_iter().chain(workers).chain(devices).chain(elastic).collect();
        text +=
            &format!("| {} | {} | {machine}{architecture} | {} |\n", site.name, site.tier, what.join(", "));
    }
    text + "\n"
}

fn limits(unit: &crate::layout::Unit) -> String {
    let processors = unit.processors.map(|count| format!("{count} processors"));
    let memory = unit.memory.map(|memory| format!("{memory} of memory"));
    let gpus = (unit.accelerators > 0).then(|| format!("accelerators: {}", unit.accelerators));
    let all: Vec<String> = [processors, memory, gpus].into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

/// Describes how a logged-in user starts the run.
fn submission(request: &Request<'_>) -> String {
    let workflow = request.workflow_path.as_deref().unwrap_or("WORKFLOW");
    format!("tidemill submit {} --plan {PLAN} --follow\n", quoted(workflow))
}

fn watching(layout: &Layout, target: Target) -> String {
    let reached = match (target, layout.network) {
        (Target::Kubernetes, _) => {
            "Prometheus has to be in the namespace `monitoring`, which the network policies let in, or be added to them.\n".to_owned()
        }
        (Target::Compose, crate::NetworkMode::Bridge) => format!(
            "Prometheus has to be a container in the network `{}`: the names in `prometheus.yaml` are those of its containers.\n",
            layout.project
        ),
        _ => "Agents serve their metrics without a token, to their own machine only. Let them serve at an \
              address that only Prometheus reaches"
            .to_owned()
            + match target {
                Target::Systemd => " (`--metrics` in the units).\n",
                _ => " (`env.example` in the folders of the locations).\n",
            },
    };
    format!(
        "## Watching\n\n`monitoring/prometheus.yaml` scrapes the controller, which reports about all runs, and the agents. It reads two files in \
         `monitoring/secrets/`, a token and the authority of the controller:\n\n    \
         tidemill people add prometheus --role viewer --write-token monitoring/secrets/viewer.token\n    \
         curl --insecure https://CONTROLLER:{}/authority.pem > monitoring/secrets/authority.pem\n\n\
         Compare the fingerprint of the latter with the controller's address. {reached}\n\
         `monitoring/grafana-dashboard.json` is imported in Grafana under Dashboards, New, Import.\n",
        layout.ports.published
    )
}
