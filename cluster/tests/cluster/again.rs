//! A submission that takes the place of a run that has ended.
use crate::place::{Place, ROWS, until};
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_cluster::api::{RemovedView, RunState, RunView, Submission};
use tidemill_cluster::client::ClientError;

fn submission(place: &Place, workflow: &str, again: bool) -> Submission {
    Submission { sent_from: Some("/srv/flows".into()), again, ..place.submission("rows", workflow) }
}

fn refused(place: &Place, submission: &Submission) -> (u16, String) {
    match place.admin.post::<RunView>("/v1/runs", submission) {
        Err(ClientError::Refused { status, text }) => (status, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_is_removed_for_another_one_that_is_fit_and_for_no_other() {
    let place = Place::new();
    let runs = place.folder.path().join("controller/runs");
    let state = || place.admin.get::<RunView>("/v1/runs/rows").unwrap().state;
    let unfit = ROWS.replace("input: rows", "input: rwos");
    // Where there is none of its name, it is a submission like others.
    let first = submission(&place, ROWS, true);
    place.admin.post::<RunView>("/v1/runs", &first).unwrap();
    assert_eq!(refused(&place, &first).0, 409, "it goes on");
    place.admin.delete::<RunView>("/v1/runs/rows").unwrap();
    until("it is cancelled", || state() == RunState::Cancelled);
    std::fs::write(runs.join("rows/mark"), "of the first").unwrap();

    let (status, text) = refused(&place, &submission(&place, &unfit, true));
    assert!(status == 422 && text.contains("/srv/flows/workflow.yaml:"), "{status} {text}");
    assert_eq!(state(), RunState::Cancelled);
    assert!(runs.join("rows/mark").is_file());

    place.admin.post::<RunView>("/v1/runs", &submission(&place, ROWS, true)).unwrap();
    assert!(!state().is_over());
    assert!(runs.join("rows/files/rows.csv").is_file() && !runs.join("rows/mark").exists());
    let left: Vec<_> = std::fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["rows"], "no trial is left");
}

/// A submission of a name that is submitted and removed concurrently fails with a conflict, not with a missing file.
#[test]
fn submissions_of_one_name_that_is_removed_meanwhile_begin_or_are_refused_with_a_conflict() {
    const SUBMITTERS: usize = 8;
    let place = Place::new();
    let path = "/v1/runs/rows";
    let (going, begun) = (AtomicUsize::new(SUBMITTERS), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for submitter in 0..SUBMITTERS {
            let (place, going, begun) = (&place, &going, &begun);
            scope.spawn(move || {
                for round in 0..12 {
                    let records = Some((submitter * 100 + round + 1) as u64);
                    let wanted = Submission { records, ..submission(place, ROWS, false) };
                    match place.admin.post::<RunView>("/v1/runs", &wanted) {
                        Ok(_) => drop(begun.fetch_add(1, Ordering::Relaxed)),
                        Err(ClientError::Refused { status: 409, text }) => {
                            assert!(text.contains("`rows`"), "{text}");
                        }
                        Err(other) => {
                            going.fetch_sub(1, Ordering::Relaxed);
                            panic!("{other}");
                        }
                    }
                }
                going.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while going.load(Ordering::Relaxed) > 0 {
            // Each of these may come too late or too early.
            let _ = place.admin.delete::<RunView>(path);
            let _ = place.admin.post::<RemovedView>(&format!("{path}/remove"), &());
        }
    });
    assert!(begun.load(Ordering::Relaxed) > 0);
}
