//! Failures of the storage of a run with a state: full or read-only disks, damaged or missing objects, a bucket that does
//! not answer. Each has a reported outcome, and no committed data is lost.
use crate::buckets;
use crate::buckets::server::{Mood, Server};
use crate::command::{Outcome, Place, tidemill};
use crate::full_disk::in_own_mounts;
use crate::processes;
use crate::states::{checkpoint, outputs, place, same, start, undisturbed, waits};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Functions of the scripts below: the number of the last checkpoint; `reached N`, which waits for it; `until TEXT`, which waits for
/// a line in the log; `full`, which fills the disk; `ended`, which waits for the run and keeps its code.
const FUNCTIONS: &str = r#"
mkdir -p disk && mount -t tmpfs -o size=6m small disk || exit 250
number() { sed -n 's/.*"checkpoint": \([0-9]*\).*/\1/p' disk/state/manifest.json 2>/dev/null | head -n 1; }
waited() { tries=$((${tries:-0} + 1)); [ $tries -lt 6000 ] || { echo "$1 never came" >&2; cat log >&2; exit 251; }; sleep 0.01; }
reached() { until [ "$(number)" ] && [ "$(number)" -ge "$1" ]; do waited "checkpoint $1"; done; }
until_told() { until grep -q "$1" log; do waited "$1"; done; }
full() { cat /dev/zero > disk/filler 2>/dev/null; }
begin() { "$TIDEMILL" run workflow.yaml --state disk/state --checkpoint-interval 50ms --quiet "$@" >/dev/null 2>log & run=$!; }
ended() { wait $run; code=$?; cat log >&2; }
again() { "$TIDEMILL" run workflow.yaml --state disk/state --quiet "$@" >/dev/null 2>log; code=$?; cat log >&2; }
finish() { [ "$code" = "${1:-0}" ] || { echo "exit code $code, ${1:-0} expected" >&2; exit 252; }; }
kept() { rm -rf left; cp -a disk left; }
"#;

fn script(place: &Place, steps: &str) -> Option<Outcome> {
    in_own_mounts(place, &format!("{FUNCTIONS}\n{steps}"))
}

/// A temporarily full disk of the state fails nothing.
#[test]
fn a_state_waits_for_space() {
    let place = place();
    let steps = "begin; reached 5; full; until_told 'a checkpoint cannot be written'; rm disk/filler
        reached $(($(number) + 2)); ended; finish";
    let Some(outcome) = script(&place, steps) else { return };
    let printed = outcome.expect(0).stderr;
    for part in ["no space left to write", "free some", "the state from before is kept"] {
        assert!(printed.contains(part), "{printed}");
    }
    same(&outputs(&place), &undisturbed());
}

/// One that is still full when the data ends: the outputs are whole, the run reports that it could not record that, and
/// repeating the command does so later.
#[test]
#[ignore = "long: make test-long"]
fn a_run_whose_last_checkpoint_finds_no_space_is_ended_by_the_same_command() {
    let place = place();
    let steps = "begin; reached 5; full; before=$(number); ended; finish 69
        [ $(number) = $before ] || exit 253; rm disk/filler; again; finish; kept";
    let Some(outcome) = script(&place, steps) else { return };
    let printed = outcome.expect(0).stderr;
    for part in ["error: the last checkpoint cannot be written", "no space left", "committed rows stay"] {
        assert!(printed.contains(part), "{printed}");
    }
    same(&outputs(&place), &undisturbed());
    assert_eq!(place.files("left/state/objects"), Vec::<String>::new());
}

#[test]
#[ignore = "long: make test-long"]
fn a_state_that_finds_no_space_for_30_seconds_ends_the_run() {
    let place = place();
    place.change("workflow.yaml", "rate: 4000/s", "rate: 200/s");
    place.change("workflow.yaml", "rate: 2000/s", "rate: 100/s");
    let steps = "begin; reached 5; full; before=$(number); ended; finish 69
        [ $(number) = $before ] || exit 253; rm disk/filler; again --for 1s; finish 0; kept";
    let Some(outcome) = script(&place, steps) else { return };
    let printed = outcome.expect(0).stderr;
    assert!(printed.contains("no space left") && printed.contains("committed rows stay"), "{printed}");
}

/// A read-only folder, first for a while, then permanently.
#[test]
#[ignore = "long: make test-long"]
fn a_state_in_a_folder_that_becomes_read_only_waits_and_says_so() {
    let place = place();
    let lock = "mount --bind disk/state disk/state && mount -o remount,bind,ro disk/state || exit 250";
    let steps = format!(
        "begin; reached 5; {lock}; until_told 'a checkpoint cannot be written'; umount disk/state
        reached $(($(number) + 2)); {lock}; before=$(number); ended; finish 69
        [ $(number) = $before ] || exit 253; again; finish 69; umount disk/state; again; finish"
    );
    let Some(outcome) = script(&place, &steps) else { return };
    let printed = outcome.expect(0).stderr;
    for part in
        ["error: the last checkpoint cannot be written", "Read-only file system", "make its folder writable"]
    {
        assert!(printed.contains(part), "{printed}");
    }
    assert!(!printed.contains("was not written again"), "the reason is hidden: {printed}");
    same(&outputs(&place), &undisturbed());
}

