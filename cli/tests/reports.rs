//! `run --report`: pages that are complete, self-contained and correct.
use crate::command::{Outcome, Place, command, rows, tidemill};
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};

/// A parsed page.
struct Page(String);

impl Page {
    /// Runs with `--report` and parses the page.
    #[track_caller]
    fn of(place: &Place, arguments: &[&str], code: i32) -> Self {
        Self::and_outcome(place, arguments, code).0
    }

    #[track_caller]
    fn and_outcome(place: &Place, arguments: &[&str], code: i32) -> (Self, Outcome) {
        let (workflow, report) = (place.argument("workflow.yaml"), place.argument("report.html"));
        let all = [&["run", &workflow, "--report", &report], arguments].concat();
        let outcome = tidemill(&all).expect(code);
        (Self::read(place), outcome)
    }

    #[track_caller]
    fn read(place: &Place) -> Self {
        let page = Self(place.read("report.html"));
        page.check();
        page
    }

    fn document(&self) -> Document<'_> {
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        Document::parse_with_options(&self.0, options).unwrap()
    }

    /// Well-formed, loads nothing, runs nothing, and all its links have targets.
    #[track_caller]
    fn check(&self) {
        assert!(self.0.starts_with("<!DOCTYPE html>\n<html "));
        let document = self.document();
        let attributes = || document.descendants().flat_map(|node| node.attributes());
        let ids: Vec<&str> = attributes().filter(|a| a.name() == "id").map(|a| a.value()).collect();
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(unique.len(), ids.len(), "ids are unique: {ids:?}");
        for attribute in attributes() {
            match attribute.name() {
                "href" => {
                    let target =
                        attribute.value().strip_prefix('#').unwrap_or_else(|| panic!("{attribute:?}"));
                    assert!(unique.contains(target), "{target} is nowhere");
                }
                "src" => assert!(attribute.value().starts_with("data:"), "{}", attribute.value()),
                name => assert!(!name.starts_with("on") && name != "action", "{attribute:?}"),
            }
        }
        for refused in ["script", "link", "iframe", "object", "base", "form"] {
            assert!(document.descendants().all(|node| !node.has_tag_name(refused)), "{refused}");
        }
        let styles = document.descendants().filter(|node| node.has_tag_name("style"));
        for style in styles.filter_map(|node| node.text()) {
            assert!(!style.contains("url(") && !style.contains("@import"));
        }
        assert!(self.0.len() < 3 << 20, "{} bytes", self.0.len());
        assert!(!self.0.contains("NaN"));
    }

    /// All text of the element with this id, or of the page.
    fn text(&self, id: Option<&str>) -> String {
        let document = self.document();
        let within = |node: &Node<'_, '_>| id.is_none_or(|id| node.attribute("id") == Some(id));
        let Some(root) = document.descendants().filter(Node::is_element).find(within) else {
            return String::new();
        };
        let texts = root.descendants().filter(|node| {
            node.is_text() && node.parent().is_none_or(|parent| !parent.has_tag_name("style"))
        });
        texts.filter_map(|node| node.text()).collect::<Vec<_>>().join(" ")
    }

    /// Elements with this class, below the one with this id.
    fn count(&self, id: &str, class: &str) -> usize {
        let document = self.document();
        let root = document.descendants().find(|node| node.attribute("id") == Some(id)).unwrap();
        root.descendants().filter(|node| node.attribute("class") == Some(class)).count()
    }
}

