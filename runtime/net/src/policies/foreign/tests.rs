//! Libraries of C that keep the interface, and such that do not.
use crate::attached::{Attached, Owner};
use crate::bench::{Bench, cameras, columns};
use crate::policy::{Policy, Site, Verdict, make};
use crate::protocol::PolicySpec;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Builds `tests.c` into a folder, with these definitions.
fn build(folder: &Path, name: &str, definitions: &[&str]) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join(name);
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            "-o",
        ])
        .arg(&path)
        .arg("-I")
        .arg(package.join("include"))
        .args(definitions)
        .arg(package.join("src/policies/foreign/tests.c"))
        .output()
        .expect("a C compiler, which the workspace needs anyway");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

fn trusted() -> Site {
    Site { may_load: true, ..Site::default() }
}

fn options(path: &Path, options: &str) -> Value {
    json!({"path": path, "options": options})
}

fn load(path: &Path, does: &str) -> Result<Box<dyn Policy>, String> {
    make("library", &options(path, does), &trusted())
}

fn refused(path: &Path) -> String {
    load(path, "").map(drop).expect_err("no such policy")
}

#[test]
fn what_is_no_policy_of_this_version_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str, definitions: &[&str]| build(folder.path(), name, definitions);
    let right = path("right.so", &[]);
    let error = make("library", &options(&right, ""), &Site::default()).map(drop).expect_err("a stranger");
    assert!(error.contains("only the user of the service or root"), "{error}");
    let error = refused(&path("newer.so", &["-DVERSION=7"]));
    assert!(error.contains("version 7") && error.contains("build it with"), "{error}");
    let error = refused(&path("table.so", &["-DNO_TABLE"]));
    assert!(error.contains("returns no table"), "{error}");
    let error = refused(&path("look.so", &["-DNO_LOOK"]));
    assert!(error.contains("lacks `make`, `look` or `drop`"), "{error}");
    let error = refused(&path("name.so", &["-DNAME=\"\""]));
    assert!(error.contains("0 bytes"), "{error}");
    let error = refused(&folder.path().join("absent.so"));
    assert!(error.contains("absent.so cannot be read by the service"), "{error}");
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").expect("it is written");
    let error = refused(&text);
    assert!(error.contains("cannot be loaded") && error.contains("build it for this machine"), "{error}");
    assert!(refused(Path::new("right.so")).contains("write it from `/` on"));
    let error = load(&right, "refuse").map(drop).expect_err("wrong options");
    assert!(error.contains("fixture: write something \u{fffd} else than \"refuse\""), "{error}");
    for (does, why) in [("too many columns", "1048576 bytes"), ("half a column", "lacks a NUL")] {
        let error = load(&right, does).map(drop).expect_err(does);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_library_without_the_function_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.so");
    let source = folder.path().join("other.c");
    std::fs::write(&source, "int other(void) { return 0; }").expect("it is written");
    let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-shared", "-fPIC", "-o"])
        .args([&path, &source])
        .status();
    assert!(built.is_ok_and(|status| status.success()));
    let error = refused(&path);
    assert!(error.contains("exports no `tidemill_policy_v1`"), "{error}");
}

#[test]
fn it_sees_the_frame_and_decides() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = build(folder.path(), "right.so", &[]);
    let bench = |does: &str| Bench::of(load(&path, does).expect("a policy"));
    let records = cameras(&["a", "b", "", "d"]);
    let facts = bench("facts").judge(&records).expect_err("what it sees");
    assert_eq!(facts, "city: cameras -> detect channel 3 number 1 epoch 7 rows 4 columns 0 1 1");
    let facts = bench("facts reads").judge(&records).expect_err("what it sees");
    assert!(facts.contains("columns 1 1 1"), "{facts}");
    assert_eq!(bench("").look(&records), (Verdict::Pass, records.clone()));
    assert_eq!(bench("cut").look(&records).0, Verdict::Cut);
    assert_eq!(bench("an hour").look(&records).0, Verdict::Wait(Duration::from_secs(3600)));
    assert_eq!(bench("at once").look(&records).0, Verdict::Wait(Duration::from_millis(1)));
    assert_eq!(bench("odd rows").look(&records).1, cameras(&["b", "d"]));
    assert_eq!(
        bench("at once, odd rows").look(&records).1,
        records,
        "rows of a frame that waits are judged later"
    );
    let mut reading = bench("reads");
    assert_eq!(reading.look(&records).1, cameras(&["a", "d"]));
    assert_eq!(reading.rejected(), 2);
    assert_eq!(reading.look(&cameras(&["b"])).1.num_rows(), 0);
    let mut taking = bench("reads, takes");
    for _ in 0..3 {
        assert_eq!(taking.look(&records).1, cameras(&["a", "d"]));
    }
}

