//! Secrets of a cluster and of a run are only in their own files: not in output of programs, other files, arguments and
//! environments of processes, or answers; through the built binary.
use crate::buckets::{
    self,
    server::{Mood, Server},
};
use crate::cluster::Cluster;
use crate::command::{Outcome, command, tidemill};
use crate::processes::{children, place};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

/// A secret, and the files that may contain it.
struct Secret {
    name: &'static str,
    text: String,
    at_home: Vec<PathBuf>,
}

/// Names of secrets in a text.
fn found(secrets: &[Secret], text: &[u8]) -> Vec<&'static str> {
    let has = |secret: &&Secret| text.windows(secret.text.len()).any(|part| part == secret.text.as_bytes());
    secrets.iter().filter(has).map(|secret| secret.name).collect()
}

#[track_caller]
fn nothing(secrets: &[Secret], what: &str, text: impl AsRef<[u8]>) {
    let text = text.as_ref();
    let found = found(secrets, text);
    assert!(found.is_empty(), "{what} has {found:?}:\n{}", String::from_utf8_lossy(text));
}

/// All files of a folder.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), into),
            Ok(kind) if kind.is_file() => into.push(entry.path()),
            _ => {}
        }
    }
}

/// Searches secrets in other files, and checks the permissions of their own; returns the number of files.
fn look_at_files(secrets: &[Secret], folder: &Path) -> usize {
    let mut all = Vec::new();
    files(folder, &mut all);
    for path in &all {
        // Some files disappear during the run.
        let Ok(bytes) = fs::read(path) else { continue };
        for name in found(secrets, &bytes) {
            let secret = secrets.iter().find(|secret| secret.name == name).unwrap();
            assert!(secret.at_home.contains(path), "{name} stands in {}", path.display());
        }
    }
    all.len()
}

/// Checks the arguments of all readable processes of this machine, and the environments of some.
fn look_at_processes(secrets: &[Secret], environments: &[u32]) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if entry.file_name().to_string_lossy().parse::<u32>().is_ok() {
            let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            nothing(secrets, "the arguments of a process", arguments);
        }
    }
    for pid in environments {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        nothing(secrets, &format!("the environment of process {pid}"), environment);
    }
}

/// The longest line of a private key, and its file.
fn key_in(folder: &Path) -> (String, PathBuf) {
    let mut all = Vec::new();
    files(folder, &mut all);
    let of = |path: &PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        let begin = text.split_once("PRIVATE KEY-----")?.1;
        let line = begin.lines().max_by_key(|line| line.len())?.replace("\\n", "");
        Some((line.chars().take(40).collect(), path.clone()))
    };
    all.iter().find_map(of).unwrap_or_else(|| panic!("no key in {}", folder.display()))
}

/// Ends a process; returns its unread output.
fn said(child: &mut Child) -> String {
    let _ = child.kill();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut text).unwrap();
    }
    text
}

/// All answers of the controller to an admin, by path.
fn answers(cluster: &Cluster, token: &str) -> BTreeMap<String, String> {
    const ASK: &str = r#"
import json, ssl, sys, urllib.error, urllib.request as u
base, token = sys.argv[1], sys.stdin.read().strip()
context = ssl._create_unverified_context()
def ask(path):
    try:
        request = u.Request(base + path, headers={"Authorization": "Bearer " + token})
        return u.urlopen(request, context=context, timeout=30).read().decode("utf-8", "replace")
    except u.HTTPError as error:
        return error.read().decode("utf-8", "replace")
document = json.loads(ask("/v1/openapi.json"))
names = {"name": "spread", "sink": "pairs", "digest": "0" * 64, "number": "1"}
answers = {}
for path, methods in document["paths"].items():
    if "get" in methods:
        for name, value in names.items():
            path = path.replace("{" + name + "}", value)
        answers[path] = ask(path)
for path in ["/", "/metrics", "/authority.pem", "/none"]:
    answers[path] = ask(path)
json.dump(answers, sys.stdout)
"#;
    let base = cluster.address.replace("tidemill://", "https://");
    let base = base.rsplit_once('/').unwrap().0;
    // The token is no argument here either.
    fs::write(cluster.place.path("asked.token"), token).unwrap();
    let told = Command::new("python3")
        .args(["-c", ASK, base])
        .stdin(fs::File::open(cluster.place.path("asked.token")).unwrap())
        .output()
        .expect("python3 is there");
    fs::remove_file(cluster.place.path("asked.token")).unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    serde_json::from_slice(&told.stdout).unwrap()
}