#[track_caller]
fn has(text: &str, expected: &[&str]) {
    for part in expected {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
}

#[test]
fn tables_too_have_pages() {
    let place = Place::example("quickstart");
    let page = Page::of(&place, &[], 0);
    has(&page.text(None), &["quickstart", "No service levels are set", "complete"]);
    // The workflow is drawn, with its flow.
    has(&page.text(Some("workflow")), &["per_sensor", "window", "mean_temperature", "records out"]);
    has(&page.text(Some("samples")), &["mean_temperature", "sensor", "At averages"]);
    has(&page.text(Some("run")), &["Processor", "Tidemill", "Workflow digest"]);
    // After a window, single source records are not shown.
    assert!(!page.text(Some("samples")).contains("readings: "), "{}", page.text(Some("samples")));
}

/// The pictures and questions, with service levels that hold on any machine, except for the latency.
fn modest(latency: &str) -> Place {
    let place = Place::example("vqa");
    let text = place.read("workflow.yaml");
    let (before, after) = text.split_once("\nslo:").unwrap();
    let (_, after) = after.split_once("\nrun:").unwrap();
    let slo = format!("{{rate: 10/s, accuracy: 1%, latency: {{percentile: p99, below: {latency}}}}}");
    place.write("workflow.yaml", format!("{before}\nslo: {slo}\nrun:{after}"));
    place
}

#[test]
#[ignore = "long: make test-long"]
fn answers_are_shown_with_pictures_sounds_and_the_truth() {
    let place = modest("600s");
    let page = Page::of(&place, &[], 0);
    has(&page.text(None), &["All 3 service levels are met"]);
    has(&page.text(Some("levels")), &["at least 10/s", "p99 below 600s", "at least 1%", "windows"]);
    has(&page.text(Some("models")), &["scene_features", "best of", "answer_accuracy"]);
    has(&page.text(Some("stages")), &["pair", "speech", "waiting"]);
    let samples = page.text(Some("samples"));
    has(&samples, &["question", "answer", "right", "key", "as in the ground truth"]);
    assert_eq!(page.count("samples", "sample"), 12);
    let document = page.document();
    let sources = |tag: &'static str, kind: &'static str| {
        let nodes = document.descendants().filter(move |node| node.has_tag_name(tag));
        nodes.filter(move |node| node.attribute("src").is_some_and(|src| src.starts_with(kind))).count()
    };
    assert_eq!(sources("img", "data:image/jpeg;base64,"), 12, "each with its picture");
    assert_eq!(sources("audio", "data:audio/wav;base64,"), 12, "each with its question");
    let curves = document.descendants().filter(|node| node.attribute("class") == Some("chart"));
    assert_eq!(curves.count(), 5);
}

#[test]
fn misses_are_plain_to_see() {
    let place = modest("1us");
    let page = Page::of(&place, &["--records", "20", "--require-slo"], 1);
    has(&page.text(None), &["1 of 3 service levels missed", "latency: p99"]);
    has(&page.text(Some("levels")), &["missed"]);
}

#[test]
fn the_tile_is_of_the_sink_that_is_furthest_from_its_level() {
    let place = Place::example("quickstart");
    place.write(
        "workflow.yaml",
        "version: 1
name: two
sources: [{id: readings, kind: csv, rate: 200/s, options: {path: readings.csv, columns: {time: int64, sensor: text}, event_time: time}}]
operators: [{id: counted, kind: window, input: readings, options: {size: 10s, aggregates: [{function: count, as: n}]}}]
sinks:
  - {id: quick, kind: jsonl, input: readings, options: {path: out/quick.jsonl}}
  - {id: slow, kind: jsonl, input: counted, options: {path: out/slow.jsonl}}
slo: {latency: {percentile: p90, below: 1us}}
",
    );
    let (page, outcome) = Page::and_outcome(&place, &["--output", "json"], 0);
    let report = outcome.json();
    let measured = report["slo"][0]["measured"].as_str().unwrap().strip_prefix("p90 ").unwrap();
    let document = page.document();
    let classed = |class| document.descendants().filter(move |node| node.attribute("class") == Some(class));
    let text = |node: Node<'_, '_>| node.descendants().filter_map(|n| n.text()).collect::<String>();
    let tile = classed("tile").map(text).find(|text| text.starts_with("Latency, p90")).unwrap();
    // The figure of the verdict, and its subject.
    assert!(tile.contains(measured), "{tile} instead of {measured}");
    assert!(tile.ends_with("required below 1us"), "{tile}");
    assert!(tile.contains("at quick, ") || tile.contains("at slow, "), "{tile}");
    // Labels and bars are one element each, so that they stay together on a narrow screen.
    let rows: Vec<_> = classed("row").collect();
    assert!(rows.len() > 3 && rows.iter().all(|row| row.children().filter(Node::is_element).count() == 3));
}

/// Rows with some refused ones, and values that would break a careless page.
fn hostile() -> Place {
    let place = Place::empty("hostile");
    let lines: String = (0..40).map(|n| format!("{n},\"<script>alert({n})</script>&'\"\n")).collect();
    place.write("rows.csv", format!("n,text\n{lines}x,\"</td><b>\"\n"));
    place.write(
        "workflow.yaml",
        "version: 1
name: hostile
sources: [{id: rows, kind: csv, options: {path: rows.csv, columns: {n: int64, text: text}}}]
operators: [{id: shares, kind: map, input: rows, options: {columns: {share: 100 / (n - 7)}}}]
sinks: [{id: out, kind: jsonl, input: shares, options: {path: out/rows.jsonl}}]
run: {dead_letters: out/dead.jsonl}
",
    );
    place
}

#[test]
fn values_cannot_break_the_page_and_dead_letters_show_theirs() {
    let place = hostile();
    let page = Page::of(&place, &[], 0);
    let losses = page.text(Some("losses"));
    has(
        &losses,
        &["expression_failed", "bad_value", "shares", "n: 7, text: \"<script>alert(7)</script>&'\""],
    );
    has(&losses, &["record: \"x,\\\"</td><b>\\\"\""]);
    has(&page.text(Some("samples")), &["<script>alert("]);
    let letters = rows(&place.read("out/dead.jsonl"));
    assert_eq!(letters.len(), 2);
    let failed = letters.iter().find(|letter| letter["reason"] == "expression_failed").unwrap();
    assert_eq!(failed["values"], serde_json::json!({"n": 7, "text": "<script>alert(7)</script>&'"}));
    let refused = letters.iter().find(|letter| letter["reason"] == "bad_value").unwrap();
    assert_eq!(refused["values"]["record"], "x,\"</td><b>\"");
}

#[test]
fn pictures_that_cannot_be_used_are_told_by_size_and_digest() {
    let place = Place::example("vqa");
    place.change("workflow.yaml", "path: data/images", "path: pictures");
    // Readable by its header, and then truncated.
    let whole = std::fs::read(place.path("data/images/000000.jpg")).unwrap();
    place.write("pictures/000000.jpg", &whole[..whole.len() / 2]);
    place.write("pictures/000001.jpg", "no picture");
    let page = Page::of(&place, &["--records", "2"], 0);
    let letters = rows(&place.read("out/dead_letters.jsonl"));
    let cut = letters.iter().find(|letter| letter["operator"] == "scene_features").unwrap();
    assert_eq!(cut["values"]["key"], "000000");
    assert_eq!(cut["values"]["image"]["bytes"], whole.len() / 2);
    assert_eq!(cut["values"]["image"]["sha256"].as_str().unwrap().len(), 64);
    let refused = letters.iter().find(|letter| letter["operator"] == "images").unwrap();
    assert_eq!(refused["values"], serde_json::json!({"file": "000001.jpg", "bytes": 10}));
    has(&page.text(Some("losses")), &["file: \"000001.jpg\"", "sha256"]);
}

#[test]
fn nothing_to_report_is_reported() {
    let place = hostile();
    place.write("rows.csv", "n,text\n");
    let page = Page::of(&place, &[], 0);
    has(&page.text(Some("losses")), &["None: every record"]);
    assert!(page.text(Some("samples")).is_empty());
}

#[test]
fn a_run_that_fails_or_is_interrupted_has_its_page() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = hostile();
    place.change("workflow.yaml", "kind: csv,", "kind: csv, rate: 200/s, repeat: true,");
    let (workflow, report) = (place.argument("workflow.yaml"), place.argument("report.html"));
    let child = command(&["run", &workflow, "--report", &report]).spawn().unwrap();
    for _ in 0..600 {
        if std::fs::metadata(place.path("out/rows.jsonl")).is_ok_and(|file| file.len() > 0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    has(&Page::read(&place).text(None), &["The run was interrupted", "until then"]);

    place.change("workflow.yaml", "path: out/rows.jsonl", "path: /dev/full");
    let (page, outcome) = Page::and_outcome(&place, &[], 69);
    has(&page.text(None), &["The run failed", "/dev/full", "No space left"]);
    has(&outcome.stderr, &["/dev/full"]);
}

#[test]
fn reports_replace_nothing_that_is_read_or_written() {
    let place = hostile();
    let workflow = place.argument("workflow.yaml");
    let before = (place.read("workflow.yaml"), place.read("rows.csv"));
    for (option, file) in [
        ("--report", "workflow.yaml"),
        ("--report", "rows.csv"),
        ("--report", "out/rows.jsonl"),
        ("--report", "out/dead.jsonl"),
        ("--report-json", "rows.csv"),
        ("--epoch-log", "workflow.yaml"),
    ] {
        let outcome = tidemill(&["run", &workflow, option, &place.argument(file)]).expect(78);
        has(&outcome.stderr, &[option, "E0611"]);
    }
    let both = place.argument("both.html");
    tidemill(&["run", &workflow, "--report", &both, "--report-json", &both]).expect(78);
    let outcome =
        tidemill(&["run", &workflow, "--report", &place.argument("rows.csv/report.html")]).expect(78);
    has(&outcome.stderr, &["cannot be written"]);
    assert_eq!(before, (place.read("workflow.yaml"), place.read("rows.csv")));
    assert!(!place.path("out").exists(), "nothing was begun");
    // An existing one is replaced as a whole, and nothing is left beside it.
    place.write("report.html", "old");
    Page::of(&place, &[], 0);
    assert!(place.files("").iter().all(|name| !name.starts_with('.')), "{:?}", place.files(""));
}

#[test]
fn a_reader_that_has_seen_enough_ends_an_endless_run() {
    let place = hostile();
    place.change("workflow.yaml", "kind: csv,", "kind: csv, rate: 500/s, repeat: true,");
    place.change(
        "workflow.yaml",
        "kind: jsonl, input: shares, options: {path: out/rows.jsonl}",
        "kind: stdout, input: shares",
    );
    let mut child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"n\":0,"), "{line}");
    drop(lines);
    // It ends by itself; the test runner's own limit is the watch-dog.
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_run_of_a_few_ticks_tells_its_mean_rate_and_that_it_is_short() {
    let place = hostile();
    place.change("workflow.yaml", "run: {", "run: {tick: 60s, ");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0);
    has(&outcome.stdout, &["of the run, which is shorter than 4 ticks (240.0 s)"]);
    let report = tidemill(&["run", &place.argument("workflow.yaml"), "--output", "json"]).expect(0).json();
    let number = |pointer: &str| report.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap();
    let mean = number("/sinks/0/records") / number("/seconds");
    assert!((number("/sinks/0/rate_per_second") - mean).abs() < 1e-6 * mean, "{report}");
}
