//! `tidemill run --emulate`, from files to figures.
use crate::command::{Outcome, Place, root, tidemill};
use serde_json::Value;
use std::collections::BTreeMap;
use tidemill_spec::profile::Profile;

const FILES: &str = "cli/tests/emulation";

fn file(name: &str) -> String {
    root().join(FILES).join(name).to_str().unwrap().to_owned()
}

/// The example with a plan and the files that it was made for.
pub(crate) fn place() -> Place {
    let place = Place::example("vqa");
    for name in ["plan.yaml", "infrastructure.yaml", "profile.yaml"] {
        place.write(name, std::fs::read(root().join(FILES).join(name)).unwrap());
    }
    place
}

pub(crate) fn emulate(place: &Place, more: &[&str]) -> Outcome {
    let [workflow, plan, infrastructure, profile] =
        ["workflow.yaml", "plan.yaml", "infrastructure.yaml", "profile.yaml"]
            .map(|file| place.argument(file));
    let fixed =
        ["run", &workflow, "--plan", &plan, "--emulate", "--infra", &infrastructure, "--profiles", &profile];
    tidemill(&[&fixed[..], more].concat())
}

/// The quantity in the comparison.
#[track_caller]
fn compared<'a>(report: &'a Value, quantity: &str, of: &str) -> &'a Value {
    let rows = report["emulation"]["comparison"].as_array().unwrap();
    let row = rows.iter().find(|row| row["quantity"] == quantity && row["of"] == of);
    row.unwrap_or_else(|| panic!("no {quantity} of {of}: {rows:#?}"))
}

pub(crate) fn answers(place: &Place) -> Vec<(String, String)> {
    let text = |row: &Value, column: &str| row[column].as_str().unwrap().to_owned();
    let rows = place.rows("out/answers.jsonl");
    let mut answers: Vec<_> = rows.iter().map(|row| (text(row, "key"), text(row, "answer"))).collect();
    answers.sort();
    answers
}

#[test]
fn predicted_stands_beside_measured() {
    let place = place();
    let report = emulate(&place, &["--records", "80", "--output", "json"]).expect(0).json();
    let emulation = &report["emulation"];
    // The link carries the data that its edges report, and the frames around it.
    let links = emulation["links"].as_array().unwrap();
    assert_eq!(links.len(), 1, "{links:#?}");
    assert_eq!((&links[0]["from"], &links[0]["to"]), (&"edge".into(), &"cloud".into()));
    let over: Vec<&Value> = links[0]["edges"].as_array().unwrap().iter().collect();
    let names: Vec<_> =
        over.iter().map(|edge| (edge["from"].as_str().unwrap(), edge["to"].as_str().unwrap())).collect();
    assert_eq!(names, [("questions", "speech"), ("scene_features", "pair")]);
    let mut bytes = 0;
    for edge in &over {
        let own = report["edges"].as_array().unwrap().iter();
        let own = own.clone().find(|own| own["from"] == edge["from"] && own["to"] == edge["to"]).unwrap();
        assert_eq!((&own["bytes"], &own["records"]), (&edge["record_bytes"], &edge["records"]));
        assert_eq!(own["records"], 80);
        assert!(edge["data_bytes"].as_u64() > own["bytes"].as_u64());
        bytes += edge["data_bytes"].as_u64().unwrap();
    }
    assert_eq!(links[0]["data_bytes"], bytes);
    // Prices of the workers and of the bytes that were carried.
    let traffic = compared(&report, "traffic", "edge -> cloud")["measured"].as_f64().unwrap();
    let network = compared(&report, "cost_network", "")["measured"].as_f64().unwrap();
    assert!((network - traffic * 3600.0 * 0.1 / f64::from(1 << 30)).abs() < 1e-9);
    let cost = compared(&report, "cost", "");
    assert!((cost["measured"].as_f64().unwrap() - 0.43 - network).abs() < 1e-9);
    assert_eq!(cost["predicted"], 0.47);
    // Figures without a prediction are left out, and enforced ones prove nothing.
    assert_eq!(compared(&report, "latency_p99", "answers")["verdict"], "no_prediction");
    let rate = compared(&report, "rate", "");
    assert_eq!(rate["predicted"].as_f64(), Some(40.0));
    // A too busy machine is late.
    match rate["measured"].as_f64().unwrap() >= 36.0 {
        true => assert_eq!(rate["verdict"], "enforced"),
        false => assert!(rate["verdict"] == "differs" || rate["verdict"] == "no_evidence", "{rate}"),
    }
    assert!(rate["enforced_by"].to_string().contains("speed of gateway"));
    // 15 ms in transit, 8 ms and 2 ms of the server, at least.
    let p50 = compared(&report, "latency_p50", "answers")["measured"].as_f64().unwrap();
    assert!(p50 >= 20.0, "{p50}");
    let busy = compared(&report, "utilization", "edge-gateway-0");
    assert!((busy["predicted"].as_f64().unwrap() - 48.0).abs() < 1e-6, "40/s x 12 ms: {busy}");
    assert_eq!(answers(&place).len(), 80);
}

