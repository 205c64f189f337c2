//! Reports of a controller on its runs: figures, metrics, the page; through the built binary.
use crate::cluster::Cluster;
use crate::command::command;
use crate::live::get;
use crate::metrics_inventory::unknown;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;
use tidemill_http::{Answer, Call, Caller, Place, Repeat};
use tidemill_identity::{JoinAddress, TLS_NAME, fingerprint_config};

impl Cluster {
    /// Reduces the rate of the sources by this factor.
    pub(crate) fn slow_down(&self, times: u32) {
        let workflow = self.place.read("workflow.yaml");
        let slower = workflow.replace("500/s", &format!("{}/s", 500 / times));
        self.place.write("workflow.yaml", slower.replace("1000/s", &format!("{}/s", 1000 / times)));
    }

    /// The access token of the first admin.
    pub(crate) fn admin(&self) -> String {
        std::fs::read_to_string(self.place.path("controller/admin.token")).unwrap().trim().to_owned()
    }

    /// The controller's answer.
    pub(crate) fn call(&self, method: &str, path: &str, token: &str) -> Answer {
        let address: JoinAddress = self.address.parse().unwrap();
        let time = Arc::new(rustls::time_provider::DefaultTimeProvider);
        let config = Arc::new(fingerprint_config(address.fingerprint(), time).unwrap());
        let call = Call { method, token: (!token.is_empty()).then_some(token), ..Call::get(path) };
        let place = Place::Tls { address: address.host_and_port(), config, name: TLS_NAME.into() };
        Arc::new(Caller::new(place)).send(&call, Duration::from_secs(20), Repeat::Refused).unwrap()
    }

