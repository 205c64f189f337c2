//! Plans that follow the available workers, and a plan given at the start; through the built binary.
use crate::cluster::Cluster;
use crate::cluster_replanning::{
    FAST, HARDLY, SLOW_GATEWAY, cancel, cluster, events, hear, submit, until_event, view, workers,
};

/// The gateway misses its levels, and there is no other worker; then a server joins.
#[test]
#[ignore = "long: make test-long"]
fn a_plan_takes_a_worker_that_joins() {
    let mut cluster = Cluster::without_workers(hear(&SLOW_GATEWAY), &FAST);
    cluster.start_worker_with("north", &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    cluster.until_joined(1);
    submit(&cluster, "hear", "auto", &HARDLY);
    let why = until_event(&cluster, "replan_impossible");
    assert!(why.contains("on gateway takes "), "{why}");
    assert!(events(&cluster, "replan_accepted").is_empty(), "there is nothing to change to");
    cluster.start_worker_with("rack", &["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"]);
    let why = until_event(&cluster, "replan_accepted");
    assert!(why.contains("levels are missed") && why.contains("then 0.4"), "{why}");
    until_event(&cluster, "plan_changed");
    let current = view(&cluster, "hear")["current"].clone();
    assert!(workers(&current, "speech").contains(&"rack".to_owned()), "{current}");
    cancel(&cluster, "hear");
}

/// A submission with a plan and with profiles starts with that plan, even if another one is better, and follows it.
#[test]
#[ignore = "long: make test-long"]
fn a_run_begins_with_its_plan_and_another_one_follows() {
    let cluster = cluster(hear(&SLOW_GATEWAY));
    submit(&cluster, "probe", "off", &HARDLY);
    let mut plan = view(&cluster, "probe")["current"].clone();
    cancel(&cluster, "probe");
    // All on the more expensive worker, though the cheaper one would suffice by the profile.
    assert_eq!(workers(&plan, "speech"), ["north"]);
    let text = serde_json::to_string(&plan).unwrap().replace("\"north\"", "\"rack\"");
    plan = serde_json::from_str(&text.replace("gateway", "server").replace("\"edge\"", "\"cloud\"")).unwrap();
    cluster.place.write("given.yaml", serde_json::to_string(&plan).unwrap());
    let (workflow, profile, given) = (
        cluster.place.argument("workflow.yaml"),
        cluster.place.argument("hear-profile.yaml"),
        cluster.place.argument("given.yaml"),
    );
    let own =
        ["submit", &workflow, "--plan", &given, "--profiles", &profile, "--as", "hear", "--replan", "ask"];
    let output = cluster.ask(&[&own[..], &HARDLY].concat()).expect(0).stderr;
    assert!(output.contains("the plan is the submitted one"), "{output}");
    cluster.until("it runs", |cluster| cluster.run_of("hear")["arrived"].as_u64().unwrap() > 20);
    assert_eq!(workers(&view(&cluster, "hear")["current"], "speech"), ["rack"]);
    // It can be replanned, unlike a run without profiles.
    let decision = cluster.ask(&["change", "hear", "--dry-run", "--output", "json"]).expect(0).json();
    let decision = decision["replan"]["decision"].as_str().unwrap().to_owned();
    assert!(decision.contains("now 0.4"), "{decision}");
    cancel(&cluster, "hear");
    // The quota applies to a given plan, too.
    let more = ["--as", "small", "--processors", "0.000001"];
    let own = ["submit", &workflow, "--plan", &given, "--profiles", &profile];
    let output = cluster.ask(&[&own[..], &more, &HARDLY].concat());
    assert!(output.code != Some(0) && output.stderr.contains("the plan takes "), "{}", output.stderr);
}

/// Prices cannot be measured: a user sets one, and the best plan changes.
#[test]
#[ignore = "long: make test-long"]
fn a_plan_follows_prices_that_somebody_gives() {
    let quick = [("speech-small", "gateway", 5.0), ("speech-small", "server", 5.0)];
    let mut cluster = Cluster::without_workers(hear(&quick), &FAST);
    cluster.start_worker_with("north", &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    cluster.start_worker_with("rack", &["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"]);
    cluster.until_joined(2);
    let infrastructure = |gateway: &str, server: &str| {
        format!(
            "version: 1\nname: prices\ntiers:\n  - id: edge\n    workers: [{{type: gateway, names: [north], price: {gateway} $/h}}]\n  \
             - id: cloud\n    workers: [{{type: server, names: [rack], price: {server} $/h}}]\n\
             links:\n  - {{from: edge, to: cloud, price: 0.01 $/GB}}\n  - {{from: cloud, to: edge, price: 0.01 $/GB}}\n"
        )
    };
    cluster.place.write("before.yaml", infrastructure("0.03", "0.4"));
    cluster.place.write("after.yaml", infrastructure("5", "0.4"));
    cluster.place.write("wrong.yaml", "version: 1\nname: prices\ntiers: []\n");
    let [before, after, wrong] =
        ["before.yaml", "after.yaml", "wrong.yaml"].map(|file| cluster.place.argument(file));
    submit(&cluster, "hear", "ask", &["--infra", &before]);
    assert_eq!(workers(&view(&cluster, "hear")["current"], "speech"), ["north"]);
    cluster.until("it runs", |cluster| cluster.run_of("hear")["arrived"].as_u64().unwrap() > 20);
    let decide = |more: &[&str]| {
        let output = cluster
            .ask(&[&["change", "hear", "--dry-run", "--output", "json"], more].concat())
            .expect(0)
            .json();
        output["replan"]["decision"].as_str().unwrap().to_owned()
    };
    let decision = decide(&[]);
    assert!(decision.contains("0.03"), "{decision}");
    // An unusable file changes nothing.
    assert_ne!(cluster.ask(&["change", "hear", "--dry-run", "--infra", &wrong]).code, Some(0));
    assert!(events(&cluster, "infrastructure_changed").is_empty());
    let decision = decide(&["--infra", &after]);
    assert!(decision.contains("5.0"), "{decision}");
    assert_eq!(events(&cluster, "infrastructure_changed").len(), 1);
    // Later plans use these prices.
    let decision = decide(&[]);
    assert!(decision.contains("5.0"), "{decision}");
    cancel(&cluster, "hear");
    // A run without profiles is not planned.
    let given = cluster.place.argument("given.yaml");
    cluster.place.write("given.yaml", serde_json::to_string(&view(&cluster, "hear")["current"]).unwrap());
    cluster
        .ask(&["submit", &cluster.place.argument("workflow.yaml"), "--plan", &given, "--as", "stays"])
        .expect(0);
    cluster.until("it runs", |cluster| cluster.run_of("stays")["state"] == "running");
    let output = cluster.ask(&["change", "stays", "--dry-run", "--infra", &after]);
    assert!(output.code != Some(0) && output.stderr.contains("without profiles"), "{}", output.stderr);
    cancel(&cluster, "stays");
}
