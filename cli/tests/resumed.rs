//! Runs that continue from a state: with changed sources, with other limits, and reports over all their parts.
use crate::command::{Place, command, root, tidemill};
use crate::states::{checkpoint, outputs, place, same, start, undisturbed, waits};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

/// A run that was killed after some checkpoints.
fn killed() -> Place {
    let place = place();
    kill(&place);
    place
}

fn kill(place: &Place) {
    let mut child = start(place);
    assert!(waits(place, &mut child, 8), "it had come to its end");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!checkpoint(place).1);
}

fn run(place: &Place, more: &[&str]) -> crate::command::Outcome {
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    tidemill(&[&["run", &workflow, "--state", &state, "--checkpoint-interval", "50ms"][..], more].concat())
}

/// Outputs and state, to check that nothing was changed.
fn files(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for folder in ["out", "state"] {
        for entry in std::fs::read_dir(place.path(folder)).unwrap().flatten() {
            if entry.file_type().unwrap().is_file() && entry.file_name() != "lock" {
                found.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

#[test]
fn a_source_file_that_is_not_what_it_was_is_refused_before_anything_is_touched() {
    let place = killed();
    let (file, before) = (place.read("left.csv"), files(&place));
    assert!(file.len() > 200_000);
    let last_line = file.trim_end().rfind('\n').unwrap() + 1;
    let changed = |at: usize, with: &str| [&file[..at], with, &file[at + with.len()..]].concat();
    let cases = [
        ("shortened", file[..last_line].to_owned(), format!("had {} bytes", grouped(file.len()))),
        ("first line", changed(15, "k99"), "with other content".to_owned()),
        ("last line", changed(last_line, "k99"), "with other content".to_owned()),
        ("one more in front", format!("key,at,value\nk00,1,1\n{}", &file[13..]), "more bytes".to_owned()),
        ("replaced", place.read("right.csv").replace("weight", "value"), "had ".to_owned()),
    ];
    for (what, content, printed) in cases {
        place.write("left.csv", content);
        let refused = run(&place, &[]).expect(65).stderr;
        assert!(
            refused.contains("source `left` cannot continue") && refused.contains("left.csv"),
            "{what}: {refused}"
        );
        assert!(refused.contains(&printed) && refused.contains("state reset"), "{what}: {refused}");
        assert_eq!(files(&place), before, "{what}: something was touched");
    }
    place.write("left.csv", file);
    let printed = run(&place, &[]).expect(0).stderr;
    assert!(printed.contains("left.csv` was written since the checkpoint"), "{printed}");
    same(&outputs(&place), &undisturbed());
    // A complete run reports unread records.
    let mut file = std::fs::OpenOptions::new().append(true).open(place.path("left.csv")).unwrap();
    file.write_all(b"k00,1700000060000,1\n").unwrap();
    let printed = run(&place, &[]).expect(0).stderr;
    assert!(
        printed.contains("is complete")
            && printed.contains("has grown by 20 B")
            && printed.contains("the new part is not read"),
        "{printed}"
    );
}

fn grouped(number: usize) -> String {
    tidemill_app::figures::grouped(number as u64)
}

#[test]
#[ignore = "long: make test-long"]
fn a_source_file_that_grew_is_read_to_its_end() {
    let place = killed();
    let more: String =
        (10_000..11_000).map(|i| format!("k{:02},{},{i}\n", i % 50, 1_700_000_000_000_u64 + i * 5)).collect();
    let file = place.read("left.csv") + &more;
    place.write("left.csv", &file);
    let printed = run(&place, &[]).expect(0).stderr;
    assert!(printed.contains("has grown by") && printed.contains("reads on to its end"), "{printed}");
    let whole = self::place();
    whole.write("left.csv", &file);
    tidemill(&["run", &whole.argument("workflow.yaml"), "--quiet"]).expect(0);
    same(&outputs(&place), &outputs(&whole));
}

/// A manifest of an earlier version lists no files.
#[test]
fn the_files_of_a_state_are_in_its_manifest() {
    let place = killed();
    let shown = tidemill(&["state", "show", &place.argument("state"), "--output", "json"]).expect(0).json();
    let left = &shown["state"]["inputs"]["left"];
    assert_eq!(left["kind"], "file", "{shown}");
    assert_eq!(left["bytes"].as_u64().unwrap(), place.read("left.csv").len() as u64);
    assert!(left["path"].as_str().unwrap().ends_with("left.csv") && left["first"] != left["last"], "{left}");
}

#[test]
#[ignore = "long: make test-long"]
fn a_folder_with_other_files_is_refused_and_one_with_more_is_not() {
    let place = Place::empty("pictures");
    place.write(
        "workflow.yaml",
        "version: 1
name: pictures
sources: [{id: images, kind: image_directory, rate: 50/s, options: {path: images}}]
operators: [{id: names, kind: map, input: images, options: {columns: {name: key}}}]
sinks: [{id: out, kind: jsonl, input: names, options: {path: out/names.jsonl}}]
run: {tick: 10ms, checkpoint_every: 1}
",
    );
    let mut pictures: Vec<PathBuf> = std::fs::read_dir(root().join("examples/vqa/data/images"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pictures.sort();
    let picture = |number: usize| std::fs::read(&pictures[number]).unwrap();
    let ending = pictures[0].extension().unwrap().to_str().unwrap();
    let name = |number: usize| format!("images/p{number:03}.{ending}");
    (0..150).for_each(|number| place.write(&name(number), picture(number)));
    kill(&place);
    let before = files(&place);
    std::fs::rename(place.path(&name(140)), place.path("images/aside")).unwrap();
    let refused = run(&place, &[]).expect(65).stderr;
    assert!(refused.contains("had 150 files") && refused.contains("has 149 files"), "{refused}");
    assert_eq!(files(&place), before);
    std::fs::rename(place.path("images/aside"), place.path(&name(140))).unwrap();
    place.write(&name(150), picture(150));
    let printed = run(&place, &[]).expect(0).stderr;
    assert!(printed.contains("has grown by 1 file"), "{printed}");
    assert_eq!(place.rows("out/names.jsonl").len(), 151);
}

/// Output of a run with this limit and without a state.
fn limited(limit: &[&str]) -> Vec<(&'static str, Vec<u8>)> {
    let place = place();
    tidemill(&[&["run", &place.argument("workflow.yaml"), "--quiet"][..], limit].concat()).expect(0);
    outputs(&place)
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_that_a_limit_ended_goes_on_with_a_larger_one() {
    let place = place();
    let show = || tidemill(&["state", "show", &place.argument("state")]).expect(0).stdout;
    for records in ["1500", "4000"] {
        let printed = run(&place, &["--records", records]).expect(0);
        assert!(printed.stdout.contains(&format!("stopped at --records {records}")), "{}", printed.stdout);
        same(&outputs(&place), &limited(&["--records", records]));
        assert!(show().contains(&format!("stopped at --records {records}")), "{}", show());
        // Nothing is left to do up to there.
        let before = files(&place);
        for fewer in [records, "10"] {
            let printed = run(&place, &["--records", fewer]).expect(0).stderr;
            assert!(
                printed.contains("nothing left to do up to there") && printed.contains("a larger limit"),
                "{printed}"
            );
        }
        assert_eq!(files(&place), before);
    }
    let printed = run(&place, &[]).expect(0).stderr;
    assert!(printed.contains("had stopped at --records 4000"), "{printed}");
    same(&outputs(&place), &undisturbed());
    assert!(show().contains("durable: complete"), "{}", show());
    assert_eq!(place.files("state/objects"), Vec::<String>::new());
}

/// One source has reached the limit, the other has not: killed there, the run continues with and without the limit.
#[test]
#[ignore = "long: make test-long"]
fn a_limited_run_that_was_killed_goes_on_under_any_limit() {
    for (limit, expected) in
        [(&["--records", "3000"][..], limited(&["--records", "3000"])), (&[], undisturbed())]
    {
        let place = place();
        let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
        let arguments =
            ["run", &workflow, "--state", &state, "--checkpoint-interval", "20ms", "--records", "3000"];
        let mut child = command(&arguments).spawn().unwrap();
        let stopped = || {
            std::fs::read_to_string(place.path("state/manifest.json"))
                .is_ok_and(|text| text.contains("stopped_at"))
        };
        let is_stopped = (0..20_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            stopped() || child.try_wait().unwrap().is_some()
        });
        assert!(is_stopped && !checkpoint(&place).1, "it was complete before it was killed");
        child.kill().unwrap();
        child.wait().unwrap();
        run(&place, limit).expect(0);
        same(&outputs(&place), &expected);
    }
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_that_its_time_ended_goes_on_without_it() {
    let place = place();
    let printed = run(&place, &["--for", "1s", "--output", "json"]).expect(0).json();
    assert_eq!(printed["state"]["stopped_at"], "--for 1s", "{printed}");
    same(&outputs(&place), &limited(&["--for", "1s"]));
    run(&place, &["--for", "1s"]).expect(0);
    run(&place, &[]).expect(0);
    same(&outputs(&place), &undisturbed());
}

/// The limit ends the run; later data in the pipe and the journal is for the next one.
#[test]
fn a_stream_goes_on_behind_a_limit() {
    let place = Place::empty("stream");
    place.write(
        "workflow.yaml",
        "version: 1
name: stream
sources: [{id: events, kind: jsonl, journal: {}, options: {path: '-', columns: {n: int64}}}]
sinks: [{id: out, kind: jsonl, input: events, options: {path: out/rows.jsonl}}]
",
    );
    let (reader, mut writer) = std::io::pipe().unwrap();
    let rows: String = (0..20_000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let text = rows.clone();
    let producer = std::thread::spawn(move || writer.write_all(text.as_bytes()).unwrap());
    for (limit, count) in [(&["--records", "3000"][..], 3000), (&["--records", "9000"], 9000), (&[], 20_000)]
    {
        let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
        let arguments = [&["run", &workflow, "--state", &state, "--quiet"][..], limit].concat();
        let child = command(&arguments).stdin(Stdio::from(reader.try_clone().unwrap())).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let expected: String = rows.split_inclusive('\n').take(count).collect();
        assert!(place.read("out/rows.jsonl") == expected, "{count} rows");
    }
    producer.join().unwrap();
    assert!(!place.path("state/journals").exists());
}

fn tally(of: &Value, source: &str, sink: &str) -> [u64; 5] {
    [
        &of["records_in"][source],
        &of["records_out"][sink],
        &of["dead_letters"],
        &of["restarts"],
        &of["processes"],
    ]
    .map(|figure| figure.as_u64().unwrap())
}

/// Each part reports its own rows and the total, which is that in the files.
#[test]
#[ignore = "long: make test-long"]
fn parts_of_a_run_add_up() {
    let (place, mut before, mut parts) = (place(), [0; 5], 0);
    let lines = |file: &str| place.read(file).lines().count() as u64;
    loop {
        let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
        let arguments =
            ["run", &workflow, "--state", &state, "--checkpoint-interval", "50ms", "--output", "json"];
        let mut child = command(&arguments).spawn().unwrap();
        // The last part ends by itself: an interrupt during the final report ends the process at once, with the rest
        // unwritten.
        if parts < 3 && waits(&place, &mut child, 5) {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [part, all] =
            ["this_process", "all_processes"].map(|who| tally(&printed["state"][who], "left", "pairs"));
        parts += 1;
        assert_eq!(std::array::from_fn(|at| before[at] + part[at]), all, "{printed}");
        let behind = printed["state"]["written_again"]["pairs"].as_u64().unwrap_or(0);
        assert_eq!((all[1] + behind, all[4]), (lines("out/pairs.jsonl"), parts), "{printed}");
        assert_eq!(all[2], lines("out/dead.jsonl"), "{printed}");
        before = all;
        if output.status.code() == Some(0) || printed["state"]["complete"] == true {
            break;
        }
        assert_eq!(output.status.code(), Some(130));
        assert_eq!(printed["state"]["complete"], false);
    }
    assert!(parts >= 3, "{parts} parts");
    assert_eq!(before[0], 10_000);
    same(&outputs(&place), &undisturbed());
}

/// The report of an interrupted run is consistent: the kept rows are in the files, and the position to continue from is
/// given.
#[test]
fn an_interrupted_run_says_what_is_kept() {
    let place = place();
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let arguments = ["run", &workflow, "--state", &state, "--checkpoint-interval", "50ms"];
    let mut child = command(&arguments).spawn().unwrap();
    assert!(waits(&place, &mut child, 5));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("durable: interrupted; the same command continues"), "{printed}");
    let manifest: Value = serde_json::from_str(&place.read("state/manifest.json")).unwrap();
    let kept = manifest["manifest"]["sinks"]["pairs"]["rows"].as_u64().unwrap() as usize;
    let (rows, behind) = (grouped(kept), place.read("out/pairs.jsonl").lines().count() - kept);
    let line =
        printed.lines().find(|line| line.starts_with("rows in pairs")).unwrap_or_else(|| panic!("{printed}"));
    let figures: Vec<&str> = line.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
    assert_eq!(figures, ["rows in pairs", &rows, &rows], "{printed}");
    let sink = printed.lines().find(|line| line.starts_with("pairs ")).unwrap();
    assert!(sink.contains(&format!(" {} ", grouped(kept + behind))), "the sink's own line: {printed}");
    let more = format!("pairs: {} more were written after the checkpoint", grouped(behind));
    assert_eq!(printed.contains(&more), behind > 0, "{printed}");
    assert!(printed.contains(&format!("continues from checkpoint {}", checkpoint(&place).0)), "{printed}");
}

/// A run without a plan chooses its models by the profile beside it; a continued one keeps its models.
#[test]
#[ignore = "long: make test-long"]
fn a_run_without_a_plan_continues_with_the_models_that_it_had() {
    let place = Place::example("vqa");
    for large in ["medium.yaml", "large.yaml", "huge.yaml", "huge-int8.yaml # the same at 8 bits"] {
        let line = format!("      - ../../models/vqa/scene-features-{large}\n");
        place.change("workflow.yaml", &line, "");
    }
    place.change("workflow.yaml", "slo:\n  rate: 40/s", "slo:\n  rate: 200/s");
    let profile = place.path("profile.yaml");
    std::fs::rename(&profile, place.path("kept.yaml")).unwrap();
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    // With one backend the profile gives one decision on each machine.
    let run = |records: &str, more: &[&str]| {
        let run = ["run", &workflow, "--rate", "max", "--records", records];
        let run =
            command(&[&run[..], more].concat()).env("TIDEMILL_ONNXRUNTIME", "/nowhere").output().unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.success(), "{said}");
        said
    };
    let kept = ["--state", state.as_str()];
    let first = run("10", &kept);
    assert!(first.contains("scene_features: scene-features-small (best of 2"), "{first}");
    std::fs::rename(place.path("kept.yaml"), &profile).unwrap();
    let fresh = run("10", &[]);
    assert!(fresh.contains("do not keep 200/s on one machine"), "others would be chosen now: {fresh}");
    assert!(
        fresh.contains("scene_features: scene-features-tiny (of the most accurate combination"),
        "{fresh}"
    );
    let next = run("20", &kept);
    assert!(next.contains("scene_features: scene-features-small"), "{next}");
    let accepted = run("30", &[&kept[..], &["--accept-changes"]].concat());
    assert!(accepted.contains("scene_features: scene-features-tiny"), "{accepted}");
}
