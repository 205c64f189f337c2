//! Devices of plans: those without an address are served by a container, as members of the cluster.
use crate::case::{self, Loaded};
use serde_json::Value;
use tidemill_deploy::{NetworkMode, Target, lost_when_replanned};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::Plan;

fn loaded() -> Loaded {
    case::find("devices").loaded()
}

fn compose(text: &str) -> Value {
    serde_json::from_str(&tidemill_spec::yaml::to_json(text).unwrap().to_string()).unwrap()
}

fn command(service: &Value) -> Vec<&str> {
    service["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// The word after an option.
fn option<'a>(command: &[&'a str], name: &str) -> &'a str {
    let at = command.iter().position(|word| *word == name);
    at.map_or_else(|| panic!("no {name} in {command:?}"), |at| command[at + 1])
}

/// The device serves where the plan says that stages reach it.
#[test]
fn a_container_serves_a_device_where_the_stages_dial() {
    let files = loaded().deploy(|_| {}).unwrap();
    let plan = Plan::parse(files.get("plan.yaml").unwrap(), "plan.yaml").unwrap();
    let addresses: Vec<&str> = plan.devices.iter().map(|device| device.address.as_deref().unwrap()).collect();
    let served = ["tls://hub.example:7440", "tls://hub.example:7441", "tls://cloud.example:7442"];
    assert_eq!(addresses[..3], served);
    assert_eq!(addresses[3], "10.0.0.7:7440");
    let hub = compose(files.get("hub/compose.yaml").unwrap());
    let device = &hub["services"]["device-hub-large-0-gpu-1"];
    let words = command(device);
    assert_eq!(words[..2], ["device", "serve"]);
    for (name, value) in [
        ("--listen", "tcp://0.0.0.0:7441"),
        ("--kind", "gpu"),
        ("--memory", "16GiB"),
        ("--tenant", "seen=50%,16GiB"),
        ("--join-file", "/run/secrets/join"),
    ] {
        assert_eq!(option(&words, name), value, "{name}");
    }
    let joins = device["secrets"][0]["source"].as_str().unwrap();
    assert_eq!(hub["secrets"][joins]["file"], "./secrets/join-device-hub-large-0-gpu-1");
    let asked: Vec<&str> =
        device["healthcheck"]["test"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(asked[..3], ["CMD", "tidemill", "health"]);
    assert_eq!(asked[3], option(&words, "--metrics"));
    assert_eq!((&device["restart"], &device["cpus"]), (&"unless-stopped".into(), &8.0.into()));
    let cloud = compose(files.get("cloud/compose.yaml").unwrap());
    let services: Vec<&String> = cloud["services"].as_object().unwrap().keys().collect();
    // One that has an address runs already.
    assert_eq!(services, ["controller", "device-cloud-lone-0-card"]);
    let words = command(&cloud["services"]["device-cloud-lone-0-card"]);
    assert_eq!(option(&words, "--tenant"), "seen=100%");
    assert!(!words.contains(&"--memory"), "{words:?}");
}

/// The accelerators of a machine with a worker, and those of one without.
#[test]
fn each_device_gets_an_accelerator_of_its_machine() {
    let files = loaded().deploy(|_| {}).unwrap();
    let of = |location: &str, service: &str| -> Value {
        let gpus = compose(files.get(&format!("{location}/compose.gpu.yaml")).unwrap());
        gpus["services"][service]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"].clone()
    };
    assert_eq!(of("hub", "device-hub-large-0-gpu-0"), serde_json::json!(["0"]));
    assert_eq!(of("hub", "device-hub-large-0-gpu-1"), serde_json::json!(["1"]));
    assert_eq!(of("hub", "worker-hub-large-0"), serde_json::json!(["0", "1"]));
    assert_eq!(of("cloud", "device-cloud-lone-0-card"), serde_json::json!(["0"]));
}

/// A later plan of the controller finds the devices by the copy of the infrastructure.
#[test]
fn the_infrastructure_has_the_address_where_it_can() {
    let case = loaded();
    let files = case.deploy(|_| {}).unwrap();
    let text = files.get("infrastructure.yaml").unwrap();
    let infrastructure = Infrastructure::parse(text, "infrastructure.yaml").unwrap();
    let address = |tier: usize, device: usize| {
        let device = &infrastructure.tiers[tier].workers[0].devices[device];
        device.address.as_ref().map(|address| address.value.clone())
    };
    assert_eq!(address(2, 0).as_deref(), Some("tls://cloud.example:7442"));
    assert_eq!(address(2, 1).as_deref(), Some("10.0.0.7:7440"));
    // Two devices share an entry.
    assert_eq!(address(1, 0), None);
    let mut lost = Vec::new();
    let record = std::cell::RefCell::new(&mut lost);
    case.deploy(|request| {
        request.profiles = vec!["../profile.yaml".to_owned()];
        **record.borrow_mut() = lost_when_replanned(request).unwrap();
    })
    .unwrap();
    // One kind shares an address, the other is at a machine without a worker.
    assert_eq!(lost, ["card", "gpu"]);
}

#[test]
fn ports_of_devices_follow_a_first_port_and_a_bridge_needs_none() {
    let files = loaded().deploy(|request| request.first_port = Some(8000)).unwrap();
    let plan = Plan::parse(files.get("plan.yaml").unwrap(), "plan.yaml").unwrap();
    let found: Vec<&str> = plan.devices[..3].iter().map(|one| one.address.as_deref().unwrap()).collect();
    // After three ports of the controller, two of workers, and one of the metrics of each device.
    assert_eq!(found, ["tls://hub.example:8006", "tls://hub.example:8008", "tls://cloud.example:8010"]);
    assert!(loaded().deploy(|request| request.first_port = Some(65_530)).is_err());
    let infrastructure = case::find("devices").infrastructure().replace("ssh://", "").replace("hosts:", "# ");
    let start = infrastructure.find("# \n").unwrap();
    let one_machine = loaded().with_infrastructure(&infrastructure[..start]);
    let files = one_machine.deploy(|_| {}).unwrap();
    let plan = Plan::parse(files.get("plan.yaml").unwrap(), "plan.yaml").unwrap();
    assert_eq!(plan.devices[1].address.as_deref(), Some("tls://device-hub-large-0-gpu-1:7440"));
    let hub = compose(files.get("hub/compose.yaml").unwrap());
    let device = &hub["services"]["device-hub-large-0-gpu-1"];
    assert_eq!(device["hostname"], "device-hub-large-0-gpu-1");
    assert!(device["ports"].is_null(), "{device}");
}

#[test]
fn a_device_that_cannot_be_served_is_an_error_with_a_fix() {
    for target in [Target::Kubernetes, Target::Systemd] {
        let error = loaded().deploy(|request| request.target = target).unwrap_err();
        assert!(error.to_string().contains("hub-large-0/gpu-0"), "{error}");
        assert!(error.help().unwrap().contains("`tidemill device serve`"));
    }
    let text = case::find("devices").infrastructure();
    let dials = text.replace("ssh://hub.example", "ssh://hub.example, only_dials: true");
    let error = loaded().with_infrastructure(&dials).deploy(|_| {}).unwrap_err();
    assert!(error.to_string().contains("`hub-large-0/gpu-0`"), "{error}");
    // Its only stage is on its own machine.
    let plan = case::find("devices").changed("device: \"device:hub-large-0/gpu-0\"", "backend: rten");
    let files = plan.with_infrastructure(&dials).deploy(|_| {}).unwrap();
    assert!(files.get("plan.yaml").unwrap().contains("tls://127.0.0.1:7441"));
    let unknown = case::find("devices").changed("worker: cloud-lone-0}", "worker: cloud-long-0}");
    let told = unknown.deploy(|_| {}).unwrap_err().to_string();
    assert!(told.contains("E0951") && told.contains("did you mean `cloud-lone-0`?"), "{told}");
    let alone = loaded().deploy(|request| request.infrastructure = None).unwrap_err();
    assert!(
        alone.to_string().contains("`cloud-lone-0`") && alone.help().unwrap().contains("--infra"),
        "{alone}"
    );
    // Where all run already, nothing is started.
    let all = "memory: 16GiB, share: 50%, price: 0.1 $/h}";
    let elsewhere = case::find("devices").changed(all, "address: \"hub:1\"}");
    let elsewhere =
        elsewhere.changed_plan("worker: cloud-lone-0}", "worker: cloud-lone-0, address: \"hub:2\"}");
    let files = elsewhere.deploy(|request| request.network = Some(NetworkMode::Host)).unwrap();
    assert!(!files.iter().any(|(_, text)| text.contains("device-hub")));
    assert_eq!(files.get("plan.yaml"), Some(elsewhere.plan_text.as_str()));
    assert!(elsewhere.deploy(|request| request.target = Target::Systemd).is_ok());
}