#[test]
fn answers_that_make_no_sense_are_failures() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = build(folder.path(), "right.so", &[]);
    let records = cameras(&["a", "b"]);
    let fails = |does: &str| Bench::of(load(&path, does).expect("a policy")).judge(&records).expect_err(does);
    let error = fails("unknown verdict");
    assert!(error.contains("verdict is 9"), "{error}");
    let error = fails("too long");
    assert!(error.contains("an hour is the most"), "{error}");
    let error = fails("wrong mark");
    assert!(error.contains("marks row 1 with 7"), "{error}");
    assert_eq!(fails("long error"), "x".repeat(1024));
    assert!(fails("silent error").contains("does not say why"));
    let error = fails("reads other");
    assert!(error.contains("reads the column `cam`") && error.contains("_time, "), "{error}");
}

#[test]
fn a_column_that_the_edge_lacks_is_said_when_it_is_attached() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = build(folder.path(), "right.so", &[]);
    load(&path, "reads").expect("a policy").fits(&columns()).expect("it has the column");
    let error = load(&path, "reads other").expect("a policy").fits(&columns()).expect_err("no such column");
    assert_eq!(error, "fixture reads the column `cam`; the edge has camera: change its options");
}

#[test]
fn an_instance_that_cannot_continue_leaves_the_old_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let newer = build(folder.path(), "newer.so", &["-DRELEASE=2"]);
    let older = build(folder.path(), "older.so", &[]);
    let stranger = build(folder.path(), "stranger.so", &["-DNAME=\"stranger\""]);
    let spec = json!({"id": "mine", "kind": "library", "options": options(&newer, "count")});
    let spec: PolicySpec = serde_json::from_value(spec).expect("a policy");
    let attached = Attached::new(spec, Owner::User { user: 0, any: true }, &trusted()).expect("a policy");
    let error = attached.set(options(&older, "count"), &trusted(), &[]).expect_err("an older release");
    assert!(error.contains("release 1 cannot read it") && error.contains("which stays"), "{error}");
    let error = attached.set(options(&stranger, "count"), &trusted(), &[]).expect_err("another policy");
    assert!(error.contains("it is of fixture, and this is stranger"), "{error}");
    let error =
        attached.set(options(&newer, "reads other"), &trusted(), &[&columns()]).expect_err("no column");
    assert!(error.contains("`cam`"), "{error}");
    assert_eq!(attached.view(0).spec.options, options(&newer, "count"));
    attached.set(options(&newer, "huge state"), &trusted(), &[]).expect("its state is only asked for later");
    let error = attached.set(options(&newer, "count"), &trusted(), &[]).expect_err("too large a state");
    assert!(error.contains("16777216 are allowed"), "{error}");
}

#[test]
fn a_new_file_at_the_same_path_is_loaded_and_continues() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = build(folder.path(), "policy.so", &[]);
    let mut bench = Bench::of(load(&path, "count").expect("a policy"));
    for _ in 0..4 {
        bench.look(&cameras(&["a"]));
    }
    let new = build(folder.path(), "policy.so.new", &["-DRELEASE=2"]);
    std::fs::rename(new, &path).expect("it is installed");
    bench.replace_by(load(&path, "tell").expect("a policy")).expect("it continues");
    assert_eq!(bench.judge(&cameras(&["a"])), Err("release 2 saw 5 frames".to_owned()));
    let error = bench
        .replace_by(load(&path, "other state").expect("a policy"))
        .map(|()| bench.replace_by(load(&path, "tell").expect("a policy")).expect_err("its length changes"));
    assert!(error.as_ref().is_ok_and(|error| error.contains("another length")), "{error:?}");
}
