//! Requirements of a deployment on its machines: accelerators, devices, folders, addresses; and texts that no file can
//! hold.
use crate::case::{self, Loaded};
use std::cell::RefCell;
use tidemill_deploy::Target;

/// One worker that reads a path.
fn reads(path: &str) -> Loaded {
    let workflow = format!(
        "version: 1\nname: copy\nsources:\n- {{id: rows, kind: csv, rate: 40/s, options: {{path: '{path}'}}}}\n\
         sinks:\n- {{id: lines, kind: discard, input: rows}}\n"
    );
    case::find("one-machine").loaded().with_workflow(&workflow)
}

fn file(loaded: &Loaded, target: Target, path: &str) -> String {
    let files = loaded.deploy(|request| request.target = target).unwrap();
    files.get(path).unwrap_or_else(|| panic!("{path}")).to_owned()
}

/// Two workers of one machine, which would both get its first accelerator by a mere count.
#[test]
fn workers_of_one_machine_have_no_accelerator_in_common() {
    let before = "workers: [{id: local, tier: edge, worker_type: small}]\nstages:\n  - {id: rows, operator: rows, worker: local}\n  \
                  - {id: lines, operator: lines, worker: local}\n";
    let after = "workers: [{id: local, tier: edge, worker_type: small}, {id: other, tier: edge, worker_type: small}]\nstages:\n  \
                 - {id: rows, operator: rows, worker: local}\n  - {id: lines, operator: lines, worker: other}\n";
    let infrastructure = "version: 1\nname: box\ntiers:\n- id: edge\n  workers: [{type: small, accelerators: \
                          [{type: t4, count: 2, memory: 16GiB}], price: 0.1 $/h}]\n";
    let case = case::find("one-machine");
    let loaded = case.changed(before, after).with_infrastructure(infrastructure);
    assert_ne!(loaded.plan_text, case.loaded().plan_text);
    let gpus = file(&loaded, Target::Compose, "edge/compose.gpu.yaml");
    let gpus = tidemill_spec::yaml::to_json(&gpus).unwrap();
    for (worker, expected) in [("local", ["0", "1"]), ("other", ["2", "3"])] {
        let device = &gpus["services"][format!("worker-{worker}")]["deploy"]["resources"]["reservations"]["devices"]
            [0];
        assert_eq!(device["device_ids"], serde_json::json!(expected), "{device}");
        let unit = file(&loaded, Target::Systemd, &format!("edge/tidemill-worker-{worker}.service"));
        let line = format!("Environment=CUDA_VISIBLE_DEVICES={}\n", expected.join(","));
        assert!(unit.contains(&line) && unit.contains("DeviceAllow=char-nvidia* rw\n"), "{unit}");
    }
}

#[test]
fn a_controller_with_an_address_of_ipv6_listens_there() {
    let case = case::find("three-tiers");
    let text = std::fs::read_to_string(case.folder().join("infrastructure.yaml")).unwrap();
    let text = text.replace("address: cloud.example", "address: '2001:db8::7'");
    let loaded = case.loaded().with_infrastructure(&text);
    let compose = file(&loaded, Target::Compose, "east/compose.yaml");
    assert!(compose.contains("[::]:${TIDEMILL_PORT:-7420}"), "{compose}");
    assert!(compose.contains("[::]:${TIDEMILL_HOSTS_PORT:-7421}"), "{compose}");
    let unit = file(&loaded, Target::Systemd, "east/tidemill-controller.service");
    assert!(unit.contains("--listen \"[::]:7420\" --listen-hosts \"[::]:7421\""), "{unit}");
    for target in [Target::Compose, Target::Systemd] {
        let told = file(&loaded, target, "README.md");
        assert!(told.contains("tidemill login tidemill://[2001:db8::7]:7420/FINGERPRINT"), "{told}");
    }
}