/// The example's profile has the sizes of the engine's own frames: the traffic of links equals that of plans.
#[test]
#[ignore = "long: make test-long"]
fn links_carry_the_bytes_that_the_profile_says() {
    let place = place();
    let report = emulate(&place, &["--records", "200", "--output", "json"]).expect(0).json();
    let profile = Profile::load(root().join("examples/vqa/profile.yaml")).unwrap();
    let edges = report["emulation"]["links"][0]["edges"].as_array().unwrap();
    assert_eq!(edges.len(), 2);
    for edge in edges {
        let (from, to) = (edge["from"].as_str().unwrap(), edge["to"].as_str().unwrap());
        let bytes = |input| profile.bytes_per_record((from, to, input), &BTreeMap::new());
        let predicted = bytes(0).or_else(|| bytes(1)).unwrap().0 as f64;
        assert_eq!(edge["records"], 200);
        let carried = edge["data_bytes"].as_f64().unwrap() / 200.0;
        assert!((carried / predicted - 1.0).abs() < 0.02, "{from} -> {to}: {predicted} and {carried}");
    }
}

#[test]
#[ignore = "long: make test-long"]
fn a_stretched_run_gives_the_same_answers_at_the_same_plan_rate() {
    let of = |dilation: &str| {
        let place = place();
        let more = ["--records", "40", "--dilation", dilation, "--output", "json"];
        let report = emulate(&place, &more).expect(0).json();
        assert_eq!(report["emulation"]["dilation"].as_f64(), dilation.parse().ok());
        (answers(&place), report)
    };
    let ((plain, once), (stretched, twice)) = (of("1.5"), of("3"));
    assert_eq!(plain, stretched);
    assert_eq!(plain.len(), 40);
    for report in [&once, &twice] {
        // 39 intervals of 25 ms.
        assert!(report["seconds"].as_f64().unwrap() >= 0.975);
        let busy = compared(report, "utilization", "cloud-server-0")["measured"].as_f64().unwrap();
        assert!((10.0..100.0).contains(&busy), "about 40 %: {busy}");
    }
}

