//! The example that follows vehicles across cameras, through the built binary.
use crate::command::{Outcome, Place, command, root, tidemill};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use tidemill_operators::video::{index::Index, program};

fn ffmpeg() -> PathBuf {
    let found = program::find(Path::new(env!("CARGO_MANIFEST_DIR")));
    found.unwrap_or_else(|missing| panic!("{missing}: {}", program::HELP))
}

/// The first seconds of two cameras that see common vehicles, with their truth, as a separate city: the largest models take
/// a long time.
pub(crate) fn small_city(place: &Place, seconds: u64) -> PathBuf {
    let (data, city) = (root().join("examples/aicity/data"), place.path("city"));
    std::fs::create_dir(&city).unwrap();
    for camera in ["camera-1", "camera-3"] {
        let mut cut = Command::new(ffmpeg());
        cut.args(["-nostdin", "-loglevel", "error", "-i"]).arg(data.join(format!("{camera}.mp4")));
        cut.args(["-t", &seconds.to_string(), "-c", "copy"]).arg(city.join(format!("{camera}.mp4")));
        assert!(cut.status().unwrap().success());
        let truth = std::fs::read_to_string(data.join(format!("{camera}.txt"))).unwrap();
        let is_in = |line: &&str| line.split(',').next().unwrap().parse::<u64>().unwrap() <= 10 * seconds;
        let lines: String = truth.lines().filter(is_in).map(|line| format!("{line}\n")).collect();
        std::fs::write(city.join(format!("{camera}.txt")), lines).unwrap();
    }
    city
}

