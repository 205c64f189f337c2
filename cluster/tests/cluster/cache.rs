//! A worker whose files are removed from outside.
use crate::place::{Place, ROWS, until};
use std::path::PathBuf;
use tidemill_cluster::api::{Bundle, ControllerView, Event, RunView};

fn submit(place: &Place, name: &str) -> Bundle {
    let submission = place.submission(name, ROWS);
    place.admin.post::<RunView>("/v1/runs", &submission).unwrap();
    submission.bundle
}

#[test]
fn a_worker_that_lost_its_files_says_so_and_fetches_them_again() {
    let mut place = Place::new();
    let token = place.join_token(1);
    // Its processes end at once: here it is about files.
    place.agent("edge", &token, &["false"]);
    let bundle = submit(&place, "first");
    let kept: Vec<PathBuf> = {
        let folder = place.folder.path().join("edge/files");
        bundle.files.iter().map(|file| folder.join(&file.digest)).collect()
    };
    until("the worker has the files", || kept.iter().all(|path| path.is_file()));
    let sent = || place.admin.get::<ControllerView>("/v1/controller").unwrap().files_sent_bytes;
    let before = sent();
    std::fs::remove_dir_all(place.folder.path().join("edge/files")).unwrap();
    let told = || {
        let events: Vec<Event> = place.admin.get("/v1/events?after=0&wait=0").unwrap();
        events.into_iter().find(|event| event.kind == "files_lost")
    };
    until("it says so", || told().is_some());
    let event = told().unwrap();
    assert_eq!(event.worker.as_deref(), Some("edge"));
    assert!(event.text.contains("has lost 2 kept files"), "{}", event.text);
    submit(&place, "second");
    until("it has them again", || kept.iter().all(|path| path.is_file()));
    assert!(sent() > before, "they are not from the folder of the first run");
}
