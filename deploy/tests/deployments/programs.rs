//! The written files are accepted by the programs that read them: Compose, Kubernetes' published schemas, systemd.
use crate::case::{self, CASES};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidemill_deploy::Target;

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn folders(within: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(within).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

/// Version 2 as a plugin of `docker`, and version 1 as a separate program; the installed ones.
fn composes() -> Vec<Vec<&'static str>> {
    let all = vec![vec!["docker", "compose"], vec!["docker-compose"]];
    let is_here = |command: &Vec<&str>| {
        let output = Command::new(command[0]).args(&command[1..]).arg("version").output();
        output.is_ok_and(|output| output.status.success())
    };
    all.into_iter().filter(is_here).collect()
}

#[test]
fn compose_takes_the_files() {
    let composes = composes();
    if composes.is_empty() {
        return eprintln!("skipped: Compose is not on this machine: apt-get install docker-compose");
    }
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        case::write(&case.files(Target::Compose), folder.path());
        let locations = folders(folder.path());
        let locations: Vec<_> = locations.iter().filter(|path| path.join("compose.yaml").exists()).collect();
        assert!(!locations.is_empty());
        for location in locations {
            let mut files = vec!["--file", "compose.yaml"];
            if location.join("compose.gpu.yaml").exists() {
                files.extend(["--file", "compose.gpu.yaml"]);
            }
            for compose in &composes {
                let output = Command::new(compose[0])
                    .args(&compose[1..])
                    .args(["--project-name", "x"])
                    .args(&files)
                    .arg("config")
                    .current_dir(location)
                    .output()
                    .unwrap();
                let told = told(&output);
                let name = location.file_name().unwrap().display();
                assert!(output.status.success(), "{} {name} {compose:?}: {told}", case.name);
                // Values are unescaped correctly: prices have one dollar sign again in the container, so two in a file.
                assert!(!told.contains("variable is not set"), "{told}");
                assert!(told.contains("65532:65532") && told.contains("no-new-privileges:true"), "{told}");
            }
        }
    }
}

#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return eprintln!("skipped: systemd-analyze is not on this machine: apt-get install systemd");
    }
    for case in CASES.iter().filter(|case| case.targets.contains(&Target::Systemd)) {
        let folder = tempfile::tempdir().unwrap();
        case::write(&case.files(Target::Systemd), folder.path());
        let mut units = Vec::new();
        for location in folders(folder.path()) {
            for entry in std::fs::read_dir(location).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|end| end == "service") {
                    // The program need not be installed on the testing machine.
                    let text = std::fs::read_to_string(&path).unwrap();
                    std::fs::write(&path, text.replace("/usr/local/bin/tidemill", "/bin/true")).unwrap();
                    units.push(path);
                }
            }
        }
        assert!(units.len() >= 2, "{units:?}");
        let output =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output().unwrap();
        let told = told(&output);
        let own: Vec<&str> = told.lines().filter(|line| line.contains("tidemill")).collect();
        assert!(output.status.success() && own.is_empty(), "{told}");
    }
}

#[test]
fn manifests_are_what_the_published_schemas_say() {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/check_manifests.sh");
    for case in CASES.iter().filter(|case| case.targets.contains(&Target::Kubernetes)) {
        let folder = tempfile::tempdir().unwrap();
        case::write(&case.files(Target::Kubernetes), folder.path());
        let manifests = folder.path().join("kubernetes");
        let check = || Command::new("bash").arg(&script).arg(&manifests).output().unwrap();
        let output = check();
        if output.status.code() == Some(69) {
            return eprintln!("skipped: {}", told(&output).trim());
        }
        assert!(output.status.success(), "{}: {}", case.name, told(&output));
        // The check finds mistakes.
        let path = manifests.join("20-controller.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("replicas: 1"), "{text}");
        std::fs::write(&path, text.replace("replicas: 1", "replicas: one")).unwrap();
        let output = check();
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    }
}