/// Runs a workflow of the example with models of one size over another city.
fn run(place: &Place, city: &Path, workflow: &str, size: &str, more: &[&str]) -> Outcome {
    let (workflow, detect, appearance) = (
        place.argument(workflow),
        format!("detect=vehicles-{size}"),
        format!("appearance=appearance-{size}"),
    );
    let models =
        ["run", &workflow, "--rate", "max", "--output", "json", "--set", &detect, "--set", &appearance];
    let output = command(&[&models[..], more].concat()).env("AICITY_CITY", city).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn identified(report: &Value) -> Value {
    let sinks = report["sinks"].as_array().unwrap();
    sinks.iter().find(|sink| sink["sink"] == "identified").unwrap().clone()
}

/// Two cameras for a few seconds, with the smallest models.
#[test]
fn a_few_seconds_of_a_city_are_followed_and_judged() {
    let place = Place::example("aicity");
    let city = small_city(&place, 8);
    let report = run(&place, &city, "workflow.yaml", "tiny", &[]).expect(0).json();
    let sink = identified(&report);
    assert!(sink["records"].as_u64() > Some(0) && sink["accuracy_percent"].as_f64().is_some(), "{sink}");
    assert!(!standing(&place.rows("out/vehicles.jsonl")).is_empty(), "nothing is followed");
}

/// The benefit of larger models, end to end; and the output of a run of the largest ones for inspection.
#[test]
#[ignore = "long: make test-long"]
fn larger_models_follow_better_and_the_report_shows_what_they_followed() {
    let place = Place::example("aicity");
    let city = small_city(&place, 30);
    let smallest = identified(&run(&place, &city, "workflow.yaml", "tiny", &[]).expect(0).json());
    let page = place.argument("report.html");
    let more = ["--report", &page];
    let largest = identified(&run(&place, &city, "annotated.yaml", "huge", &more).expect(0).json());
    let idf1 = |sink: &Value| sink["accuracy_percent"].as_f64().unwrap();
    let gain = idf1(&largest) - idf1(&smallest);
    assert!(gain >= 10.0, "{gain:.1} points of IDF1\n{smallest}\n{largest}");
    for sink in [&smallest, &largest] {
        let of = |name: &str| sink["tracks"][format!("{name}_percent")].as_f64().unwrap();
        let (idp, idr) = (of("idp"), of("idr"));
        assert!(
            (2.0 * idp * idr / (idp + idr) - idf1(sink)).abs() < 1e-6,
            "IDF1 is their harmonic mean: {sink}"
        );
        assert!(of("mota") < 100.0 && of("hota") > 0.0 && of("hota") < 100.0, "{sink}");
    }
    assert!(largest["tracks"]["mota_percent"].as_f64() > smallest["tracks"]["mota_percent"].as_f64());

    let html = place.read("report.html");
    let count = |text: &str| html.matches(text).count();
    assert!(html.contains("Objects and cameras"), "the section is there");
    assert!(count("chart timeline") == 1 && count("class=\"f1 seen\"") > 5 && count("class=\"f2 seen\"") > 5);
    for camera in ["camera-1", "camera-3"] {
        assert!(html.contains(&format!("{camera}: ")), "{camera} has bars");
        assert!(html.contains(&format!("as {camera} sees it")), "{camera} has pictures");
        assert!(
            html.contains(&format!("<a href=\"out/{camera}.mp4\">{camera}.mp4</a>")),
            "{camera} has a link"
        );
        let drawn = Index::read(&ffmpeg(), &place.path(&format!("out/{camera}.mp4"))).unwrap();
        let shown = Index::read(&ffmpeg(), &city.join(format!("{camera}.mp4"))).unwrap();
        assert_eq!(
            (drawn.frames.len(), drawn.size),
            (shown.frames.len(), shown.size),
            "{camera}: each frame is drawn"
        );
        assert!(shown.frames.len() >= 299, "{camera} has {} frames", shown.frames.len());
    }
    assert!(count("src=\"data:image/") >= 2, "pictures are in the page");
    assert!(html.contains("IDF1 over all cameras") && html.contains("MOTA") && html.contains("HOTA"));
}

/// The final rows after all retractions.
fn standing(rows: &[Value]) -> Vec<Value> {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for row in rows {
        let mut payload = row.clone();
        let change = payload.as_object_mut().unwrap().remove("_change").unwrap();
        *counts.entry(payload.to_string()).or_default() += change.as_i64().unwrap();
    }
    assert!(counts.values().all(|count| (0..=1).contains(count)), "a row is taken back that was not given");
    let standing = counts.into_iter().filter(|(_, count)| *count == 1);
    standing.map(|(row, _)| serde_json::from_str(&row).unwrap()).collect()
}

#[test]
#[ignore = "long: make test-long"]
fn vehicles_are_followed_across_cameras_and_judged_by_idf1() {
    let place = Place::example("aicity");
    let workflow = place.argument("workflow.yaml");
    let page = place.argument("report.html");
    let run = ["run", &workflow, "--rate", "max", "--output", "json", "--report", &page];
    let models = ["--set", "detect=vehicles-small", "--set", "appearance=appearance-small"];
    let report = tidemill(&[&run[..], &models].concat()).expect(0).json();
    let identified = identified(&report);
    let idf1 = identified["accuracy_percent"].as_f64().unwrap();
    let bound = |at: usize| identified["accuracy_interval_percent"][at].as_f64().unwrap();
    // The smallest models give 54 %, these 71 %, the largest 87 % (examples/aicity/README.md).
    assert!((64.0..78.0).contains(&idf1) && bound(0) < idf1 && idf1 < bound(1), "{identified}");

    let tracks = standing(&place.rows("out/vehicles.jsonl"));
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let mut cameras: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in &tracks {
        cameras.entry(text(row, "vehicle")).or_default().insert(text(row, "camera"));
        assert_eq!(text(row, "path").split(';').count() as i64, row["detections"].as_i64().unwrap());
    }
    let seen: BTreeSet<&String> = cameras.values().flatten().collect();
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(cameras.values().any(|of| of.len() > 1), "no vehicle was recognised in a second camera");
    // Such a vehicle has a picture of each camera.
    let html = place.read("report.html");
    let cards = html.split("<article").skip(1).filter(|card| card.matches("<img").count() >= 2);
    assert!(cards.count() > 0, "no vehicle is shown as two cameras saw it");

    // The window of the whole clip has each vehicle once on each road.
    let roads = place.read("out/roads.csv");
    let mut whole: BTreeMap<(&str, i64), i64> = BTreeMap::new();
    for line in roads.lines() {
        let [change, "0", "60000", road, count] = line.split(',').collect::<Vec<_>>()[..] else { continue };
        *whole.entry((road, count.parse().unwrap())).or_default() += change.parse::<i64>().unwrap();
    }
    whole.retain(|_, count| *count != 0);
    assert!(whole.values().all(|count| *count == 1), "{roads}");
    let counted: i64 = whole.keys().map(|(_, count)| count).sum();
    let seen: usize = cameras.values().map(BTreeSet::len).sum();
    assert_eq!((whole.len(), counted as usize), (4, seen), "{roads}");
    // Only tracks of different cameras are linked, so none is counted less than once.
    assert!(seen <= tracks.len(), "{seen} of {}", tracks.len());
}

/// Meaningful lines of an example's file.
fn lines(place: &Place, file: &str) -> Vec<String> {
    let text = place.read(file);
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

#[test]
fn the_annotated_workflow_is_the_other_one_and_a_video() {
    let place = Place::example("aicity");
    let (plain, annotated) = (lines(&place, "workflow.yaml"), lines(&place, "annotated.yaml"));
    let at = annotated.iter().position(|line| line.starts_with("  - id: annotated")).unwrap();
    let mut rest = annotated;
    let sink = rest.drain(at..at + 4).collect::<Vec<_>>();
    assert!(sink.iter().any(|line| line == "    kind: video"), "{sink:?}");
    let name = rest.iter_mut().find(|line| line.starts_with("name: ")).unwrap();
    *name = "name: aicity".to_owned();
    assert_eq!(rest, plain);
}