/// Nothing starts if no state can be kept.
#[test]
fn a_state_in_a_folder_that_is_read_only_is_refused_before_anything_is_touched() {
    let place = place();
    let steps = "mount -o remount,ro disk || exit 250; again; finish 69; [ ! -e out ] || exit 253";
    let Some(outcome) = script(&place, steps) else { return };
    let printed = outcome.expect(0).stderr;
    assert!(printed.contains("disk/state") && printed.contains("Read-only file system"), "{printed}");
}

/// A sink's disk: its content is kept, and repeating the command continues when there is space.
#[test]
fn a_sink_without_space_is_continued() {
    let place = place();
    for sink in ["pairs.jsonl", "counted.csv", "counted.parquet"] {
        place.change("workflow.yaml", &format!("out/{sink}"), &format!("disk/{sink}"));
    }
    let steps = "begin; reached 5; full; ended; finish 69; rm disk/filler; again; finish;
        mkdir -p out && cp disk/pairs.jsonl disk/counted.csv disk/counted.parquet out/";
    let Some(outcome) = script(&place, steps) else { return };
    let printed = outcome.expect(0).stderr;
    for part in ["failed", "No space left", "free some space", "committed rows"] {
        assert!(printed.contains(part), "{printed}");
    }
    same(&outputs(&place), &undisturbed());
}

/// Here the sinks are in separate processes.
#[test]
#[ignore = "long: make test-long"]
fn a_sink_of_a_workers_process_without_space_is_continued() {
    let place = processes::place();
    for sink in ["pairs.jsonl", "counted.csv"] {
        place.change("workflow.yaml", &format!("out/{sink}"), &format!("disk/{sink}"));
    }
    let steps = "begin --plan plan.yaml --processes; reached 5; full; ended; finish 69; rm disk/filler
        again --plan plan.yaml --processes; finish; mkdir -p out && cp disk/pairs.jsonl disk/counted.csv out/";
    let Some(outcome) = script(&place, steps) else { return };
    let printed = outcome.expect(0).stderr;
    for part in ["failed", "No space left", "free some space", "committed rows"] {
        assert!(printed.contains(part), "{printed}");
    }
    processes::same(&processes::outputs(&place), &processes::undisturbed());
}

