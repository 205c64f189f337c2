//! Records that cannot be used never stop a run.
use crate::command::{Place, tidemill};

#[test]
fn bad_files_become_dead_letters() {
    let place = Place::empty("vqa");
    let data = |file: &str| std::fs::read(place.path("../..").join("data").join(file)).unwrap();
    std::os::unix::fs::symlink(crate::command::root().join("examples/vqa/data"), place.path("../../data"))
        .unwrap();
    let workflow =
        std::fs::read_to_string(crate::command::root().join("examples/vqa/workflow.yaml")).unwrap();
    place.write("workflow.yaml", workflow);
    place.write("data/truth.csv", data("truth.csv"));
    for key in ["000000", "000001", "000002", "000003"] {
        place.write(&format!("data/images/{key}.jpg"), data(&format!("images/{key}.jpg")));
        place.write(&format!("data/questions/{key}.wav"), data(&format!("questions/{key}.wav")));
    }
    let whole = data("images/000001.jpg");
    place.write("data/images/000001.jpg", &whole[..whole.len() / 2]);
    place.write("data/questions/000002.wav", "");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml"), "--output", "json"]).expect(0);
    let report = outcome.json();
    assert_eq!(report["sinks"][0]["records"], 2, "{report}");
    assert_eq!(report["dead_letters"], 2, "{report}");
    let letters = place.rows("out/dead_letters.jsonl");
    let mut reasons: Vec<&str> = letters.iter().map(|letter| letter["reason"].as_str().unwrap()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["file_empty", "image_truncated"]);
    assert_eq!(place.files("out"), ["answers.jsonl", "dead_letters.jsonl"]);
    let table = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0).stdout;
    assert!(table.contains("dead letter  image_truncated  scene_features"), "{table}");
    assert!(table.contains("dropped      unmatched"), "{table}");
}
