//! The list of metrics in the book is that of the program, and complete. `UPDATE_REFERENCE=1` rewrites it.
use crate::command::root;
use crate::live::{endless, get, serving, until_committed};
use std::collections::BTreeSet;
use std::fmt::Write;
use tidemill_app::metrics::device::ALL as DEVICE;
use tidemill_app::metrics::groups::ALL as GROUPS;
use tidemill_app::metrics::{Metric, MetricKind, PROCESS, runs};
use tidemill_cluster::metrics::{AGENT, CONTROLLER};

const PAGE: &str = "docs/reference/metrics.md";

fn all() -> impl Iterator<Item = &'static Metric> {
    runs().iter().chain(CONTROLLER).chain(AGENT).chain(DEVICE).chain(GROUPS).chain(PROCESS)
}

/// Names, kinds and labels of a served text that the inventory lacks.
pub(crate) fn unknown(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let known = all().find(|metric| metric.name == name);
            let is_right = known.is_some_and(|metric| word(metric.kind) == kind);
            if !is_right {
                faults.push(format!("{name}, a {kind}"));
            }
        }
        if line.starts_with('#') {
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let (sample, rest) = line.split_at(end);
        let suffixes = ["", "_total", "_bucket", "_sum", "_count"];
        let Some(metric) = all()
            .find(|metric| suffixes.iter().any(|suffix| sample.strip_suffix(suffix) == Some(metric.name)))
        else {
            faults.push(sample.to_owned());
            continue;
        };
        let labels =
            rest.strip_prefix('{').and_then(|rest| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
        for label in labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name) {
            if label != "le" && !metric.labels.contains(&label) {
                faults.push(format!("{} with {label}", metric.name));
            }
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

fn word(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n<!-- Made from the program by cli/tests/metrics_inventory.rs; changes here are lost. \
         -->\n\nThe metrics of `tidemill run --metrics`, of a controller, of an agent, of a device and of groups of programs, for Prometheus. \
         [Watching a cluster](../watching.md) shows its configuration. Names of counters end with `_total`, \
         names of histograms with `_bucket`, `_sum` and `_count`. Labels in *italics* are optional: `run` \
         and `cluster_worker` in a cluster, `variant` of models.\n",
    );
    let parts = [
        ("Of runs", runs()),
        ("Of a controller", CONTROLLER),
        ("Of an agent", AGENT),
        ("Of a device", DEVICE),
        ("Of groups of programs", GROUPS),
        ("Of the process of a controller or an agent", PROCESS),
    ];
    for (title, metrics) in parts {
        let _ = writeln!(page, "\n## {title}\n\n| name | kind | labels | meaning |\n|---|---|---|---|");
        for metric in metrics {
            let rare = ["run", "cluster_worker", "variant", "percentile", "tier"];
            let is_rare = |label: &str| match label {
                "edge" => metric.labels.contains(&"stage"),
                _ => rare.contains(&label),
            };
            let labels = metric.labels.iter().map(|label| match is_rare(label) && metric.labels.len() > 1 {
                true => format!("*{label}*"),
                false => (*label).to_owned(),
            });
            let labels: Vec<String> = labels.collect();
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} |",
                metric.name,
                word(metric.kind),
                labels.join(", "),
                metric.help
            );
        }
    }
    page
}

#[test]
fn the_list_of_metrics_is_up_to_date() {
    let path = root().join(PAGE);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page(), "{PAGE} is out of date: run the test with UPDATE_REFERENCE=1");
    let names: BTreeSet<&str> = all().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all().count(), "a name is there twice");
}

#[test]
fn what_a_run_serves_stands_in_the_list() {
    let place = endless();
    let (mut child, address) = serving(&place);
    until_committed(&place);
    let answer = get(&address, "/metrics");
    let (_, text) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(unknown(text), Vec::<String>::new());
    let begun = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(begun, runs().len(), "each metric of a run begins once:\n{text}");
    assert_eq!(
        unknown("# TYPE other counter\nother_total{a=\"b\"} 1\n"),
        ["other, a counter", "other_total"]
    );
    child.kill().unwrap();
    child.wait().unwrap();
}
