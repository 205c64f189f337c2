//! Monitoring of a deployment: a configuration for Prometheus, the rules of the book, a dashboard for Grafana.
mod dashboard;
mod panels;

use crate::error::DeployError;
use crate::files::Files;
use crate::layout::Layout;
use crate::request::Target;
use serde::Serialize;
use std::collections::BTreeMap;

/// Folder of its files.
const FOLDER: &str = "monitoring";
/// The rules of the book.
const ALERTS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring/alerts.yaml"));

/// A configuration of Prometheus, as far as it is used here.
#[derive(Debug, Serialize)]
struct Prometheus {
    global: Global,
    rule_files: Vec<String>,
    scrape_configs: Vec<Scrape>,
}

#[derive(Debug, Serialize)]
struct Global {
    scrape_interval: &'static str,
    evaluation_interval: &'static str,
}

#[derive(Debug, Serialize)]
struct Scrape {
    job_name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheme: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorization: Option<Authorization>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_config: Option<Tls>,
    static_configs: Vec<Targets>,
}

#[derive(Debug, Serialize)]
struct Authorization {
    credentials_file: &'static str,
}

#[derive(Debug, Serialize)]
struct Tls {
    ca_file: &'static str,
}

#[derive(Debug, Serialize)]
struct Targets {
    targets: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'static str, String>,
}

pub(crate) fn write(layout: &Layout, target: Target, files: &mut Files) -> Result<(), DeployError> {
    let path = |name: &str| format!("{FOLDER}/{name}");
    let comment = format!(
        "Prometheus for {}; made by `tidemill deploy`, which overwrites changes.\n\
         Beside it: alerts.yaml, and in secrets/ an access token of a viewer (viewer.token) and the controller's authority.pem.",
        layout.workflow
    );
    files.add_yaml(path("prometheus.yaml"), &comment, &[prometheus(layout, target)])?;
    files.add(path("alerts.yaml"), ALERTS);
    files.add(path("secrets/.gitignore"), "*\n!.gitignore\n");
    let dashboard = serde_json::to_string_pretty(&dashboard::dashboard(layout))?;
    files.add(path("grafana-dashboard.json"), dashboard + "\n");
    Ok(())
}

fn prometheus(layout: &Layout, target: Target) -> Prometheus {
    let controller = match target {
        Target::Kubernetes => format!("{}.{}.svc", layout.address, layout.project),
        Target::Compose | Target::Systemd => layout.address_before_port(),
    };
    let agents = layout.units().map(|(site, unit)| {
        let at = match target {
            Target::Kubernetes => {
                format!("{}-0.workers.{}.svc:{}", unit.service(), layout.project, unit.metrics_port)
            }
            Target::Compose | Target::Systemd => {
                layout.metrics_target(site, unit.service(), unit.metrics_port)
            }
        };
        let labels = [
            ("cluster_worker", unit.name.clone()),
            ("tier", site.tier.clone()),
            ("location", site.name.clone()),
        ];
        Targets { targets: vec![at], labels: labels.into() }
    });
    let devices: Vec<Targets> = layout
        .served()
        .map(|(site, served)| {
            let at = layout.metrics_target(site, served.service(), served.metrics_port);
            let labels = [("tier", site.tier.clone()), ("location", site.name.clone())];
            Targets { targets: vec![at], labels: labels.into() }
        })
        .collect();
    let devices = (!devices.is_empty()).then_some(Scrape {
        job_name: "devices",
        scheme: None,
        authorization: None,
        tls_config: None,
        static_configs: devices,
    });
    let mut prometheus = Prometheus {
        global: Global { scrape_interval: "5s", evaluation_interval: "5s" },
        rule_files: vec!["alerts.yaml".into()],
        scrape_configs: vec![
            Scrape {
                job_name: "controller",
                scheme: Some("https"),
                authorization: Some(Authorization { credentials_file: "secrets/viewer.token" }),
                tls_config: Some(Tls { ca_file: "secrets/authority.pem" }),
                static_configs: vec![Targets {
                    targets: vec![format!("{controller}:{}", layout.ports.people)],
                    labels: BTreeMap::new(),
                }],
            },
            Scrape {
                job_name: "agents",
                scheme: None,
                authorization: None,
                tls_config: None,
                static_configs: agents.collect(),
            },
        ],
    };
    prometheus.scrape_configs.extend(devices);
    prometheus
}