#[test]
fn secrets_of_a_cluster_stay_where_they_belong() {
    let mut cluster = Cluster::start_with(&[], &["--log-level", "debug"]);
    let at = |file: &str| cluster.place.path(file);
    let person_file = at("ada.token");
    cluster
        .ask(&["people", "add", "Ada", "--role", "operator", "--write-token", person_file.to_str().unwrap()])
        .expect(0);
    let person = cluster.place.read("ada.token").trim().to_owned();
    let (key, key_file) = key_in(&at("controller/identities"));
    let mut secrets = vec![
        Secret { name: "the authority's key", text: key, at_home: vec![key_file] },
        Secret { name: "a person's token", text: person.clone(), at_home: vec![person_file] },
        Secret {
            name: "the first admin's token",
            text: cluster.place.read("controller/admin.token").trim().to_owned(),
            at_home: vec![at("controller/admin.token")],
        },
        Secret {
            name: "a join token",
            text: cluster.place.read("join.token").trim().to_owned(),
            at_home: vec![at("join.token")],
        },
    ];
    for worker in ["edge", "hub", "cloud"] {
        cluster.start_worker_with(worker, &["--tier", worker, "--log-level", "debug"]);
        let (errors, said) =
            (cluster.workers.last_mut().unwrap().1.stderr.take().unwrap(), Arc::clone(&cluster.said));
        std::thread::spawn(move || {
            let lines = BufReader::new(errors).lines().map_while(Result::ok);
            lines.for_each(|line| said.lock().unwrap().push_str(&(line + "\n")));
        });
    }
    cluster.until_joined(3);
    let at = |file: &str| cluster.place.path(file);
    let (key, key_file) = key_in(&at("w-edge"));
    secrets.push(Secret { name: "a worker's key", text: key, at_home: vec![key_file] });

    let (workflow, plan) = (cluster.place.argument("workflow.yaml"), cluster.place.argument("plan.yaml"));
    let submitted =
        cluster.ask_as(&person, &["submit", &workflow, "--plan", &plan, "--log-level", "debug"]).expect(0);
    nothing(&secrets, "what submit says", submitted.stdout + &submitted.stderr);
    // The number of a run grants access to it without TLS.
    let facts = ["cluster.json", "cluster.log"].map(|file| at("controller").join(file));
    let document = facts.each_ref().map(|file| fs::read_to_string(file).unwrap()).concat();
    let number = document.split_once("\"secret\":").unwrap().1.split('"').nth(1).unwrap().to_owned();
    assert_eq!(number.len(), 32, "{number}");
    secrets.push(Secret { name: "the number of a run", text: number, at_home: facts.into() });
    cluster.until_arrived(100);

    let agents: Vec<u32> = cluster.workers.iter().map(|(_, child)| child.id()).collect();
    let controller = cluster.controller.as_ref().unwrap().id();
    let hosts: Vec<u32> = agents.iter().flat_map(|agent| children(*agent)).collect();
    assert!(hosts.len() >= 3, "no processes of the run: {hosts:?}");
    look_at_processes(&secrets, &[agents, hosts, vec![controller]].concat());
    assert!(look_at_files(&secrets, &at("")) > 20, "no files");
    // Secrets are readable by their owner only.
    for file in secrets.iter().flat_map(|secret| &secret.at_home).filter(|path| !path.ends_with("join.token"))
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(file).unwrap().permissions());
        let parents = file.ancestors().skip(1).take_while(|folder| folder.starts_with(at("")));
        let is_closed = |folder: &Path| {
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(folder).unwrap().permissions()) & 0o077 == 0
        };
        assert!(mode & 0o077 == 0 || parents.clone().any(is_closed), "{}: {mode:o}", file.display());
    }
    let admin = cluster.place.read("controller/admin.token");
    let answers = answers(&cluster, admin.trim());
    assert!(answers.len() > 15 && answers["/metrics"].contains("tidemill_"), "{:?}", answers.keys());
    for (path, answer) in &answers {
        nothing(&secrets, &format!("the answer to {path}"), answer);
    }
    for arguments in [
        &["status", "spread"][..],
        &["logs", "spread"],
        &["events"],
        &["people", "--all"],
        &["workers"],
        &["list"],
    ] {
        let Outcome { stdout, stderr, .. } = cluster.ask(arguments);
        nothing(&secrets, &arguments.join(" "), stdout + &stderr);
    }

    // Deployed files are copied around.
    let out = cluster.place.argument("deployment");
    tidemill(&["deploy", &plan, "--out", &out]).expect(0);
    assert!(look_at_files(&secrets, &at("deployment")) > 5);

    let mut text = String::new();
    for (_, child) in &mut cluster.workers {
        text.push_str(&said(child));
    }
    text.push_str(&cluster.said.lock().unwrap());
    nothing(&secrets, "a log", &text);
    assert!(text.contains("DEBUG"), "nothing was logged in detail: {text}");
}

