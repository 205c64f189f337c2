//! The library as the service loads it, and frames that it looks at.
use serde_json::{Value, json};
use std::path::PathBuf;
use tidemill_net::bench::{Bench, cameras, columns, some_cameras};
use tidemill_net::policy::{Policy, Site, Verdict, make};

/// The library lies beside the test program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a program");
    let folder = program.parent().expect("a folder");
    let name = format!("{}every_nth{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let places = [folder.join(&name), folder.with_file_name(&name)];
    places.iter().find(|place| place.exists()).unwrap_or_else(|| panic!("none of {places:?}")).clone()
}

fn policy(options: Value) -> Result<Box<dyn Policy>, String> {
    let site = Site { may_load: true, ..Site::default() };
    make("library", &json!({"path": library(), "options": options}), &site)
}

#[test]
fn every_third_record_passes_and_the_count_goes_on_over_frames() {
    let mut bench = Bench::of(policy(json!({"n": 3})).expect("a policy"));
    assert_eq!(bench.look(&cameras(&["a", "b", "c", "d"])), (Verdict::Pass, cameras(&["a", "d"])));
    assert_eq!(bench.look(&cameras(&["e", "f", "g"])).1, cameras(&["g"]));
    assert_eq!(bench.rejected(), 4);
}

#[test]
fn values_of_a_column_are_counted_apart() {
    let mut bench = Bench::of(policy(json!({"n": 2, "by": "camera"})).expect("a policy"));
    assert_eq!(bench.look(&cameras(&["a", "b", "a", "a", "b"])).1, cameras(&["a", "b", "a"]));
    let (_, left) = bench.look(&some_cameras(&[None, Some("a"), Some("b"), None]));
    assert_eq!(left, some_cameras(&[None, Some("b")]));
}

#[test]
fn another_instance_continues_with_the_count() {
    let mut bench = Bench::of(policy(json!({"n": 3, "by": "camera"})).expect("a policy"));
    bench.look(&cameras(&["a", "a", "b"]));
    bench.replace_by(policy(json!({"n": 2, "by": "camera"})).expect("a policy")).expect("it continues");
    assert_eq!(bench.look(&cameras(&["a", "b", "b"])).1, cameras(&["a", "b"]));
}

#[test]
fn mistakes_are_explained() {
    let error = policy(json!({"n": 0})).map(drop).expect_err("no count");
    assert!(error.contains("every_nth: write a whole number from 1 on"), "{error}");
    let mut other = policy(json!({"n": 2, "by": "cam"})).expect("that it fits is checked later");
    let error = other.fits(&columns()).expect_err("no such column");
    assert!(error.contains("`cam`") && error.contains("camera"), "{error}");
    let mut bench = Bench::of(policy(json!({"n": 2, "by": "_time"})).expect("a policy"));
    let error = bench.judge(&cameras(&["a"])).expect_err("no text");
    assert!(error.contains("no text"), "{error}");
}
