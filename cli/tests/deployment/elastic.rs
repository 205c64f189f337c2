//! Elastic limits of containers of the real engine.
use super::engine::{Deployed, docker, is_there};
use crate::command::{command, root};
use crate::processes::kill;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use tidemill_elastic::cgroup::{Hierarchy, Limits};

/// An image with a shell, and containers of it; all are removed with this.
struct Shells {
    name: String,
    containers: Vec<String>,
}

impl Drop for Shells {
    fn drop(&mut self) {
        for container in &self.containers {
            let _ = Command::new("docker").args(["rm", "--force", container]).output();
        }
        let _ = Command::new("docker").args(["image", "rm", "--force", &self.name]).output();
    }
}

impl Shells {
    /// Based on the images, with the shell of this machine.
    fn new() -> Self {
        let name = format!("tidemill-test:shell-{}", std::process::id());
        let made = Command::new(root().join("scripts/base_images.sh")).arg("runtime").output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let dockerfile = std::fs::read_to_string(root().join("deploy/images/Dockerfile")).unwrap();
        let base = dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUNTIME_BASE=")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy("/bin/sh", folder.path().join("sh")).unwrap();
        std::fs::write(
            folder.path().join("Dockerfile"),
            format!("FROM {base}\nCOPY sh /usr/bin/sh\nENTRYPOINT [\"/usr/bin/sh\", \"-c\"]\n"),
        )
        .unwrap();
        let mut build = Command::new("docker");
        build.env("DOCKER_BUILDKIT", "0").args(["build", "--quiet", "--tag", &name]).arg(folder.path());
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { name, containers: Vec::new() }
    }

    fn label(&self) -> String {
        format!("tidemill.test={}", std::process::id())
    }

    /// One that runs a script, with half a processor and 128 MiB.
    fn start(&mut self, script: &str) -> String {
        let options =
            ["run", "--detach", "--interactive", "--network", "none", "--cpus", "0.5", "--memory", "128m"];
        let id = docker(&[&options[..], &["--label", &self.label(), &self.name, script]].concat());
        self.containers.push(id.clone());
        id
    }
}

/// The kernel's limits of a container; `None` if its processes are invisible from here, or it has none.
fn limits(container: &str) -> Option<Limits> {
    let pid: u32 = docker(&["inspect", "--format", "{{.State.Pid}}", container]).parse().unwrap();
    let hierarchy = Hierarchy::find(Path::new(Hierarchy::ROOT)).ok()?;
    let [cpu, accounting, memory] = hierarchy.paths_of(pid).ok()?;
    hierarchy.open([&cpu, &accounting, &memory]).ok()?.limits().ok()
}

const BUSY: &str = "while :; do :; done";
const IDLE: &str = "read line";

/// By a label, as a user does: one works, one waits, and one comes later.
#[test]
#[ignore = "long: make test-long"]
fn limits_of_labelled_containers_follow_and_are_put_back() {
    if !is_there() {
        return;
    }
    let mut shells = Shells::new();
    let (busy, idle) = (shells.start(BUSY), shells.start(IDLE));
    let Some(before) = limits(&busy) else {
        return eprintln!("skipped: control groups of containers are not seen from here");
    };
    assert_eq!((before.quota, before.memory), (Some(50_000), Some(128 << 20)));
    let label = shells.label();
    let mut attach = command(&[
        "elastic", "attach", &label, "--cpus", "0.9", "--memory", "300MiB", "--every", "300ms", "--for",
        "40s", "--output", "json",
    ]);
    let mut attached = attach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(attached.stdout.take().unwrap()).lines();
    let (mut moved, mut later, mut last) = (false, None, Value::Null);
    for line in lines.map_while(Result::ok) {
        last = serde_json::from_str::<Value>(&line).unwrap()["elastic"].clone();
        let members = last["members"].as_array().unwrap();
        let sum: f64 = members.iter().map(|one| one["processors"].as_f64().unwrap()).sum();
        assert!(sum <= 0.9 + 1e-9, "{last}");
        let of = |id: &str| {
            let is_it = |one: &&Value| one["name"].as_str().unwrap().contains(&id[..6]);
            members.iter().find(is_it).and_then(|one| one["processors"].as_f64())
        };
        let (Some(works), Some(waits)) = (of(&busy), of(&idle)) else { continue };
        // The quota of the busy one depends on the load of the machine: the tests of the rules check that. The idle one
        // loses its unused quota, and the kernel enforces that.
        if works >= waits && waits < 0.2 && !moved {
            moved = true;
            let held = limits(&idle).unwrap();
            assert!(held.quota.is_some_and(|quota| quota < 20_000) && held != before, "{held:?}");
            later = Some(shells.start(IDLE));
        }
        if later.as_ref().is_some_and(|later| of(later).is_some()) {
            break;
        }
    }
    let output = match attached.try_wait().unwrap() {
        None => {
            Command::new("kill").args(["-INT", &attached.id().to_string()]).status().unwrap();
            attached.wait_with_output().unwrap()
        }
        Some(_) => attached.wait_with_output().unwrap(),
    };
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    if !moved && output.contains("only root can write limits") {
        return eprintln!("skipped: this user may not write control groups");
    }
    assert!(moved, "what the idle one does not use is taken from it: {last}\n{output}");
    let later = later.unwrap();
    assert!(output.contains("included: "), "{output}\n{last}");
    for container in [&busy, &idle, &later] {
        assert_eq!(limits(container).unwrap(), before, "{output}");
    }
}

