//! Runs on devices with TLS: certificates of files, and those of a cluster; through the built binary.
use crate::cluster::Cluster;
use crate::command::{Outcome, Place, command, tidemill};
use crate::devices;
use crate::live::until;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use tidemill_identity::{Authority, JoinRequest, JoinTokenOptions, Lifetimes, NewKey, Timestamp};

/// An authority and the files of its members.
pub(crate) struct Files(Place);

impl Files {
    pub(crate) fn new(name: &str, members: &[&str]) -> Self {
        let place = Place::empty(name);
        let now = Timestamp::now();
        let authority =
            Authority::open_or_create(&place.path("authority"), Lifetimes::default(), now).unwrap();
        for member in members {
            let token = authority.create_join_token(&JoinTokenOptions::default(), "test", now).unwrap();
            let key = NewKey::generate().unwrap();
            let request = JoinRequest {
                token: token.reveal().to_string(),
                request_pem: key.request_pem().to_owned(),
                name: Some(member.parse().unwrap()),
                location: None,
                tier: None,
            };
            let issued = authority.redeem(&request, now).unwrap();
            place.write(&format!("{member}.pem"), issued.chain_pem);
            place.write(&format!("{member}.key"), key.key_pem().as_str());
            place.write("authority.pem", issued.authority_pem);
        }
        Self(place)
    }

    /// The options of a member; `before` begins their names.
    pub(crate) fn options(&self, before: &str, member: &str) -> Vec<String> {
        let files = [
            ("certificate", format!("{member}.pem")),
            ("key", format!("{member}.key")),
            ("authority", "authority.pem".to_owned()),
        ];
        let pairs = files.map(|(name, file)| [format!("--{before}{name}"), self.0.argument(&file)]);
        pairs.into_iter().flatten().collect()
    }
}

/// A device in a process of its own, which ends with this.
struct Served(Child, String);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Served {
    fn start(name: &str, cache: &Path, more: &[&str]) -> Self {
        let device = format!("{name}-{}", std::process::id());
        let cache = cache.display().to_string();
        let own =
            ["device", "serve", "--listen", "tcp://127.0.0.1:0", "--device", &device, "--backend", "rten"];
        let mut command = command(&[&own[..], &["--cache", &cache], more].concat());
        let served = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(), device);
        until(|| served.listed().is_some());
        served
    }

    fn listed(&self) -> Option<Value> {
        let outcome = tidemill(&["device", "ls", "--device", &self.1, "--output", "json"]);
        let listed = (outcome.code == Some(0)).then(|| outcome.json()["devices"][0].clone())?;
        listed["addresses"][0].is_string().then_some(listed)
    }

    /// `HOST:PORT`.
    fn place(&self) -> String {
        let listed = self.listed().expect("it serves");
        listed["addresses"][0].as_str().unwrap().strip_prefix("tcp://").unwrap().to_owned()
    }
}

fn run(place: &Place, device: &str, more: &[String]) -> Outcome {
    place.write("plan.yaml", devices::plan(device));
    let [workflow, plan, report] =
        ["workflow.yaml", "plan.yaml", "report.json"].map(|file| place.argument(file));
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    tidemill(&[&devices::arguments(&workflow, &plan, &report)[..], &more].concat())
}

/// The message of a run that failed.
#[track_caller]
fn refused(outcome: &Outcome) -> String {
    assert_ne!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.stderr.clone()
}

#[test]
fn a_run_computes_on_a_device_with_tls() {
    let place = devices::place(12);
    let (expected, _) = devices::run(&place, "cpu");
    let files = Files::new("tls", &["hub", "edge"]);
    let of_device = files.options("", "hub");
    let of_device: Vec<&str> = of_device.iter().map(String::as_str).collect();
    let served = Served::start("tls", &files.0.path("cache"), &of_device);
    let of_run = files.options("device-", "edge");
    let device = format!("device:tls://{}", served.place());
    for more in [vec![], vec!["--processes".to_owned()]] {
        std::fs::remove_dir_all(place.path("out")).unwrap();
        run(&place, &device, &[of_run.clone(), more].concat()).expect(0);
        assert!(place.read("out/seen.jsonl") == expected, "the rows differ");
    }
    assert!(served.listed().unwrap()["runs"].as_u64() >= Some(2), "{:?}", served.listed());
    // The certificate is wanted, and that of another authority is none.
    let told = refused(&run(&place, &device, &[]));
    assert!(told.contains("--device-certificate FILE"), "{told}");
    let told = refused(&run(&place, &format!("device:tcp://{}", served.place()), &[]));
    assert!(told.contains("write `tls://HOST:PORT`"), "{told}");
    let strangers = Files::new("tls-strangers", &["edge"]);
    let told = refused(&run(&place, &device, &strangers.options("device-", "edge")));
    assert!(told.contains("no TLS with the device"), "{told}");
    // The device refuses those whom its authority does not certify, although they trust it.
    let mut mixed = strangers.options("device-", "edge");
    mixed[5] = files.0.argument("authority.pem");
    let told = refused(&run(&place, &device, &mixed));
    assert!(told.contains("no TLS with the device"), "{told}");
    let told = run(&place, "cpu", &of_run).expect(2).stderr;
    assert!(told.contains("no device of the plan has TLS") && told.contains("tls://HOST:PORT"), "{told}");
}

#[test]
fn a_device_without_tls_is_no_device_with_tls() {
    let place = devices::place(2);
    let files = Files::new("tls-plain", &["edge"]);
    let served = Served::start("tls-plain", &files.0.path("cache"), &[]);
    let device = format!("device:tls://{}", served.place());
    let told = refused(&run(&place, &device, &files.options("device-", "edge")));
    assert!(told.contains("has no TLS") && told.contains("--certificate"), "{told}");
}

/// The device has a certificate of the cluster, and so have the workers, whose options do not change.
#[test]
fn a_device_that_joined_a_cluster_serves_its_workers() {
    let place = devices::place(12);
    let (expected, _) = devices::run(&place, "cpu");
    let cluster = Cluster::start_in(place, &["here"]);
    let device = format!("joined-{}", std::process::id());
    let token = cluster.ask(&["token", "--name", &device]).expect(0).stdout;
    cluster.place.write("join-device", format!("{}\n{token}", cluster.address));
    let (join, state) = (cluster.place.argument("join-device"), cluster.place.argument("device"));
    let joins = ["--join-file", &join, "--state", &state];
    let mut served = Served::start("joined", &cluster.place.path("cache"), &joins);
    // Its certificate is in its folder: the token is used up, and not needed again.
    served.0.kill().unwrap();
    served.0.wait().unwrap();
    let served = Served::start("joined", &cluster.place.path("cache"), &joins);
    let plan = devices::plan(&format!("device:tls://{}", served.place()));
    cluster.place.write("plan.yaml", plan);
    cluster.submit().expect(0);
    cluster.until("it is complete", |cluster| cluster.run_of("seen")["state"] == "complete");
    cluster.ask(&["results", "seen", "--out", &cluster.place.argument("results")]).expect(0);
    assert!(cluster.place.read("results/examples/seen/out/seen.jsonl") == expected, "the rows differ");
    assert!(served.listed().unwrap()["runs"].as_u64() > Some(0), "{:?}", served.listed());
    // It runs no stages: only the worker is listed.
    let workers = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
    assert_eq!(workers["workers"].as_array().unwrap().len(), 1, "{workers}");
    let told = refused(&run(&cluster.place, &format!("device:tls://{}", served.place()), &[]));
    assert!(told.contains("--device-certificate FILE"), "{told}");
}