#[test]
#[ignore = "long: make test-long"]
fn processes_of_a_run_do_not_have_the_token_of_who_began_it() {
    let token = "tmp_markedmarkedmarkedmarkedmarkedmarkedmarkedmarked";
    let place = place();
    crate::cluster::slow_down(&place);
    let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
    let mut child = command(&["run", &workflow, "--processes", "--quiet", "--plan", &plan])
        .env("TIDEMILL_TOKEN", token)
        .spawn()
        .unwrap();
    let mut looks = 0;
    let hosts = loop {
        let hosts = children(child.id());
        // A process that has just started has its parent's environment.
        let is_begun = |pid: &u32| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|text| !text.is_empty())
                && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| {
                    text != fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default()
                })
        };
        if hosts.len() == 3 && hosts.iter().all(is_begun) {
            break hosts;
        }
        looks += 1;
        assert!(looks < 600 && child.try_wait().unwrap().is_none(), "no processes come");
        std::thread::sleep(Duration::from_millis(50));
    };
    let own = fs::read(format!("/proc/{}/environ", child.id())).unwrap();
    assert!(String::from_utf8_lossy(&own).contains(token), "the one that was begun has it");
    for pid in hosts {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(!String::from_utf8_lossy(&environment).contains(token), "process {pid}");
    }
    said(&mut child);
    child.wait().unwrap();
}

#[test]
fn the_key_of_a_bucket_stays_in_the_environment() {
    let (server, place) = (Server::start(), crate::states::place());
    let secrets =
        [Secret { name: "the key of the bucket", text: "secret-of-test".to_owned(), at_home: Vec::new() }];
    let mut child = buckets::start(&server, &place);
    assert!(buckets::waits(&server, &mut child, 2), "it ended at once");
    look_at_processes(&secrets, &[]);
    for name in server.names() {
        nothing(&secrets, &name, server.object(&name).unwrap_or_default());
    }
    let text = said(&mut child);
    child.wait().unwrap();
    nothing(&secrets, "what the run says", text);
    assert!(look_at_files(&secrets, &place.path("")) > 2);
    let workflow = place.argument("workflow.yaml");
    let told =
        buckets::tidemill(&server, &["run", &workflow, "--state", buckets::STATE, "--log-level", "debug"]);
    nothing(&secrets, "what the run says in detail", told.stdout + &told.stderr);
    // Also if the service refuses it.
    server.set(Mood::Denies);
    let told =
        buckets::tidemill(&server, &["run", &workflow, "--state", buckets::STATE, "--log-level", "debug"]);
    assert_ne!(told.code, Some(0), "{told:?}");
    nothing(&secrets, "what a refused run says", told.stdout + &told.stderr);
}
