//! Containers that run, are killed, cut off and upgraded.
use super::engine::{Deployed, docker, is_there, undisturbed};
use crate::processes::{kill, same};

/// The smallest deployment: it comes up, runs its workflow to the end, and goes.
#[test]
fn the_smallest_deployment_runs_its_workflow_and_leaves_nothing() {
    if !is_there() {
        return;
    }
    let deployed = Deployed::small("smallest");
    let up = deployed.call(&["up", "--output", "json"]).expect(0).json();
    assert_eq!(up["deployment"]["up"]["workers"].as_array().map(Vec::len), Some(1), "{up}");
    let ps = deployed.call(&["ps"]).stdout;
    assert!(ps.contains("controller") && ps.contains("worker-edge"), "{ps}");
    deployed.until_complete();
    same(&deployed.results(), &undisturbed());
    let output = deployed.call(&["down"]).expect(0).stdout;
    assert!(output.contains("removed container") && output.contains("removed volume"), "{output}");
    assert_eq!(deployed.left(), "");
}

/// Three locations; a container is killed from outside its engine, and another one is disconnected for a while.
#[test]
#[ignore = "long: make test-long"]
fn a_deployment_comes_up_survives_and_leaves_nothing() {
    if !is_there() {
        return;
    }
    let expected = std::thread::spawn(undisturbed);
    let deployed = Deployed::written("survives", &[]);
    let up = deployed.call(&["up", "--output", "json"]).expect(0).json();
    let joined = up["deployment"]["up"]["workers"].as_array().unwrap();
    assert_eq!(joined.len(), 3, "{up}");
    assert_eq!(up["deployment"]["run"]["state"], "running", "{up}");
    // Each token admits one worker and no other, and other users here cannot read it.
    let secrets = std::fs::metadata(deployed.place.path("deployment/hub/secrets")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&secrets) & 0o777, 0o700);
    deployed.until_arrived(300);
    confined(&deployed);
    // `docker kill` counts as intended, and no restart policy acts; the end of its first process does not.
    let before = deployed.service("worker-hub");
    let pid = u32::try_from(before["pid"].as_u64().unwrap()).unwrap();
    if !kill(pid) {
        eprintln!("skipped: this user may not end processes of containers");
        return;
    }
    deployed.until("it is started again", |deployed| {
        let now = deployed.service("worker-hub");
        now["pid"].is_u64()
            && now["pid"] != before["pid"]
            && now["restarts"].as_u64() > before["restarts"].as_u64()
    });
    deployed.until_arrived(900);
    let edge = deployed.service("worker-edge")["container"].as_str().unwrap().to_owned();
    docker(&["network", "disconnect", &deployed.project, &edge]);
    deployed.until("it is missed", |deployed| deployed.ask(&["workers"]).stdout.contains("lost"));
    docker(&["network", "connect", &deployed.project, &edge]);
    deployed.until_complete();
    same(&deployed.results(), &expected.join().unwrap());
    let output = deployed.call(&["down"]).expect(0).stdout;
    assert!(output.contains("removed container") && output.contains("removed volume"), "{output}");
    assert_eq!(deployed.left(), "");
    assert!(!deployed.place.path("deployment/admin.token").exists());
    assert!(!deployed.place.path("deployment/hub/secrets/join-hub").exists());
}

