//! Groups of programs over the workers of a cluster; through the built binary.
use crate::cluster::Cluster;
use crate::command::{Place, command};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};

impl Cluster {
    fn net_socket(&self, worker: &str) -> PathBuf {
        self.place.path(&format!("w-{worker}/services/net/net.sock"))
    }

    /// Hosts of groups, as the service of a worker knows them: name, rack and address.
    fn hosts_at(&self, worker: &str) -> Vec<[String; 3]> {
        let socket = self.net_socket(worker).display().to_string();
        let asked = ["net", "collective", "ls", "--socket", &socket, "--output", "json"];
        let output = command(&asked).output().unwrap();
        if !output.status.success() {
            return Vec::new();
        }
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |host: &Value, key: &str| host[key].as_str().unwrap_or_default().to_owned();
        let hosts = found["listing"]["hosts"].as_array().unwrap().iter();
        let mut hosts: Vec<_> =
            hosts.map(|host| ["name", "rack", "address"].map(|key| text(host, key))).collect();
        hosts.sort();
        hosts
    }

    fn sum(&self, group: &str) -> Vec<i64> {
        std::thread::scope(|scope| {
            let ranks = ["east", "west"].into_iter().enumerate().map(|(rank, worker)| {
                let service = self.net_socket(worker);
                scope.spawn(move || {
                    let rank = u32::try_from(rank).unwrap();
                    let options = JoinOptions::new(group, rank, 2);
                    let deadline = Duration::from_secs(60);
                    let group = Group::join(&JoinOptions { service, deadline, ..options }).unwrap();
                    let buffer = group.buffer(Element::I64, 3).unwrap();
                    buffer.write(0, &[i64::from(rank), 10, 20]).unwrap();
                    group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
                    buffer.to_vec::<i64>().unwrap()
                })
            });
            let ranks: Vec<_> = ranks.collect();
            let mut results = ranks.into_iter().map(|rank| rank.join().unwrap());
            let first = results.next().unwrap();
            assert!(results.all(|result| result == first));
            first
        })
    }
}

#[test]
fn programs_of_two_workers_are_one_group() {
    let mut cluster = Cluster::without_workers(Place::empty("groups"), &["--detection", "20s"]);
    cluster.start_worker_with("east", &["--tier", "edge", "--location", "hall-1"]);
    cluster.start_worker_with("west", &["--tier", "edge", "--label", "rack=r2"]);
    cluster.until_joined(2);
    let racks = |hosts: &[[String; 3]]| -> Vec<String> {
        hosts.iter().map(|[name, rack, _]| format!("{name} {rack}")).collect()
    };
    let expected = ["east edge/hall-1", "west r2"];
    let all_know = |cluster: &Cluster| {
        ["east", "west"].iter().all(|worker| racks(&cluster.hosts_at(worker)) == expected)
    };
    cluster.until("both services know both workers", all_know);
    assert_eq!(cluster.sum("sums"), [1, 20, 40]);
    let events = cluster.ask(&["events"]).expect(0).stdout;
    assert_eq!(events.matches("introduces the ranks of groups").count(), 1, "{events}");

    // Everything is started again, and the same service introduces the ranks, at the same address.
    let before = cluster.hosts_at("west");
    for (_, mut child) in std::mem::take(&mut cluster.workers) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    cluster.start_controller();
    cluster.start_worker_with("west", &["--tier", "edge", "--label", "rack=r2"]);
    cluster.start_worker_with("east", &["--tier", "edge", "--location", "hall-1"]);
    cluster.until("both services know both workers again", all_know);
    assert_eq!(cluster.hosts_at("west"), before);
    assert_eq!(cluster.sum("sums"), [1, 20, 40]);
    let events = cluster.ask(&["events"]).expect(0).stdout;
    assert_eq!(events.matches("introduces the ranks of groups").count(), 1, "{events}");

    // A worker that joins now learns who introduces ranks while its service starts.
    cluster.start_worker_with("north", &["--tier", "edge", "--label", "rack=r3"]);
    cluster.until("all services know all workers", |cluster| {
        ["east", "north", "west"].iter().all(|worker| cluster.hosts_at(worker).len() == 3)
    });
}