    pub(crate) fn figures(&self) -> Value {
        let answer = self.call("GET", "/v1/runs/spread/figures", &self.admin());
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        serde_json::from_slice(&answer.body).unwrap()
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn one<'a>(all: &'a Value, key: &str, name: &str) -> &'a Value {
    let found = all.as_array().unwrap().iter().find(|one| one[key] == name);
    found.unwrap_or_else(|| panic!("no {name} in {all}"))
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_is_told_in_figures() {
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(2);
    let workflow = cluster.place.read("workflow.yaml");
    let levels = "slo: {rate: 100000/s, latency: {percentile: p99, below: 60s}}\nrun:";
    cluster.place.write("workflow.yaml", workflow.replace("run:", levels));
    cluster.place.change(
        "plan.yaml",
        "tier: hub, worker_type: small}",
        "tier: hub, worker_type: small, price: 0.5 $/h}",
    );
    cluster.submit().expect(0);
    cluster.until("rates are measured", |cluster| {
        let figures = cluster.figures();
        let flows =
            figures["sinks"].as_array().unwrap().iter().any(|sink| sink["per_second"].as_f64() > Some(10.0));
        flows
            && number(&figures["window_seconds"]) > 4.0
            && figures["levels"].as_array().unwrap().iter().all(|level| level["is_missed"].is_boolean())
    });
    let figures = cluster.figures();
    assert_eq!((&figures["state"], &figures["workflow"]), (&"running".into(), &"spread".into()), "{figures}");
    let left = one(&figures["sources"], "source", "left");
    assert_eq!((number(&left["wanted_per_second"]), &left["state"]), (500.0, &"running".into()), "{figures}");
    let measured = number(&left["per_second"]);
    assert!((250.0..750.0).contains(&measured), "{figures}");
    let pair = one(&figures["stages"], "stage", "pair");
    assert_eq!(pair["cluster_worker"], "hub");
    assert!(number(&pair["in_per_second"]) > 100.0 && number(&pair["transfer"]["p50_ms"]) > 0.0, "{figures}");
    assert!(number(&pair["busy"]) > 0.0, "{figures}");
    let link = figures["links"].as_array().unwrap().iter().find(|link| link["from"] == "some").unwrap();
    assert_eq!((&link["from_worker"], &link["to_worker"]), (&"edge".into(), &"hub".into()));
    assert!(number(&link["bytes_per_second"]) > 100.0, "{figures}");
    let rate = one(&figures["levels"], "level", "rate");
    assert_eq!((number(&rate["wanted"]), &rate["is_missed"]), (100_000.0, &true.into()), "{figures}");
    let latency = one(&figures["levels"], "level", "latency");
    assert_eq!((number(&latency["wanted"]), &latency["is_missed"]), (60_000.0, &false.into()), "{figures}");
    assert_eq!(number(&figures["cost"]["now"]), 0.5, "{figures}");
    assert_eq!(one(&figures["sinks"], "sink", "pairs")["promise"], "exactly once");

    let output = cluster.ask(&["top", "--once"]).expect(0).stdout;
    assert!(output.contains("spread (spread) is running") && output.contains("rate MISSED"), "{output}");
    assert!(output.lines().all(|line| line.chars().count() <= 80), "{output}");

    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    let figures = cluster.figures();
    assert_eq!(figures["state"], "complete");
    assert_eq!(figures["emitted"], cluster.run()["emitted"], "{figures}");
    assert_eq!(one(&figures["sources"], "source", "left")["state"], "ended", "{figures}");
    let document = cluster.ask(&["top", "spread", "--output", "json"]).expect(0).json();
    assert_eq!(document["figures"]["run"], "spread");
}

/// An agent that serves metrics, and its address.
pub(crate) fn agent(cluster: &Cluster, name: &str) -> (Child, String) {
    let token = cluster.ask(&["token"]).expect(0).stdout;
    let state = cluster.place.argument(&format!("w-{name}"));
    let arguments =
        ["worker", "--join", &cluster.address, "--state", &state, "--name", name, "--metrics", "127.0.0.1:0"];
    let mut child = command(&arguments).env("TIDEMILL_JOIN_TOKEN", token.trim()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = lines.by_ref().find_map(|line| {
        let line = line.unwrap();
        Some(line.strip_prefix("metrics at http://")?.strip_suffix("/metrics")?.to_owned())
    });
    std::thread::spawn(move || lines.for_each(drop));
    (child, address.expect("it tells its address"))
}

#[test]
fn controllers_and_agents_serve_metrics_of_the_inventory() {
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(5);
    cluster.submit().expect(0);
    cluster.until_arrived(100);
    let (mut child, address) = agent(&cluster, "spare");
    cluster.until("the agent was heard", |_| get(&address, "/metrics").contains("controller_reached{} 1.0"));
    let of_agent = get(&address, "/metrics");
    let (_, of_agent) = of_agent.split_once("\r\n\r\n").unwrap();
    assert_eq!(unknown(of_agent), Vec::<String>::new());
    assert!(of_agent.contains("tidemill_agent_heartbeats_total{outcome=\"answered\"} "), "{of_agent}");
    child.kill().unwrap();
    child.wait().unwrap();

    assert_eq!(cluster.call("GET", "/metrics", "").status, 401, "nobody gets nothing");
    let expected = [
        "tidemill_controller_workers{state=\"alive\"} ",
        "tidemill_controller_worker_alive{cluster_worker=\"edge\",tier=\"edge\"} 1.0",
        "tidemill_controller_runs{state=\"running\"} 1.0",
        "tidemill_controller_events_total{kind=\"run_submitted\"} 1.0",
        "tidemill_controller_worker_certificate_seconds{cluster_worker=\"hub\"",
        "tidemill_operator_records_total{workflow=\"spread\",run=\"spread\",operator=\"pair\",stage=\"pair\",worker=\"hub\",cluster_worker=\"hub\",direction=\"in\"} ",
        "tidemill_source_behind_seconds{workflow=\"spread\",run=\"spread\",operator=\"left\"",
        "tidemill_operator_busy_ratio{workflow=\"spread\",run=\"spread\"",
    ];
    let text = || String::from_utf8(cluster.call("GET", "/metrics", &cluster.admin()).body).unwrap();
    cluster.until("all are served", |_| {
        let text = text();
        expected.iter().all(|line| text.contains(line))
    });
    let text = text();
    assert_eq!(unknown(&text), Vec::<String>::new());
    assert!(text.ends_with("# EOF\n"), "{text}");
    for (name, kind) in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
        let again = text.matches(&format!("# TYPE {name} {kind}\n")).count();
        assert_eq!(again, 1, "{name} begins {again} times");
    }
}

#[test]
fn the_page_is_there_for_everybody_and_the_cluster_is_not() {
    let cluster = Cluster::start(&[]);
    for (path, word) in
        [("/", "<!doctype html>"), ("/page/ask.js", "sessionStorage"), ("/page/page.css", "color-scheme")]
    {
        let answer = cluster.call("GET", path, "");
        let text = String::from_utf8(answer.body).unwrap();
        assert!(answer.status == 200 && text.contains(word), "{path}: {}\n{text}", answer.status);
    }
    let authority = cluster.call("GET", "/authority.pem", "");
    let text = String::from_utf8(authority.body).unwrap();
    assert!(text.starts_with("-----BEGIN CERTIFICATE-----") && !text.contains("PRIVATE"), "{text}");
    for path in ["/v1/me", "/v1/runs/spread/figures", "/metrics"] {
        assert_eq!(cluster.call("GET", path, "").status, 401, "{path}");
    }
    let me: Value = serde_json::from_slice(&cluster.call("GET", "/v1/me", &cluster.admin()).body).unwrap();
    assert_eq!(me, serde_json::json!({"name": "admin", "role": "admin"}));
    assert_eq!(cluster.call("GET", "/v1/runs/none/figures", &cluster.admin()).status, 404);
}