/// Containers have hardly any rights beyond their work, by the engine's and the kernel's data, and the engine shows no
/// secrets.
fn confined(deployed: &Deployed) {
    let mut secrets = vec![deployed.place.read("deployment/admin.token").trim().to_owned()];
    for location in ["edge", "hub", "cloud"] {
        let text = deployed.place.read(&format!("deployment/{location}/secrets/join-{location}"));
        secrets.extend(text.lines().filter(|line| line.starts_with("tmj_")).map(str::to_owned));
    }
    assert!(
        secrets.len() == 4 && secrets.iter().all(|secret| secret.len() > 40),
        "{} secrets",
        secrets.len()
    );
    for service in ["controller", "worker-edge", "worker-hub", "worker-cloud"] {
        let found = deployed.service(service);
        let inspected = docker(&["inspect", found["container"].as_str().unwrap()]);
        for secret in &secrets {
            assert!(!inspected.contains(secret), "{service}: a secret in {inspected}");
        }
        assert!(!inspected.contains("PRIVATE KEY"), "{service}: a key in {inspected}");
        let value: serde_json::Value = serde_json::from_str(&inspected).unwrap();
        let (host, config) = (&value[0]["HostConfig"], &value[0]["Config"]);
        assert_eq!(config["User"], "65532:65532", "{service}");
        assert_eq!(host["ReadonlyRootfs"], true, "{service}");
        assert_eq!(host["Privileged"], false, "{service}");
        assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]), "{service}");
        assert!(
            host["CapAdd"].is_null() && host["Devices"].as_array().is_none_or(Vec::is_empty),
            "{service}"
        );
        assert!(host["PidsLimit"].as_u64().is_some_and(|most| most <= 4096), "{service}");
        let options = host["SecurityOpt"].to_string();
        assert!(
            options.contains("no-new-privileges") && !options.contains("unconfined"),
            "{service}: {options}"
        );
        for shared in ["PidMode", "UTSMode", "UsernsMode"] {
            assert_ne!(host[shared], "host", "{service}: {shared}");
        }
        assert_ne!(host["IpcMode"], "host", "{service}");
        assert!(!host["Binds"].to_string().contains("docker.sock"), "{service}");
        // The kernel's data of the program itself and not of its parent.
        let pid = found["pid"].as_u64().unwrap();
        let pid = crate::processes::children(pid as u32).first().map_or(pid, |child| u64::from(*child));
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
            eprintln!("skipped: processes of containers are not seen from here");
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{service}: {set}");
        }
        assert_eq!(field("NoNewPrivs"), "1", "{service}");
        assert_eq!(field("Uid").split_whitespace().collect::<Vec<_>>(), ["65532"; 4], "{service}");
        assert_eq!(field("Gid").split_whitespace().collect::<Vec<_>>(), ["65532"; 4], "{service}");
        // The engine's filter of system calls.
        assert_eq!(field("Seccomp"), "2", "{service}: no filter of system calls");
        let root = std::path::PathBuf::from(format!("/proc/{pid}/root"));
        let refused =
            std::fs::write(root.join("usr/bin/written"), "x").expect_err("a root that is read only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{service}: {refused}");
    }
}

/// The volume of the sinks is full for a while: the run reports that, and continues after its last checkpoint when there is
/// room.
#[test]
#[ignore = "long: make test-long"]
fn a_run_waits_while_its_volume_is_full() {
    if !is_there() {
        return;
    }
    let expected = std::thread::spawn(undisturbed);
    let deployed = Deployed::small("full");
    // A separate volume, which can be full without affecting others.
    let volume = "volumes:\n  worker-edge:\n    driver_opts: {type: tmpfs, device: tmpfs, o: \"size=48m,uid=65532,gid=65532,mode=0755\"}\n";
    deployed.place.write("deployment/edge/compose.override.yaml", volume);
    deployed.call(&["up"]).expect(0);
    deployed.until_arrived(100);
    let pid = deployed.service("worker-edge")["pid"].as_u64().unwrap();
    let filling = std::path::PathBuf::from(format!("/proc/{pid}/root/var/lib/tidemill/filling"));
    let Ok(mut file) = std::fs::File::create(&filling) else {
        return eprintln!("skipped: files of containers are not written from here");
    };
    while std::io::Write::write_all(&mut file, &[0; 1 << 12]).is_ok() {}
    drop(file);
    let says_full = |deployed: &Deployed| deployed.run()["reason"].to_string().contains("No space left");
    deployed.until("it says that there is no space", says_full);
    assert_ne!(deployed.run()["state"], "failed");
    std::fs::remove_file(&filling).unwrap();
    deployed.until_complete();
    same(&deployed.results(), &expected.join().unwrap());
}

/// An image that does not start leaves all with the previous one, and the run continues.
#[test]
#[ignore = "long: make test-long"]
fn an_upgrade_that_does_not_come_up_goes_back() {
    if !is_there() {
        return;
    }
    let expected = std::thread::spawn(undisturbed);
    let deployed = Deployed::small("back");
    let bad = deployed.image.with("bad", "ENV TIDEMILL_LOG_LEVEL=nonsense");
    deployed.call(&["up"]).expect(0);
    deployed.until_arrived(100);
    let back =
        deployed.call(&["upgrade", "--image", &bad.0, "--output", "json", "--wait", "20s"]).expect(1).json();
    assert_eq!(back["deployment"]["failed"], "worker-edge", "{back}");
    assert!(back["deployment"]["reason"].as_str().unwrap().contains("nonsense"), "{back}");
    assert_eq!(back["deployment"]["broken"], serde_json::json!([]), "{back}");
    assert_eq!(deployed.service("worker-edge")["image"], deployed.image.0);
    assert_eq!(deployed.service("controller")["image"], deployed.image.0);
    assert_eq!(deployed.document()["image"], deployed.image.0);
    deployed.until_complete();
    same(&deployed.results(), &expected.join().unwrap());
}