#[test]
fn what_sources_read_in_folders_of_users_is_seen_by_their_unit_alone() {
    let loaded = reads("/run/user/1000/rows.csv");
    let unit = file(&loaded, Target::Systemd, "edge/tidemill-worker-local.service");
    assert!(unit.contains("BindReadOnlyPaths=\"/run/user/1000/rows.csv\"\n"), "{unit}");
    assert!(unit.contains("ProtectHome=tmpfs\n"), "{unit}");
    let unit = file(&loaded, Target::Systemd, "edge/tidemill-controller.service");
    assert!(unit.contains("ProtectHome=yes\n"), "{unit}");
    let unit = file(&reads("/srv/rows.csv"), Target::Systemd, "edge/tidemill-worker-local.service");
    assert!(unit.contains("ProtectHome=yes\n"), "{unit}");
}

#[test]
fn devices_that_sources_read_are_given_to_their_workers() {
    let loaded = reads("/dev/ttyUSB0");
    let compose = file(&loaded, Target::Compose, "edge/compose.yaml");
    assert!(compose.contains("devices:\n    - /dev/ttyUSB0:/dev/ttyUSB0:rw\n"), "{compose}");
    assert!(!compose.contains("source: /dev/ttyUSB0"), "{compose}");
    let unit = file(&loaded, Target::Systemd, "edge/tidemill-worker-local.service");
    assert!(unit.contains("DeviceAllow=\"/dev/ttyUSB0\" rw\n") && !unit.contains("PrivateDevices"), "{unit}");
    let notes = |loaded: &Loaded, target: Target| {
        let told = RefCell::new(Vec::new());
        loaded
            .deploy(|request| {
                request.target = target;
                *told.borrow_mut() = tidemill_deploy::devices(request);
            })
            .unwrap();
        told.into_inner().join("\n")
    };
    assert!(
        notes(&loaded, Target::Compose)
            .contains("`rows` reads the device /dev/ttyUSB0, which its container gets")
    );
    assert!(notes(&loaded, Target::Kubernetes).contains("which no pod has"));
    assert_eq!(notes(&reads("/dev/null"), Target::Compose), "");
    // A colon ends the name in the syntax common to all versions of Compose.
    let colon = reads("/dev/serial/by-path/pci-0000:00");
    assert!(notes(&colon, Target::Compose).contains("accepts no `:`"));
    assert!(!file(&colon, Target::Compose, "edge/compose.yaml").contains("devices:"));
}

#[test]
fn who_wants_nothing_that_moves_limits_gets_none() {
    let loaded = case::find("elastic").loaded();
    let files = loaded.deploy(|request| request.elastic = false).unwrap();
    for path in ["edge/compose.yaml", "deployment.json", "README.md"] {
        let text = files.get(path).unwrap();
        assert!(!text.contains("elastic"), "{path}: {text}");
    }
}

#[test]
fn texts_that_would_begin_lines_of_their_own_are_refused() {
    let case = case::find("one-machine");
    for (from, to) in [
        ("workflow: {name: copy}", "workflow: {name: \"copy\\nExecStartPre=/bin/x\"}"),
        ("tier: edge", "tier: \"edge\\r#\""),
        ("worker_type: small", "worker_type: \"small\\u2028\""),
    ] {
        let loaded = case.changed(from, to);
        for target in [Target::Compose, Target::Kubernetes, Target::Systemd] {
            let error = loaded.deploy(|request| request.target = target).unwrap_err();
            assert!(error.to_string().contains("has a line break"), "{to}: {error}");
            assert!(error.help().is_some());
        }
    }
    let image = reads("/srv/a b").deploy(|request| request.image = "tidemill:1\nx".to_owned()).unwrap_err();
    assert!(image.to_string().starts_with("the image"), "{image}");
}

#[test]
fn tiers_that_nodes_can_have_no_label_for_are_refused() {
    let loaded = case::find("one-machine").changed("tier: edge", "tier: edge one");
    let error = loaded.deploy(|request| request.target = Target::Kubernetes).unwrap_err();
    assert!(error.to_string().contains("the tier \"edge one\" cannot be a label"), "{error}");
    assert!(loaded.deploy(|_| ()).is_ok());
}
