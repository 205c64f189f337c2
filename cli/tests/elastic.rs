//! `tidemill elastic`, and limits of a cluster's runs, with real control groups. If this user may create none, each test
//! prints a note and ends.
use crate::cluster::Cluster;
use crate::command::{command, tidemill};
use crate::processes::{children, place};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidemill_elastic::cgroup::{Group, Hierarchy, Version};

/// A group with a process, both of which end with the test.
struct Busy {
    hierarchy: Hierarchy,
    path: String,
    process: Child,
}

impl Busy {
    fn folders(&self) -> Vec<PathBuf> {
        ["cpu", "cpuacct", "memory"].map(|tree| self.hierarchy.folder(tree, &self.path)).to_vec()
    }

    fn group(&self) -> Box<dyn Group> {
        self.hierarchy.open_named(&self.path).unwrap()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for _ in 0..100 {
            if self.folders().iter().all(|folder| std::fs::remove_dir(folder).is_ok() || !folder.exists()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// `None`, with a message, if this machine allows no groups.
fn busy(name: &str) -> Option<Busy> {
    let none = |why: String| {
        eprintln!("skipped: {why}");
        None
    };
    let hierarchy = match Hierarchy::find(Path::new(Hierarchy::ROOT)) {
        Ok(hierarchy) => hierarchy,
        Err(error) => return none(error.to_string()),
    };
    if hierarchy.version() == Version::Two {
        return none("groups of version 2 are made by whoever has the one above".to_owned());
    }
    let path = format!("/elastic-test-{name}-{}", std::process::id());
    for tree in ["cpu", "cpuacct", "memory"] {
        let folder = hierarchy.folder(tree, &path);
        if let Err(error) = std::fs::create_dir_all(&folder) {
            return none(format!("{}: {error}", folder.display()));
        }
    }
    let process =
        Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
    let busy = Busy { hierarchy, path, process };
    for folder in busy.folders() {
        std::fs::write(folder.join("cgroup.procs"), busy.process.id().to_string()).unwrap();
    }
    Some(busy)
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..400 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{what}: not within 40 s");
}

const CAPS: [&str; 4] = ["--cpus", "0.8", "--memory", "300MiB"];

#[test]
fn limits_follow_the_load_and_are_put_back() {
    let Some(busy) = busy("follow") else { return };
    let before = busy.group().limits().unwrap();
    assert_eq!((before.quota, before.memory), (None, None));
    let own =
        ["elastic", "attach", "--group", &busy.path, "--for", "2500ms", "--every", "500ms", "-o", "json"];
    let outcome = tidemill(&[&own[..], &CAPS].concat()).expect(0);
    let lines: Vec<serde_json::Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = &lines.last().unwrap()["elastic"];
    assert_eq!(last["members"][0]["name"], busy.path.as_str());
    assert!(last["members"][0]["used_processors"].as_f64().unwrap() > 0.0, "{last}");
    assert!(last["members"][0]["processors"].as_f64().unwrap() <= 0.8, "{last}");
    assert_eq!(busy.group().limits().unwrap(), before);
    // A dry run writes nothing, and there is no cap without a limit.
    let outcome = tidemill(&[&own[..], &CAPS, &["--dry-run"]].concat()).expect(0);
    assert!(outcome.stdout.contains("\"is_dry_run\":true"), "{}", outcome.stdout);
    let told = tidemill(&["elastic", "attach", "--group", &busy.path]).expect(2).stderr;
    assert!(told.contains("has no limit of processors") && told.contains("--cpus 1.5"), "{told}");
}

#[test]
#[ignore = "long: make test-long"]
fn a_killed_agent_leaves_nothing_behind() {
    let Some(busy) = busy("killed") else { return };
    let before = busy.group().found().unwrap();
    let mut agent =
        command(&[&["elastic", "attach", "--group", &busy.path][..], &CAPS].concat()).spawn().unwrap();
    until("it has limits", || busy.group().limits().unwrap().quota.is_some());
    until("it is shown", || {
        let told = tidemill(&["elastic", "show", "-o", "json"]).stdout;
        told.contains(&busy.path) && told.contains("\"used_processors\"")
    });
    let told =
        tidemill(&["elastic", "attach", "--group", &busy.path, "--cpus", "1", "--memory", "1GiB"]).expect(69);
    assert!(told.stderr.contains("has") && told.stderr.contains("already"), "{}", told.stderr);
    assert_ne!(busy.group().found().unwrap(), before);
    agent.kill().unwrap();
    agent.wait().unwrap();
    until("the limits are put back", || busy.group().found().unwrap() == before);
    until("and forgotten", || !tidemill(&["elastic", "show"]).stdout.contains(&busy.path));
}

#[test]
fn what_is_not_attached_is_named() {
    let told = tidemill(&["elastic", "show", "typo"]).expect(1).stdout;
    assert!(told.contains("`typo` is not attached"), "{told}");
    let document = tidemill(&["elastic", "show", "typo", "-o", "json"]).expect(1).json();
    assert_eq!(document["ok"], false, "{document}");
    assert_eq!(document["elastic"], serde_json::json!([]), "{document}");
}

#[test]
fn what_cannot_be_attached_is_told() {
    let told =
        tidemill(&["elastic", "attach", "--group", "/no/such/group", "--cpus", "1", "--memory", "1GiB"]);
    assert_eq!(told.code, Some(69), "{told:?}");
    assert!(told.stderr.contains("control group"), "{}", told.stderr);
    let mut elsewhere = command(&["elastic", "attach", "a=b", "--cpus", "1", "--memory", "1GiB"]);
    let output = elsewhere.env("DOCKER_HOST", "tcp://10.0.0.1:2375").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("the engine must be here") || told.contains("no control groups"), "{told}");
    tidemill(&["elastic", "attach"]).expect(2);
}

/// Folders of a run's groups of a cluster's agent.
fn folders_of_run(process: u32) -> Option<(PathBuf, PathBuf)> {
    let hierarchy = Hierarchy::find(Path::new(Hierarchy::ROOT)).ok()?;
    let [cpu, _, memory] = hierarchy.paths_of(process).ok()?;
    Some((hierarchy.folder("cpu", &cpu), hierarchy.folder("memory", &memory)))
}

#[test]
#[ignore = "long: make test-long"]
fn runs_of_a_cluster_are_held_to_what_they_may_take() {
    for mode in ["static", "elastic", "none"] {
        let place = place();
        crate::cluster::slow_down(&place);
        let resources = format!("resources: {{mode: {mode}, processors: 0.9, memory: 1GiB}}\nrun: {{");
        if mode != "none" {
            place.change("workflow.yaml", "run: {", &resources);
        }
        let cluster = Cluster::start_in(place, &["edge"]);
        let workers = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
        let workflow = cluster.place.argument("workflow.yaml");
        cluster.ask(&["submit", &workflow, "--one-worker"]).expect(0);
        cluster.until_arrived(200);
        let processes = children(cluster.workers[0].1.id());
        let why = &workers["workers"][0]["health"]["told"]["no_control_groups"];
        if why.is_string() {
            let told = cluster.ask(&["logs", "spread"]).stdout;
            assert!(mode == "none" || told.contains("does not enforce the limits of the run"), "{told}");
            eprintln!("skipped: {why}");
            return;
        }
        let (cpu, memory) = folders_of_run(processes[0]).unwrap();
        let hierarchy = Hierarchy::find(Path::new(Hierarchy::ROOT)).unwrap();
        let open = |[cpu, memory]: [&Path; 2]| {
            let path = |tree: &str, folder: &Path| {
                let root = hierarchy.folder(tree, "");
                format!("/{}", folder.strip_prefix(root).unwrap().display())
            };
            let (cpu, memory) = (path("cpu", cpu), path("memory", memory));
            hierarchy.open([&cpu, &cpu, &memory]).unwrap()
        };
        let of_run = open([cpu.parent().unwrap(), memory.parent().unwrap()]).limits().unwrap();
        // A run without a limit has its share of the time, and leaves some memory to the agent and others.
        let of_machine = workers["workers"][0]["capacity"]["memory_bytes"].as_u64().unwrap();
        match mode {
            "none" => {
                assert_eq!(of_run.quota, None);
                let most = of_run.memory.unwrap();
                assert!(most.abs_diff(of_machine - of_machine / 10) < 1 << 16, "{most} of {of_machine}");
            }
            _ => assert_eq!((of_run.quota, of_run.memory), (Some(90_000), Some(1 << 30)), "{mode}"),
        }
        let own = || open([cpu.as_path(), memory.as_path()]).limits().unwrap();
        match mode {
            "static" | "none" => assert_eq!((own().quota, own().memory), (None, None)),
            _ => until("its own limits follow", || {
                let own = own();
                own.quota.is_some_and(|quota| quota <= 90_000)
                    && own.memory.is_some_and(|most| most <= 1 << 30)
            }),
        }
        assert!(cluster.ask(&["workers"]).stdout.contains("enforced"));
        cluster.ask(&["cancel", "spread"]).expect(0);
        cluster.until("it is cancelled", |cluster| cluster.run()["state"] == "cancelled");
        until("the groups are gone", || {
            !cpu.parent().unwrap().exists() && !memory.parent().unwrap().exists()
        });
    }
}