/// The state before the upgrade is known after an interruption, also if its image has lost its name to the new one.
#[test]
#[ignore = "long: make test-long"]
fn an_upgrade_that_was_interrupted_goes_back_to_what_there_was_before() {
    if !is_there() {
        return;
    }
    let expected = std::thread::spawn(undisturbed);
    let deployed = Deployed::small("again");
    let bad = deployed.image.with("bad", "ENV TIDEMILL_LOG_LEVEL=nonsense");
    deployed.call(&["up"]).expect(0);
    deployed.until_arrived(100);
    let good = docker(&["image", "inspect", "--format", "{{.Id}}", &deployed.image.0]);
    let mut first = deployed.begin(&["upgrade", "--image", &bad.0]);
    deployed.until("the worker has the image", |deployed| deployed.service("worker-edge")["image"] == bad.0);
    let id = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let ended = first.wait().unwrap();
    assert!(ended.code() == Some(130) || ended.code() == Some(1), "{ended}");
    let was_interrupted = ended.code() == Some(130);
    assert_eq!(deployed.place.path("deployment/upgrade.json").exists(), was_interrupted);
    // The bad image now has the name of the old one.
    docker(&["tag", &bad.0, &deployed.image.0]);
    let again =
        deployed.call(&["upgrade", "--image", &bad.0, "--output", "json", "--wait", "20s"]).expect(1).json();
    assert_eq!(again["deployment"]["failed"], "worker-edge", "{again}");
    assert_eq!(again["deployment"]["broken"], serde_json::json!([]), "{again}");
    let id = deployed.service("worker-edge")["container"].as_str().unwrap().to_owned();
    assert_eq!(docker(&["inspect", "--format", "{{.Image}}", &id]), good);
    assert!(!deployed.place.path("deployment/upgrade.json").exists());
    deployed.until_complete();
    same(&deployed.results(), &expected.join().unwrap());
    deployed.call(&["down"]).expect(0);
    drop(super::engine::Image(good));
}

/// Two deployments of one workflow on one machine are independent.
#[test]
#[ignore = "long: make test-long"]
fn another_deployment_of_the_same_workflow_is_left_alone() {
    if !is_there() {
        return;
    }
    let deployed = Deployed::small("twins");
    deployed.call(&["up", "--no-submit"]).expect(0);
    let (plan, out) = (deployed.place.argument("plan.yaml"), deployed.place.argument("twin"));
    let words = ["deploy", &plan, "--out", &out, "--image", &deployed.image.0];
    super::engine::command_told(&words).expect(0);
    assert!(super::engine::command_told(&["ps", &out]).expect(1).stdout.contains("not there"));
    let down = super::engine::command_told(&["down", &out]).expect(0).stdout;
    assert!(down.contains("there was nothing to remove"), "{down}");
    assert!(deployed.left().contains("worker-edge") && deployed.left().contains("controller"));
    // A folder that claims to be that deployment.
    let document = deployed.place.read("deployment/deployment.json");
    let id = serde_json::from_str::<serde_json::Value>(&document).unwrap()["id"].as_str().unwrap().to_owned();
    let other = document.replacen(&format!("\"id\": \"{id}\""), "\"id\": \"another\"", 1);
    deployed.place.write("twin/deployment.json", other);
    for verb in ["up", "down"] {
        let output = super::engine::command_told(&[verb, &out]).expect(69).stderr;
        assert!(
            output.contains("another deployment has these names") && output.contains("controller"),
            "{output}"
        );
    }
    assert!(deployed.left().contains("worker-edge") && deployed.left().contains("controller"));
    let output = deployed.call(&["down"]).expect(0).stdout;
    assert!(output.contains("removed volume"), "{output}");
    assert_eq!(deployed.left(), "");
}

/// Every container gets a new image during a run; the kept state suffices to continue.
#[test]
#[ignore = "long: make test-long"]
fn an_upgrade_goes_on_with_the_run() {
    if !is_there() {
        return;
    }
    let expected = std::thread::spawn(undisturbed);
    let deployed = Deployed::small("upgraded");
    let good = deployed.image.with("good", "LABEL better=yes");
    let first = deployed.call(&["up", "--output", "json"]).expect(0).json();
    deployed.until_arrived(100);
    let done = deployed.call(&["upgrade", "--image", &good.0, "--output", "json"]).expect(0).json();
    assert_eq!(done["deployment"]["changed"], serde_json::json!(["worker-edge", "controller"]), "{done}");
    for service in ["controller", "worker-edge"] {
        assert_eq!(deployed.service(service)["image"], good.0, "{service}");
    }
    assert_eq!(deployed.document()["image"], good.0);
    deployed.until_complete();
    same(&deployed.results(), &expected.join().unwrap());
    deployed.call(&["down", "--keep-state"]).expect(0);
    assert!(deployed.left().contains("controller"), "its volume is gone");
    // A repeated submission to the cluster gives that run.
    let again = deployed.call(&["up", "--output", "json"]).expect(0).json();
    assert_eq!(again["deployment"]["run"]["submitted"], first["deployment"]["run"]["submitted"]);
    assert_eq!(deployed.service("worker-edge")["image"], good.0);
    deployed.call(&["down"]).expect(0);
    assert_eq!(deployed.document()["image"], deployed.image.0, "its files name that one");
}