/// Each worker is a separate process: the answers and the account are equal.
#[test]
#[ignore = "long: make test-long"]
fn workers_that_are_processes_are_emulated_as_in_one_process() {
    let of = |more: &[&str]| {
        let place = place();
        let page = place.argument("report.html");
        let fixed = ["--records", "60", "--dilation", "2", "--output", "json", "--report", &page];
        let outcome = emulate(&place, &[&fixed[..], more].concat()).expect(0);
        (answers(&place), outcome.json(), place.read("report.html"))
    };
    let ((here, once, _), (spread, report, page)) = (of(&[]), of(&["--processes"]));
    assert_eq!(here, spread);
    assert_eq!(here.len(), 60);
    let (link, link_here) = (&report["emulation"]["links"][0], &once["emulation"]["links"][0]);
    for (edge, edge_here) in [0, 1].map(|edge| (&link["edges"][edge], &link_here["edges"][edge])) {
        for figure in ["from", "to", "records"] {
            assert_eq!(edge[figure], edge_here[figure], "{figure} of {edge}");
        }
        // Each batch has some bytes of its own, and a busy machine cuts fewer or more of them.
        let [bytes, bytes_here] = [edge, edge_here].map(|edge| edge["record_bytes"].as_f64().unwrap());
        assert!((bytes / bytes_here - 1.0).abs() < 1e-3, "{edge}, {edge_here}");
        assert!(edge["data_bytes"].as_u64() > edge["record_bytes"].as_u64(), "{edge}");
    }
    // Equal verdicts, and equal subjects of the rows.
    let rows = |report: &Value| -> Vec<(String, String)> {
        let rows = report["emulation"]["comparison"].as_array().unwrap().iter();
        rows.map(|row| (row["quantity"].to_string(), row["of"].to_string())).collect()
    };
    assert_eq!(rows(&report), rows(&once));
    // 15 ms in transit, 8 ms and 2 ms of the server, at least.
    let p50 = compared(&report, "latency_p50", "answers")["measured"].as_f64().unwrap();
    assert!(p50 >= 20.0, "{p50}");
    // 59 intervals of 25 ms.
    assert!(report["seconds"].as_f64().unwrap() >= 1.475);
    let busy = compared(&report, "utilization", "cloud-server-0")["measured"].as_f64().unwrap();
    assert!((10.0..100.0).contains(&busy), "about 40 %: {busy}");
    assert!(page.contains("Predicted and measured") && page.contains("id=\"emulation\""));
    assert!(page.contains("of the coordinating process alone"), "whose memory that is");
    // Answers come from the cloud and their pictures and sounds from the edge.
    assert!(page.contains("id=\"samples\"") && page.contains("src=\"data:image/"), "no pictures");
    assert!(page.contains("src=\"data:audio/"), "no sounds");
    // Latency spans the clocks of two processes.
    let hosts = report["hosts"].as_array().unwrap().iter();
    let mut names: Vec<_> = hosts.map(|host| host["host"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["cloud-server-0", "device-edge", "edge-gateway-0"]);
    assert!(report["sinks"][0]["latency_plus_minus_ms"].as_f64().unwrap() > 0.0);
    assert!(once.get("hosts").is_none() && once["sinks"][0].get("latency_plus_minus_ms").is_none());
}

#[test]
#[ignore = "long: make test-long"]
fn an_overloaded_worker_misses_the_rate() {
    let place = place();
    place.change("profile.yaml", "mean: 12ms", "mean: 60ms");
    let report = emulate(&place, &["--records", "60", "--output", "json"]).expect(0).json();
    let rate = compared(&report, "rate", "")["measured"].as_f64().unwrap();
    assert!(rate < 30.0, "60 ms a picture are at most 17/s: {rate}");
    let levels = report["slo"].as_array().unwrap();
    assert!(levels.iter().any(|level| level["slo"] == "rate" && level["met"] == false), "{levels:#?}");
    assert_ne!(compared(&report, "rate", "")["verdict"], "enforced", "what fails was not enforced");
    let busy = compared(&report, "utilization", "edge-gateway-0");
    assert!((busy["predicted"].as_f64().unwrap() - 240.0).abs() < 1e-6);
    assert!(busy["measured"].as_f64().unwrap() > 80.0, "{busy}");
    assert_eq!(answers(&place).len(), 60, "it is late, not lost");
}

#[test]
#[ignore = "long: make test-long"]
fn a_plan_runs_at_the_rate_that_it_was_made_for() {
    let level = |report: &Value, name: &str| {
        let levels = report["slo"].as_array().unwrap();
        let level = levels.iter().find(|level| level["slo"] == name).unwrap();
        (level["wanted"].as_str().unwrap().to_owned(), level["of"].as_str().unwrap().to_owned())
    };
    let place = place();
    place.change("plan.yaml", "rate: {value: 40/s}", "rate: {value: 20/s}");
    let outcome = emulate(&place, &["--records", "20", "--output", "json"]).expect(0);
    for part in [
        "the rate of the plan, 20/s",
        "the workflow says 40/s",
        "judged by the workflow's: accuracy at least 85 %",
    ] {
        assert!(outcome.stderr.contains(part), "no `{part}` in\n{}", outcome.stderr);
    }
    let report = outcome.json();
    assert!(report["seconds"].as_f64().unwrap() >= 0.95, "19 intervals of 50 ms");
    assert_eq!(level(&report, "rate"), ("at least 20/s".to_owned(), "plan".to_owned()));
    assert_eq!(level(&report, "latency").1, "workflow");
    let outcome = emulate(&place, &["--records", "20", "--rate", "40/s", "--output", "json"]).expect(0);
    assert!(outcome.stderr.contains("the rate of the plan is 20/s; `--rate` sets"), "{}", outcome.stderr);
    assert_eq!(level(&outcome.json(), "rate"), ("at least 40/s".to_owned(), "option".to_owned()));
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_that_did_not_keep_up_is_no_evidence() {
    let place = place();
    let page = place.argument("report.html");
    let json = place.argument("report.json");
    let more = ["--records", "80", "--dilation", "0.02", "--report", &page, "--report-json", &json];
    let outcome = emulate(&place, &more).expect(0);
    let report: Value = serde_json::from_str(&place.read("report.json")).unwrap();
    assert!(report["emulation"]["overruns"]["proposed_dilation"].as_f64().unwrap() > 0.02, "{report:#}");
    let levels = report["slo"].as_array().unwrap();
    assert!(levels.iter().any(|level| level["slo"] == "latency" && level["met"].is_null()), "{levels:#?}");
    let busy = compared(&report, "utilization", "edge-gateway-0");
    assert_eq!(busy["verdict"], "no_evidence", "{busy}");
    assert!(outcome.stdout.contains("no evidence for"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("this machine did not keep up"), "{}", outcome.stdout);
    assert!(place.read("report.html").contains("no evidence"));
    // It was not proven to be met.
    emulate(&place, &[&more[..4], &["--require-slo"]].concat()).expect(1);
}

#[test]
fn people_and_pages_are_told_too() {
    let place = place();
    let page = place.argument("report.html");
    let outcome = emulate(&place, &["--records", "20", "--report", &page]).expect(0);
    for part in [
        "predicted",
        "latency p99",
        "missing",
        "no prediction",
        "enforced",
        "speed of gateway",
        "link edge -> cloud",
    ] {
        assert!(outcome.stdout.contains(part), "no `{part}` in\n{}", outcome.stdout);
    }
    assert!(outcome.stderr.contains("enforced by the profile"), "{}", outcome.stderr);
    let html = place.read("report.html");
    assert!(html.contains("Predicted and measured") && html.contains("id=\"emulation\""));
}

#[test]
fn what_is_missing_is_named_with_how_to_mend_it() {
    let place = place();
    let run = |more: &[&str]| {
        let [workflow, plan] = ["workflow.yaml", "plan.yaml"].map(|file| place.argument(file));
        tidemill(&[&["run", &workflow, "--plan", &plan, "--emulate"], more].concat())
    };
    let says = |outcome: Outcome, code: i32, parts: &[&str]| {
        let outcome = outcome.expect(code);
        for part in parts {
            assert!(outcome.stderr.contains(part), "no `{part}` in\n{}", outcome.stderr);
        }
    };
    let (profile, infrastructure) = (file("profile.yaml"), file("infrastructure.yaml"));
    says(run(&[]), 78, &["there is no profile", "`--profiles`"]);
    says(run(&["--profiles", &profile]), 78, &["`questions` -> `speech`", "`--infra FILE`"]);
    place.write(
        "elsewhere.yaml",
        "version: 1\nname: elsewhere\ntiers:\n  - {id: edge, workers: [{type: gateway, price: 1 $/h}]}\n",
    );
    let elsewhere = place.argument("elsewhere.yaml");
    says(
        run(&["--profiles", &profile, "--infra", &elsewhere]),
        78,
        &["`elsewhere` has no such link", "{from: edge, to: cloud}"],
    );
    place.change("profile.yaml", "variant: speech-small", "variant: speech-large");
    let other = place.argument("profile.yaml");
    says(
        run(&["--profiles", &other, "--infra", &infrastructure]),
        78,
        &["no times of `speech/speech-small`", "on `server`", "`tidemill profile`"],
    );
    let workflow = place.argument("workflow.yaml");
    says(tidemill(&["run", &workflow, "--emulate"]), 2, &["--plan"]);
    says(run(&["--dilation", "0"]), 2, &["a factor must be above 0"]);
}
