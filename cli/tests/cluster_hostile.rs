//! Hostile HTTP peers of the controller: too long, too slow, too many requests, repeated failures, requests from another
//! site's page; through the built binary. The peer is `cluster_hostile/peer.py`.
use crate::cluster::Cluster;
use crate::command::{command, root};
use rustix::fs::{CWD, FileType, mknodat};
use std::process::{Command, Stdio};

const PEER: &str = "cli/tests/cluster_hostile/peer.py";

/// Makes the peer perform one action on a controller; returns its output.
fn does(cluster: &Cluster, part: &str, more: &[&str]) -> String {
    let place = cluster.address.strip_prefix("tidemill://").unwrap().split('/').next().unwrap();
    let place = place.replace("localhost", "127.0.0.1");
    let (authority, token) =
        (cluster.place.path("authority.pem"), cluster.place.read("controller/admin.token"));
    std::fs::write(&authority, served(&place)).unwrap();
    let told = Command::new("python3")
        .args([PEER, &place, authority.to_str().unwrap(), token.trim(), part])
        .args(more)
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .expect("python3 is there");
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success(), "{part}: {text}\n{}", String::from_utf8_lossy(&told.stderr));
    print!("{text}");
    text
}

/// The authority's certificate, as served by the controller.
fn served(place: &str) -> String {
    let told = Command::new("python3")
        .args(["-c", "import ssl,sys,urllib.request as u\nc=ssl._create_unverified_context()\nsys.stdout.write(u.urlopen('https://'+sys.argv[1]+'/authority.pem',context=c).read().decode())"])
        .arg(place)
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8(told.stdout).unwrap()
}

#[test]
fn heads_and_bodies_have_limits_and_strangers_lower_ones() {
    let cluster = Cluster::start(&[]);
    does(&cluster, "heads", &[]);
    does(&cluster, "bodies", &[]);
}

#[test]
#[ignore = "long: make test-long"]
fn who_is_slow_is_left() {
    let cluster = Cluster::start(&[]);
    does(&cluster, "slow", &[]);
}

#[test]
fn connections_make_room_for_each_other() {
    // A third of this process's limit, so that the peer can open more than the controller keeps.
    let cluster = Cluster::start_limited(200);
    does(&cluster, "many", &["180"]);
}

#[test]
fn pages_of_others_are_told_nothing_and_wrong_tokens_cost_time() {
    let cluster = Cluster::start(&["edge"]);
    does(&cluster, "pages", &[]);
    does(&cluster, "attempts", &[]);
    // The worker has its certificate and is not delayed by any of this.
    let workers = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
    assert_eq!(workers["workers"][0]["is_alive"], true, "{workers}");
}

/// Submitters of runs can use the workers' machines, but neither files nor environment of the controller.
#[test]
fn submissions_reach_nothing_of_the_controller() {
    let cluster = Cluster::start(&[]);
    let folder = cluster.place.path("controller");
    let own = ["admin.token", "identities/authority.pem"].map(|file| folder.join(file));
    let read = || own.clone().map(|file| std::fs::read(file).unwrap());
    let before = read();
    // Opening it would block for ever.
    mknodat(CWD, folder.join("pipe"), FileType::Fifo, 0o600.into(), 0).unwrap();
    does(&cluster, "submissions", &[folder.to_str().unwrap()]);
    assert!(before == read(), "what the controller had is another now");
}

/// Variables of a workflow are the submitter's, not the controller's.
#[test]
fn variables_come_with_the_submission() {
    let cluster = Cluster::start(&[]);
    cluster.place.write(
        "workflow.yaml",
        "version: 1\nname: variables\nsources:\n  - {id: rows, kind: csv, options: {path: '${ROWS:-none.csv}', columns: {n: int64}}}\n\
         sinks:\n  - {id: out, kind: jsonl, input: rows, options: {path: 'out/${HOSTILE_SITE}.jsonl'}}\n",
    );
    cluster.place.write("rows.csv", "n\n1\n");
    let token = cluster.place.read("controller/admin.token");
    let mut submit =
        command(&["submit", &cluster.place.argument("workflow.yaml"), "--one-worker", "--output", "json"]);
    submit.env("TIDEMILL_CONTROLLER", &cluster.address).env("TIDEMILL_TOKEN", token.trim());
    let told = submit.env("ROWS", "rows.csv").env("HOSTILE_SITE", "north").output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    assert_eq!(cluster.run_of("variables")["outputs"][0]["path"], "out/north.jsonl");
}

/// A token that another worker has used, or an expired one, is rejected.
#[test]
#[ignore = "long: make test-long"]
fn a_token_counts_once_and_for_as_long_as_it_is_said() {
    let mut cluster = Cluster::start(&[]);
    let join = |cluster: &Cluster, name: &str, token: &str| {
        cluster.place.write("found.token", token);
        let (state, file) =
            (cluster.place.argument(&format!("w-{name}")), cluster.place.argument("found.token"));
        let own = [
            "worker",
            "--join",
            &cluster.address,
            "--state",
            &state,
            "--token-file",
            &file,
            "--name",
            name,
            "--quiet",
        ];
        crate::command::tidemill(&own)
    };
    let token = cluster.ask(&["token"]).expect(0).stdout;
    cluster.place.write("join.token", &token);
    cluster.start_worker("edge");
    cluster.until_joined(1);
    let replayed = join(&cluster, "eve", &token);
    assert!(replayed.code.is_some_and(|code| code != 0), "{replayed:?}");
    assert!(replayed.stderr.contains("token"), "{}", replayed.stderr);
    let token = cluster.ask(&["token", "--expires", "1s"]).expect(0).stdout;
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let expired = join(&cluster, "mallory", &token);
    assert!(expired.code.is_some_and(|code| code != 0) && expired.stderr.contains("expired"), "{expired:?}");
    let workers = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
    assert_eq!(workers["workers"].as_array().unwrap().len(), 1, "{workers}");
    // Neither has created a certificate of its own.
    for name in ["eve", "mallory"] {
        let folder = cluster.place.path(&format!("w-{name}"));
        let has = |file: &str| folder.join(file).exists() || folder.join("identity").join(file).exists();
        assert!(!has("certificate.pem"), "{}", folder.display());
    }
}
