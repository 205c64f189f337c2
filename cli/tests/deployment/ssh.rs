//! Locations on another machine. The program `ssh` of these tests is a script that runs its command on this machine, in a
//! separate home, so everything but the network is real.
use super::engine::{Deployed, is_there, told};
use crate::command::{Outcome, command};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const SSH: &str = r#"#!/bin/sh
# The last word is the command, the one before it the machine.
printf '%s\n' "$*" >>"$OTHER_LOG"
for word in "$@"; do before=$last; last=$word; done
case "$before" in *nobody*) echo "ssh: connect to host nobody port 22: No route to host" >&2; exit 255 ;; esac
cd "$OTHER_HOME" || exit 255
exec env HOME="$OTHER_HOME" sh -c "$last"
"#;

struct Other {
    deployed: Deployed,
    home: PathBuf,
}

impl Other {
    fn new(deployed: Deployed, host: &str) -> Self {
        let home = deployed.place.path("home");
        let bin = deployed.place.path("bin");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("ssh"), SSH).unwrap();
        std::fs::set_permissions(bin.join("ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        // As with `host` of the edge in the infrastructure; containers share a network all the same, because the other
        // machine is this one.
        let path = "deployment/deployment.json";
        let mut document: serde_json::Value = serde_json::from_str(&deployed.place.read(path)).unwrap();
        let locations = document["locations"].as_array_mut().unwrap();
        let edge = locations.iter_mut().find(|location| location["name"] == "edge").unwrap();
        edge["host"] = host.into();
        deployed.place.write(path, document.to_string());
        Self { deployed, home }
    }

    fn call(&self, words: &[&str]) -> Outcome {
        let (verb, rest) = words.split_first().unwrap();
        let folder = self.deployed.folder();
        let mut command = command(&[&["deployment", verb, &folder][..], rest].concat());
        let path = format!("{}:{}", self.deployed.place.argument("bin"), std::env::var("PATH").unwrap());
        command
            .env("PATH", path)
            .env("OTHER_HOME", &self.home)
            .env("OTHER_LOG", self.deployed.place.path("ssh.log"));
        told(&mut command)
    }
}

#[test]
#[ignore = "long: make test-long"]
fn a_location_on_another_machine_is_operated_by_ssh() {
    if !is_there() {
        return;
    }
    let other = Other::new(Deployed::written("by-ssh", &[]), "ssh://ada@gate");
    let up = other.call(&["up", "--no-submit", "--output", "json"]).expect(0).json();
    assert_eq!(up["deployment"]["up"]["workers"].as_array().unwrap().len(), 3, "{up}");
    let machines = up["deployment"]["up"]["machines"].to_string();
    assert!(machines.contains("ada@gate"), "{machines}");
    let there = other.home.join(".local/share/tidemill").join(&other.deployed.project).join("edge");
    assert!(there.join("secrets/join-edge").exists(), "its files are not there");
    // Health checks run every few seconds.
    other.deployed.until("all are healthy", |_| other.call(&["ps"]).code == Some(0));
    let shown = other.call(&["ps", "--output", "json"]).expect(0).json();
    let edge = shown["deployment"]["services"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["service"] == "worker-edge")
        .cloned();
    assert_eq!(edge.unwrap()["machine"], "ada@gate");
    let logs = other.call(&["logs", "edge"]).expect(0).stdout;
    assert!(logs.lines().all(|line| line.starts_with("edge/worker-edge")) && !logs.is_empty(), "{logs}");
    let calls = other.deployed.place.read("ssh.log");
    assert!(calls.lines().all(|line| line.contains("BatchMode=yes")), "{calls}");
    other.call(&["down"]).expect(0);
    assert_eq!(other.deployed.left(), "");
    assert!(!there.exists(), "its files are still there");
}

#[test]
fn a_machine_that_is_not_reached_is_told() {
    if !is_there() {
        return;
    }
    let image = super::engine::Image("tidemill-test:none".to_owned());
    let other = Other::new(Deployed::written_for(image, "unreached", &[]), "ssh://ada@nobody");
    let told = other.call(&["up"]).expect(69).stderr;
    assert!(told.contains("cannot reach ada@nobody by ssh") && told.contains("No route to host"), "{told}");
    let shown = other.call(&["ps"]).expect(1).stdout;
    assert!(shown.contains("not known: cannot reach ada@nobody"), "{shown}");
}
