//! Cameras that are added, removed, paused and resumed while a source is read.
use crate::server::{LIMIT, Server};
use crate::watched::Watched;
use std::time::Instant;
use tidemill_operators::feeds::{FeedOrder, FeedState};

fn add(feed: &str, address: String) -> FeedOrder {
    FeedOrder::Add { feed: feed.to_owned(), address }
}

fn remove(feed: &str) -> FeedOrder {
    FeedOrder::Remove { feed: feed.to_owned() }
}

#[test]
fn cameras_are_added_paused_resumed_and_removed() {
    let Some(server) = Server::start(&[]) else { return };
    let at = |path: &str| format!("rtsp://127.0.0.1:{}/{path}", server.port);
    let mut watched = Watched::start(&format!("{{cameras: {{gate: '{}'}}, idle: 50ms}}", at("plain")));
    watched.frames("gate", 5);
    watched.order(&add("dock", at("b"))).unwrap();
    watched.frames("dock", 5);
    watched.order(&FeedOrder::Pause { feed: "gate".to_owned() }).unwrap();
    watched.until_state("gate", FeedState::Paused);
    let of_gate = watched.of("gate").count();
    watched.frames("dock", 20);
    assert!(watched.of("gate").count() <= of_gate + 1, "one may have been on its way");
    watched.order(&FeedOrder::Resume { feed: "gate".to_owned() }).unwrap();
    watched.frames("gate", 5);
    assert_eq!(watched.feed("gate").connects, 2);
    watched.order(&remove("gate")).unwrap();
    assert_eq!(watched.status().len(), 1);
    let of_gate = watched.of("gate").count();
    watched.frames("dock", 20);
    assert_eq!(watched.of("gate").count(), of_gate);
    for (order, part) in [
        (add("dock", at("b")), "there is a camera `dock` already"),
        (add("yard", "10.0.0.7".to_owned()), "write `rtsp://HOST/PATH`"),
        (add("", at("b")), "has no name"),
        (remove("gate"), "(dock)"),
        (FeedOrder::Pause { feed: "gate".to_owned() }, "there is no camera `gate`"),
    ] {
        let reason = watched.order(&order).unwrap_err();
        assert!(reason.contains(part), "{reason}");
    }
}

/// Threads, open files and children of this process.
fn kept() -> (usize, usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children = children.map(|all| all.split_whitespace().count()).sum();
    (count("/proc/self/task"), count("/proc/self/fd"), children)
}

#[test]
fn a_thousand_cameras_come_and_go_and_leave_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let at = |path: &str| format!("rtsp://127.0.0.1:{}/{path}", server.port);
    let mut watched = Watched::start(&format!("{{cameras: {{gate: '{}'}}, idle: 10ms}}", at("plain")));
    watched.frames("gate", 10);
    let before = kept();
    for turn in 0..1000 {
        watched.order(&add("dock", at("plain"))).unwrap();
        // Some are removed while they connect, some when they give pictures.
        match turn % 50 {
            49 => watched.frames("dock", 1),
            10 | 20 => watched.read(),
            _ => {}
        }
        watched.order(&remove("dock")).unwrap();
    }
    watched.frames("gate", 10);
    let start = Instant::now();
    loop {
        watched.read();
        let after = kept();
        if after.0 <= before.0 && after.1 <= before.1 && after.2 <= before.2 {
            break;
        }
        assert!(start.elapsed() < LIMIT, "before {before:?}, after {after:?}");
    }
    assert_eq!(watched.feed("gate").connects, 1);
}