/// Outputs and state, to check that nothing was changed.
fn files(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for folder in ["out", "state", "state/objects"] {
        for entry in std::fs::read_dir(place.path(folder)).unwrap().flatten() {
            // The lock has its last holder.
            if entry.file_type().unwrap().is_file() && entry.file_name() != "lock" {
                found.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// A run that was killed while it had snapshots and calls in its state.
fn killed() -> Place {
    let place = place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 6));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!checkpoint(&place).1);
    place
}

/// Each object, and the manifest: damaged, truncated, empty, missing. The run is refused with the name; restored, it
/// continues.
#[test]
fn a_state_that_is_damaged_is_refused_and_goes_on_from_a_copy() {
    let place = killed();
    let workflow = place.argument("workflow.yaml");
    let arguments = ["run", &workflow, "--state", &place.argument("state"), "--quiet"];
    let before = files(&place);
    let manifest = place.path("state/manifest.json");
    let text = String::from_utf8(before[&manifest].clone()).unwrap();
    let of_state = before.iter().filter(|(path, _)| {
        // Objects left by the kill are unreferenced.
        let name = path.file_name().unwrap().to_str().unwrap();
        path.starts_with(place.path("state")) && (**path == manifest || text.contains(name))
    });
    let of_state: Vec<_> = of_state.collect();
    assert!(of_state.len() >= 3, "{} objects", of_state.len() - 1);
    for (path, content) in of_state {
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut flipped = content.clone();
        flipped[content.len() / 2] ^= 1;
        let changes = [Some(flipped), Some(content[..content.len() - 5].to_vec()), Some(Vec::new()), None];
        for change in changes.iter().filter(|change| change.is_some() || *path != manifest) {
            match change {
                Some(bytes) => std::fs::write(path, bytes).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            let changed = files(&place);
            let refused = tidemill(&arguments);
            assert_eq!(
                refused.code,
                Some(65),
                "{name}, {:?} of {} bytes",
                change.as_ref().map(Vec::len),
                content.len()
            );
            let printed = refused.stderr;
            assert!(
                printed.contains(name) || *path == manifest && printed.contains("manifest"),
                "{name}: {printed}"
            );
            // Objects left by the kill are unreferenced, and may be removed.
            let found = files(&place);
            let is_known = |path: &Path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                !path.starts_with(place.path("state")) || !name.ends_with(".object") || text.contains(name)
            };
            let touched = changed.keys().filter(|path| found.get(*path) != changed.get(*path));
            let touched: Vec<_> = touched.filter(|path| is_known(path)).collect();
            assert!(touched.is_empty(), "{touched:?} was touched: {printed}");
            std::fs::write(path, content).unwrap();
        }
    }
    tidemill(&arguments).expect(0);
    same(&outputs(&place), &undisturbed());
}

/// The damaged object is in a bucket.
#[test]
#[ignore = "long: make test-long"]
fn a_bucket_with_a_damaged_object_is_refused_and_goes_on_from_a_copy() {
    let (server, place) = (Server::start(), place());
    let mut child = buckets::start(&server, &place);
    assert!(buckets::waits(&server, &mut child, 6));
    buckets::kill(child);
    let arguments = ["run", &place.argument("workflow.yaml"), "--state", buckets::STATE, "--quiet"];
    let manifest = server.object("runs/durable/manifest.json").unwrap();
    let text = String::from_utf8(manifest).unwrap();
    let names = server.names().into_iter().filter(|name| text.contains(name.rsplit('/').next().unwrap()));
    let names: Vec<String> = names.collect();
    assert!(names.len() >= 2, "{names:?}");
    for name in names {
        let content = server.object(&name).unwrap();
        for change in
            [Some(content[1..].to_vec()), Some([&content[..content.len() - 1], b"?"].concat()), None]
        {
            match &change {
                Some(bytes) => server.put(&name, bytes),
                None => server.remove(&name),
            }
            let printed = buckets::tidemill(&server, &arguments).expect(65).stderr;
            assert!(printed.contains(name.rsplit('/').next().unwrap()), "{name}: {printed}");
            assert_eq!(server.object(&name), change, "{name} was touched");
            server.put(&name, &content);
        }
    }
    buckets::tidemill(&server, &arguments).expect(0);
    same(&outputs(&place), &undisturbed());
}

/// An object that is damaged during the run is noticed when a worker's process dies and needs it, or never if a newer one
/// has replaced it.
#[test]
#[ignore = "long: make test-long"]
fn a_damaged_object_that_a_lost_worker_needs_ends_the_run() {
    let mut noticed = 0;
    for _ in 0..5 {
        let place = processes::place();
        place.change("workflow.yaml", "rate: 4000/s", "rate: 1500/s");
        place.change("workflow.yaml", "rate: 2000/s", "rate: 750/s");
        let mut child = processes::start_with(&place, true, "700ms");
        if !waits(&place, &mut child, 3) {
            child.wait().unwrap();
            continue;
        }
        let workers = processes::children(child.id());
        let objects = place.path("state/objects");
        let damaged: BTreeMap<PathBuf, Vec<u8>> = std::fs::read_dir(&objects)
            .unwrap()
            .flatten()
            .filter_map(|entry| Some((entry.path(), std::fs::read(entry.path()).ok()?)))
            .collect();
        for (path, content) in &damaged {
            std::fs::write(path, &content[..content.len() / 2]).unwrap();
        }
        println!("{} objects are damaged", damaged.len());
        let killed = workers.iter().filter(|worker| processes::kill(**worker)).count();
        // A run that waits for workers that never start would never end.
        let ended = (0..12_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            child.try_wait().unwrap().is_some()
        });
        if !ended {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(ended, "the run does not end: {printed}");
        assert!(killed > 0 && workers.iter().all(|worker| processes::gone(*worker)), "{printed}");
        if output.status.code() == Some(69) && printed.contains(".object") {
            noticed += 1;
        } else {
            println!("not noticed: {:?} {printed}", output.status);
        }
        // Existing ones are restored from a copy.
        for (path, content) in damaged.iter().filter(|(path, _)| path.exists()) {
            std::fs::write(path, content).unwrap();
        }
        let again = processes::start_with(&place, true, "700ms").wait_with_output().unwrap();
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
        processes::same(&processes::outputs(&place), &processes::undisturbed());
        if noticed > 0 {
            return;
        }
    }
    panic!("no run needed a damaged object");
}

/// A bucket that does not answer for longer than a run waits.
#[test]
#[ignore = "long: make test-long"]
fn a_bucket_that_stays_away_ends_the_run_and_the_same_command_goes_on() {
    let (server, place) = (Server::start(), place());
    place.change("workflow.yaml", "rate: 4000/s", "rate: 80/s");
    place.change("workflow.yaml", "rate: 2000/s", "rate: 40/s");
    let mut child = buckets::start(&server, &place);
    assert!(buckets::waits(&server, &mut child, 5));
    server.set(Mood::FailsAfter(0));
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{printed}");
    assert!(printed.contains("503") && printed.contains("committed rows stay"), "{printed}");
    server.set(Mood::Serves);
    let arguments = ["run", &place.argument("workflow.yaml"), "--state", buckets::STATE, "--for", "1s"];
    let printed = buckets::tidemill(&server, &arguments).expect(0).stderr;
    assert!(printed.contains("continues from the state"), "{printed}");
}
