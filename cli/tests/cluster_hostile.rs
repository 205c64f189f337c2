//! Peers of the controller's HTTP that do what no client does: too long, too slow, too many, wrong again and again, in the browser of
//! somebody else; through the built binary. What they do stands in `cluster_hostile/peer.py`.
use crate::cluster::Cluster;
use crate::command::root;
use std::process::{Command, Stdio};

const PEER: &str = "cli/tests/cluster_hostile/peer.py";

/// Has the peer do one thing to a controller; what it says of it.
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

/// The certificate of the authority, as the controller gives it to everybody.
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
fn who_is_slow_is_left() {
    let cluster = Cluster::start(&[]);
    does(&cluster, "slow", &[]);
}

#[test]
fn connections_make_room_for_each_other() {
    // A third of what this process may open, so that the peer can open more than the controller keeps.
    let cluster = Cluster::start_limited(200);
    does(&cluster, "many", &["180"]);
}

#[test]
fn pages_of_others_are_told_nothing_and_wrong_tokens_cost_time() {
    let cluster = Cluster::start(&["edge"]);
    does(&cluster, "pages", &[]);
    does(&cluster, "attempts", &[]);
    // The worker shows its certificate and is held up by nothing of this.
    let workers = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
    assert_eq!(workers["workers"][0]["is_alive"], true, "{workers}");
}