/// A deployed workflow with `resources: {mode: elastic}`: a separate container moves limits between the workers, which
/// cannot reach the engine. It is restarted when it is killed, and ends with the deployment.
#[test]
#[ignore = "long: make test-long"]
fn limits_of_a_deployed_workflow_follow_its_load() {
    if !is_there() {
        return;
    }
    let deployed = Deployed::elastic("follows");
    let up = deployed.call(&["up"]).expect(0);
    assert!(up.stderr.contains("follow their load"), "{}", up.stderr);
    let ps = deployed.call(&["ps"]).expect(0).stdout;
    assert!(ps.lines().any(|line| line.contains("elastic") && line.contains("healthy")), "{ps}");
    let elastic = deployed.service("elastic");
    let of = |service: &str| deployed.service(service)["container"].as_str().unwrap().to_owned();
    let workers = ["worker-edge", "worker-hub", "worker-cloud"].map(of);
    for worker in &workers {
        let mounts = docker(&["inspect", "--format", "{{json .Mounts}} {{.HostConfig.PidMode}}", worker]);
        assert!(
            !mounts.contains("docker.sock") && !mounts.contains("cgroup") && !mounts.contains("host"),
            "{mounts}"
        );
    }
    let container = elastic["container"].as_str().unwrap();
    let own = docker(&[
        "inspect",
        "--format",
        "{{.HostConfig.NetworkMode}} {{.HostConfig.CapDrop}} {{.HostConfig.ReadonlyRootfs}}",
        container,
    ]);
    assert_eq!(own, "none [ALL] true");
    let Some(first) = limits(&workers[0]) else {
        return eprintln!("skipped: control groups of containers are not seen from here");
    };
    // Without an infrastructure the engine sets no limits: these are the elastic container's.
    assert!(first.quota.is_some() && first.memory.is_some(), "{first:?}");
    let sum = |what: fn(&Limits) -> u64| {
        workers.iter().filter_map(|one| limits(one)).map(|one| what(&one)).sum::<u64>()
    };
    let processors = |one: &Limits| one.quota.unwrap_or_default() * 1_000_000 / one.period.max(1);
    deployed.until("limits move", |_| limits(&workers[0]).is_some_and(|now| now != first));
    // Three workers; the workflow may have 0.4 processors and 256 MiB of each.
    assert!(sum(processors) <= 1_200_000, "{}", sum(processors));
    assert!(sum(|one| one.memory.unwrap_or_default()) <= 3 * (256 << 20));
    let shown = docker(&["exec", container, "tidemill", "elastic", "show"]);
    assert!(shown.contains("3 containers"), "{shown}");
    // After a kill it is restarted, knows the original limits, and continues.
    if kill(u32::try_from(elastic["pid"].as_u64().unwrap()).unwrap()) {
        deployed.until("it is back", |deployed| {
            let now = deployed.service("elastic");
            now["pid"].is_u64() && now["pid"] != elastic["pid"] && now["state"] == "healthy"
        });
    }
    deployed.call(&["down"]).expect(0);
    assert_eq!(deployed.left(), "");
}
