//! The alert rules of the book, and a real Prometheus that scrapes a controller and an agent.
use crate::cluster::Cluster;
use crate::cluster_watching::agent;
use crate::command::{Place, are_there, free_port, root};
use crate::live::get;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use tidemill_app::metrics::{MetricKind, PROCESS, runs};
use tidemill_cluster::metrics::{AGENT, CONTROLLER};

/// Names of all metrics, as in queries; histograms without their suffix.
pub(crate) fn names() -> BTreeSet<String> {
    let all = runs().iter().chain(CONTROLLER).chain(AGENT).chain(PROCESS);
    all.map(|metric| match metric.kind {
        MetricKind::Counter => format!("{}_total", metric.name),
        _ => metric.name.to_owned(),
    })
    .collect()
}

#[test]
fn alert_rules_name_metrics_that_exist() {
    let known = names();
    for file in ["alerts.yaml", "alerts_test.yaml"] {
        let text = std::fs::read_to_string(root().join("docs/monitoring").join(file)).unwrap();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        let words = text.split(|c| !is_part(c)).filter(|word| word.starts_with("tidemill_"));
        let unknown: BTreeSet<&str> = words.filter(|word| !known.contains(*word)).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
}

#[test]
fn alert_rules_do_what_they_say() {
    if !are_there(&["promtool"], "prometheus") {
        return;
    }
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(root().join("docs/monitoring"))
            .output()
            .expect("promtool is there: apt-get install prometheus");
        let printed =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && printed.contains("SUCCESS"), "{printed}");
    }
}

#[test]
#[ignore = "long: make test-long"]
fn prometheus_scrapes_a_controller_and_an_agent() {
    if !are_there(&["prometheus"], "prometheus") {
        return;
    }
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(5);
    cluster.submit().expect(0);
    cluster.until_arrived(100);
    let (mut spare, of_agent) = agent(&cluster, "spare");
    let place = &cluster.place;
    place.write("authority.pem", cluster.call("GET", "/authority.pem", "").body);
    let (of_controller, _) = cluster.address.trim_start_matches("tidemill://").split_once('/').unwrap();
    let rules = root().join("docs/monitoring/alerts.yaml");
    place.write(
        "prometheus.yml",
        format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ['{}']
scrape_configs:
  - job_name: controller
    scheme: https
    authorization: {{credentials_file: controller/admin.token}}
    tls_config: {{ca_file: authority.pem}}
    static_configs: [{{targets: ['{of_controller}']}}]
  - job_name: agent
    static_configs: [{{targets: ['{of_agent}']}}]
",
            rules.display()
        ),
    );
    let prometheus = Prometheus::start(place, "prometheus.yml");
    let query = |query: &str| prometheus.query(query);
    cluster.until("both are scraped", |_| query("up==1").len() == 2);
    cluster.until("records are counted", |_| !query("tidemill_operator_records_total%3E0").is_empty());
    cluster.until("latencies are there", |_| {
        !query("histogram_quantile(0.99,rate(tidemill_end_to_end_latency_seconds_bucket[1m]))").is_empty()
    });
    assert_eq!(query("tidemill_controller_workers{state=%22alive%22}").len(), 1);
    let rules: Value = serde_json::from_str(&get_closing(&prometheus.listen, "/api/v1/rules")).unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 3, "{rules}");
    let all = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    for rule in all {
        assert!(rule["lastError"].as_str().unwrap_or_default().is_empty(), "{rule}");
    }
    spare.kill().unwrap();
    spare.wait().unwrap();
}

/// A Prometheus that ends with the test.
pub(crate) struct Prometheus {
    process: Child,
    listen: String,
}

impl Prometheus {
    /// With a configuration in a place.
    pub(crate) fn start(place: &Place, config: &str) -> Self {
        let listen = format!("127.0.0.1:{}", free_port());
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", place.argument(config)))
            .arg(format!("--storage.tsdb.path={}", place.argument("tsdb")))
            .arg(format!("--web.listen-address={listen}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is there: apt-get install prometheus");
        Self { process, listen }
    }

    /// Result of a URL-encoded query; empty while it does not answer yet.
    pub(crate) fn query(&self, query: &str) -> Vec<Value> {
        if std::net::TcpStream::connect(&self.listen).is_err() {
            return Vec::new();
        }
        let answer = get_closing(&self.listen, &format!("/api/v1/query?query={query}"));
        let value: Value = serde_json::from_str(&answer).unwrap_or_default();
        value["data"]["result"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// URL-encodes a text.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// The body of an answer; HTTP/1.0, so that it is not chunked.
fn get_closing(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map_or_else(|| get(address, path), |(_, body)| body.to_owned())
}
