//! The files written for three plans match the golden ones. `UPDATE_GOLDEN=1` rewrites them; review the diff.
use crate::case::{self, CASES, Case};
use tidemill_deploy::deployment::{Deployment, FormerLocation};
use tidemill_deploy::{NetworkMode, Target, deploy};
use tidemill_service::Needs;

const ALERTS: &str = "monitoring/alerts.yaml";
const DASHBOARD: &str = "monitoring/grafana-dashboard.json";

/// The rules are those of the book, and the dashboard of one plan is unchanged: those of others differ in substituted
/// names.
#[test]
fn what_watches_is_what_it_was() {
    let files = case::find("two-tiers").files(Target::Compose);
    let folder = case::find("two-tiers").folder();
    let path = folder.join("grafana-dashboard.json");
    let dashboard = files.get(DASHBOARD).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, dashboard).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(golden, dashboard, "{} differs; UPDATE_GOLDEN=1 rewrites it", path.display());
    let book = folder.join("../../../../docs/monitoring/alerts.yaml");
    let alerts = std::fs::read_to_string(book).unwrap();
    let workflow = case::find("two-tiers").loaded().plan.plan.workflow.name;
    for case in CASES {
        for target in case.targets {
            let files = case.files(*target);
            assert_eq!(files.get(ALERTS), Some(alerts.as_str()), "{}", case.name);
            let name = case.loaded().plan.plan.workflow.name;
            let own: serde_json::Value = serde_json::from_str(files.get(DASHBOARD).unwrap()).unwrap();
            let panels =
                |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["panels"].clone();
            assert_eq!(own["panels"], panels(&dashboard.replace(&workflow, &name)), "{}", case.name);
        }
    }
}

/// Senders and servers of a source are outside.
#[test]
fn a_source_that_listens_is_reached_and_one_that_connects_reaches_somebody() {
    let loaded = |address: &str| {
        let workflow = format!(
            "version: 1\nname: copy\nsources:\n- {{id: rows, kind: tcp, options: {{{address}, columns: {{n: int64}}}}}}\n\
             sinks:\n- {{id: lines, kind: discard, input: rows}}\n"
        );
        case::find("one-machine").loaded().with_workflow(&workflow)
    };
    let listens = loaded("listen: '0.0.0.0:4100'");
    let compose = listens.deploy(|_| ()).unwrap();
    let compose: String = compose.iter().map(|(_, text)| text).collect();
    assert!(compose.contains("4100:4100"), "{compose}");
    let on_host = listens.deploy(|request| request.network = Some(NetworkMode::Host)).unwrap();
    assert!(!on_host.iter().any(|(_, text)| text.contains("4100:4100")));
    let manifest = |loaded: &case::Loaded, name: &str| {
        let files = loaded.deploy(|request| request.target = Target::Kubernetes).unwrap();
        files.get(name).unwrap_or_else(|| panic!("{name}")).to_owned()
    };
    let (policies, worker) = ("kubernetes/10-network-policies.yaml", "kubernetes/40-worker-local.yaml");
    let found = manifest(&listens, policies);
    assert!(found.contains("streams-of-local") && found.contains("port: 4100"), "{found}");
    let found = manifest(&listens, worker);
    for part in
        ["kind: Service", "name: streams-of-local", "name: stream-4100", "publishNotReadyAddresses: true"]
    {
        assert!(found.contains(part), "{part} in {found}");
    }
    let found = manifest(&listens, "README.md");
    assert!(found.contains("    streams-of-local.tidemill-copy.svc:4100\n"), "{found}");
    let connects = loaded("connect: 'gate.example:4102'");
    let found = manifest(&connects, policies);
    assert!(found.contains("streams-of-local") && found.contains("port: 4102"), "{found}");
    assert!(!manifest(&connects, worker).contains("kind: Service"));
    let inside = loaded("listen: '127.0.0.1:4100'");
    assert!(!manifest(&inside, policies).contains("streams-of-local"));
    assert!(!manifest(&inside, worker).contains("kind: Service"));
}

/// On two machines an engine's network is two networks.
#[test]
fn a_bridge_is_of_one_machine() {
    let loaded = case::find("three-tiers").loaded();
    let refused = loaded.deploy(|request| request.network = Some(NetworkMode::Bridge)).unwrap_err();
    assert!(refused.to_string().contains("a network of one machine"), "{refused}");
    assert!(refused.help().unwrap().contains("leave out `--network`"));
}

/// All files one after the other, except those that are equal for every plan.
fn text(case: &Case, target: Target) -> String {
    let files = case.files(target);
    let same = [ALERTS, DASHBOARD, "plan.yaml", "infrastructure.yaml"];
    let shown = files.iter().filter(|(path, _)| !same.contains(path));
    shown.map(|(path, text)| format!("==> {path} <==\n{text}\n")).collect()
}

#[test]
fn files_are_what_they_were() {
    let mut faults = Vec::new();
    for case in CASES {
        for target in case.targets {
            let path = case.folder().join(format!("{}.txt", case::name(*target)));
            let text = text(case, *target);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            if std::fs::read_to_string(&path).unwrap_or_default() != text {
                faults.push(format!("{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_same_in_gives_the_same_out_and_nothing_secret() {
    for case in CASES {
        for target in case.targets {
            let files = case.files(*target);
            assert_eq!(files, case.files(*target));
            for (path, text) in files.iter() {
                assert!(!path.starts_with('/') && !path.contains(".."), "{path}");
                assert!(!text.contains("PRIVATE KEY") && text.ends_with('\n'), "{path}");
            }
        }
    }
}

#[test]
fn every_worker_has_one_container_with_its_limits() {
    let files = case::find("three-tiers").files(Target::Compose);
    let document: serde_json::Value = serde_json::from_str(files.get("deployment.json").unwrap()).unwrap();
    let mut workers = Vec::new();
    for location in document["locations"].as_array().unwrap() {
        let compose = files.get(&format!("{}/compose.yaml", location["folder"].as_str().unwrap())).unwrap();
        let compose: serde_json::Value = serde_json::from_str(&tidemill_json(compose)).unwrap();
        for service in location["services"].as_array().unwrap() {
            let container = &compose["services"][service["service"].as_str().unwrap()];
            assert_eq!(container["user"], "65532:65532", "{container}");
            assert_eq!(container["read_only"], true);
            if let Some(worker) = service["worker"].as_str() {
                assert!(container["cpus"].is_number() && container["mem_limit"].is_string(), "{container}");
                workers.push(worker.to_owned());
            }
        }
    }
    workers.sort();
    assert_eq!(workers, ["cloud-1", "hub-1", "north-1", "south-1"]);
}

fn tidemill_json(yaml: &str) -> String {
    tidemill_spec::yaml::to_json(yaml).unwrap().to_string()
}

#[test]
fn what_does_not_fit_is_told_with_its_place() {
    let case = case::find("three-tiers");
    let told = |from: &str, to: &str| {
        let changed = case.changed(from, to);
        assert_ne!(changed.plan_text, case.loaded().plan_text, "`{from}` is not in the plan");
        changed.deploy(|_| {}).unwrap_err().to_string()
    };
    let tier = told("tier: hub, worker_type", "tier: hbu, worker_type");
    assert!(
        tier.contains("E0951") && tier.contains("did you mean `hub`?") && tier.contains("plan.yaml:6"),
        "{tier}"
    );
    let location = told("location: south", "location: suoth");
    assert!(location.contains("did you mean `south`?"), "{location}");
    let kind = told("worker_type: medium", "worker_type: meduim");
    assert!(kind.contains("did you mean `medium`?"), "{kind}");
}

#[test]
fn the_controller_is_where_the_others_reach_it() {
    let loaded = case::find("three-tiers").loaded();
    let place = |controller: Option<&str>| {
        let files = loaded.deploy(|request| request.controller = controller.map(str::to_owned));
        files.map(|files| {
            let document: serde_json::Value =
                serde_json::from_str(files.get("deployment.json").unwrap()).unwrap();
            let of = &document["controller"];
            (of["location"].as_str().unwrap().to_owned(), of["address"].as_str().unwrap().to_owned())
        })
    };
    let is = |found: Result<(String, String), _>, location: &str, address: &str| {
        assert_eq!(found.unwrap(), (location.to_owned(), address.to_owned()));
    };
    is(place(None), "east", "cloud.example");
    is(place(Some("hub")), "hub", "hub.example");
    is(place(Some("south")), "south", "south.example");
    // The plan has only one location of the cloud; another one has no address.
    is(place(Some("cloud")), "east", "cloud.example");
    let west = place(Some("west")).unwrap_err();
    assert!(west.help().unwrap().contains("{tier: cloud, location: west, address: HOST}"), "{west}");
    // Only one location of the edge is reachable.
    is(place(Some("edge")), "south", "south.example");
    let unknown = place(Some("clod")).unwrap_err();
    assert!(
        unknown.help().unwrap().contains("cloud") || unknown.help().unwrap().contains("east"),
        "{unknown}"
    );
}

#[test]
fn a_tier_of_several_places_is_asked_about() {
    let case = case::find("three-tiers");
    let text = std::fs::read_to_string(case.folder().join("infrastructure.yaml")).unwrap();
    let loaded = case.loaded().with_infrastructure(&text.replace("only_dials: true, ", ""));
    let error = loaded.deploy(|request| request.controller = Some("edge".into())).unwrap_err();
    assert_eq!(error.help().unwrap(), "choose with `--controller`: north, south");
}

#[test]
fn the_paths_of_a_machine_are_options_of_its_workers() {
    let case = case::find("three-tiers");
    let text = std::fs::read_to_string(case.folder().join("infrastructure.yaml")).unwrap();
    let paths = "path_rule: cheapest, paths: [{id: fibre, interface: eth0}, {id: lte, interface: wwan0, price: 4 $/GiB}], ";
    let text = text.replacen("only_dials: true, ", &format!("only_dials: true, {paths}"), 1);
    let files = case.loaded().with_infrastructure(&text).deploy(|_| {}).unwrap();
    let compose = files.get("north/compose.yaml").unwrap();
    for option in ["fibre=eth0", "lte=wwan0,4 $$/GiB", "--path-rule", "cheapest"] {
        assert!(compose.contains(option), "{option}: {compose}");
    }
    let error = case.loaded().with_infrastructure(&text);
    let error = error.deploy(|request| request.target = Target::Kubernetes).unwrap_err();
    assert!(error.to_string().contains("paths of `north`"), "{error}");
}

#[test]
fn one_machine_can_be_forced_to_its_own_network() {
    let loaded = case::find("two-tiers").loaded();
    // Without addresses the others do not find the controller.
    assert!(loaded.deploy(|request| request.network = Some(NetworkMode::Host)).is_err());
    let single = case::find("one-machine").loaded();
    let files = single.deploy(|request| request.network = Some(NetworkMode::Host)).unwrap();
    let compose = files.get("edge/compose.yaml").unwrap();
    assert!(compose.contains("network_mode: host") && compose.contains("- localhost"), "{compose}");
}

#[test]
fn a_plan_alone_is_enough() {
    let loaded = case::find("three-tiers").loaded();
    let request = tidemill_deploy::Request::new(&loaded.plan, &loaded.plan_text);
    let files = deploy(&request).unwrap();
    assert!(files.get("east/compose.yaml").unwrap().contains("controller"));
    assert!(files.get("infrastructure.yaml").is_none());
}

/// Two deployments of one workflow share nothing in an engine, and a location that a plan no longer has stays known.
#[test]
fn deployments_are_told_apart_and_know_where_they_were() {
    let loaded = case::find("two-tiers").loaded();
    let document = |id: &str, former: Vec<FormerLocation>| -> Deployment {
        let files = loaded
            .deploy(|request| {
                request.id = Some(id.to_owned());
                request.former = former.clone();
            })
            .unwrap();
        for place in ["edge", "cloud"] {
            let compose = files.get(&format!("{place}/compose.yaml")).unwrap();
            // Of each container and each volume.
            let wanted = compose.matches("image:").count() + compose.matches("type: volume").count();
            assert_eq!(compose.matches(&format!("tidemill.deployment: {id}")).count(), wanted, "{compose}");
        }
        serde_json::from_str(files.get("deployment.json").unwrap()).unwrap()
    };
    let (staging, live) = (document("aaaaaaaa", Vec::new()), document("bbbbbbbb", Vec::new()));
    let projects = |of: &Deployment| of.places().into_iter().map(|one| one.project).collect::<Vec<_>>();
    assert!(projects(&staging).iter().all(|one| !projects(&live).contains(one)), "{staging:?}");
    assert_ne!(staging.network, live.network);
    let gone = FormerLocation {
        name: "attic".into(),
        within: live.project.clone(),
        folder: "attic".into(),
        project: format!("{}-attic", live.project),
        host: Some("ssh://attic.example".into()),
    };
    let before = [live.places(), vec![gone.clone(), gone.clone()]].concat();
    assert_eq!(document("bbbbbbbb", before).former, [gone]);
}

/// Staging and live on the networks of one set of machines; the configuration for Prometheus has their ports.
#[test]
fn deployments_with_other_first_ports_have_no_port_in_common() {
    let loaded = case::find("three-tiers").loaded();
    let ports = |first: Option<u16>| -> Vec<u16> {
        let files = loaded.deploy(|request| request.first_port = first).unwrap();
        let document: Deployment = serde_json::from_str(files.get("deployment.json").unwrap()).unwrap();
        let services = document.locations.iter().flat_map(|location| &location.services);
        let metrics: Vec<u16> = services.filter_map(|service| service.metrics_port).collect();
        let watched = files.get("monitoring/prometheus.yaml").unwrap();
        assert!(watched.contains(&format!("cloud.example:{}", document.controller.port)), "{watched}");
        for place in &document.locations {
            let compose = files.get(&format!("{}/compose.yaml", place.folder)).unwrap();
            for service in &place.services {
                let port = service.metrics_port.unwrap();
                assert!(compose.contains(&format!(":{port}\n")), "{port} is not in {compose}");
                let is_watched = watched.contains(&format!(":{port}\n"));
                assert_eq!(is_watched, service.worker.is_some(), "{port} in {watched}");
            }
        }
        [vec![document.controller.port, document.controller.hosts_port], metrics].concat()
    };
    let (usual, other) = (ports(None), ports(Some(7520)));
    assert_eq!(usual, [7420, 7421, 9465, 9466, 9467, 9464, 9468]);
    let mut sorted = other.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (7520..7527).collect::<Vec<u16>>());
    assert!(usual.iter().all(|port| !other.contains(port)));
    let error = loaded.deploy(|request| request.first_port = Some(65_530)).unwrap_err();
    assert!(error.to_string().contains("needs 7 ports from 65530"), "{error}");
    assert_eq!(error.help().unwrap(), "start at 65529 or lower");
    assert!(loaded.deploy(|request| request.first_port = Some(65_529)).is_ok());
    // On a bridge only the published port is the machine's.
    let files = case::find("two-tiers").loaded().deploy(|request| request.first_port = Some(7520)).unwrap();
    assert!(files.get("cloud/compose.yaml").unwrap().contains("127.0.0.1:${TIDEMILL_PORT:-7520}:7420"));
}

/// A service that runs beside agents gets its files and ports from each target.
#[test]
fn what_services_of_a_host_need_is_given_to_them() {
    let needs = Needs { ports: &[7900], files: &["/etc/tidemill-echo"], ..Needs::NONE };
    let expected = [
        (Target::Compose, &["7900:7900", "source: /etc/tidemill-echo"][..]),
        (Target::Kubernetes, &["7900", "/etc/tidemill-echo"]),
        (Target::Systemd, &["BindReadOnlyPaths=\"/etc/tidemill-echo\""]),
    ];
    let loaded = case::find("one-machine").loaded();
    for (target, all) in expected {
        let text = |services: Vec<Needs>| -> String {
            let files = loaded.deploy(|request| {
                (request.target, request.services) = (target, services.clone());
            });
            files.unwrap().iter().map(|(_, text)| text).collect()
        };
        let (with, without) = (text(vec![needs]), text(Vec::new()));
        for one in all {
            assert!(with.contains(one) && !without.contains(one), "{target:?}: {one}");
        }
    }
}
