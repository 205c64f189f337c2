//! The measures agree with other implementations on random tracks: `expected_metrics.py` names them and writes the
//! numbers.
use serde_json::Value;
use tidemill_tracking::bounding_box::BoundingBox;
use tidemill_tracking::metrics::clear::{Clear, clear};
use tidemill_tracking::metrics::detection::{Picture, Scored, average_precision, mean_average_precision};
use tidemill_tracking::metrics::hota::{Hota, hota};
use tidemill_tracking::metrics::identity::identities;
use tidemill_tracking::metrics::retrieval::{Sample, retrieval};
use tidemill_tracking::metrics::{Frame, Placed};

fn expected() -> Value {
    serde_json::from_str(include_str!("expected_metrics.json")).expect("the script writes JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn area(value: &Value) -> BoundingBox {
    let [left, top, width, height] = [0, 1, 2, 3].map(|index| number(&value[index]));
    BoundingBox { left, top, width, height }
}

fn placed(values: &Value) -> Vec<Placed> {
    let one =
        |value: &Value| Placed { identity: value[0].as_u64().expect("an identity"), area: area(&value[1]) };
    list(values).iter().map(one).collect()
}

fn close(found: f64, expected: &Value, what: &str) {
    let expected = number(expected);
    assert!((found - expected).abs() < 1e-6, "{what}: {found}, expected {expected}");
}

#[test]
fn tracks_are_judged_as_by_trackeval_and_motmetrics() {
    for (index, case) in list(&expected()["tracking"]).iter().enumerate() {
        let frame = |value: &Value| Frame { truth: placed(&value[0]), found: placed(&value[1]) };
        let cameras: Vec<Vec<Frame>> =
            list(&case["cameras"]).iter().map(|frames| list(frames).iter().map(frame).collect()).collect();
        let found = identities(&cameras.concat(), 0.5).total();
        let (trackeval, motmetrics) = (&case["trackeval"], &case["motmetrics"]);
        for other in [trackeval, motmetrics] {
            close(found.f1(), &other["idf1"], &format!("case {index}: IDF1"));
            close(found.precision(), &other["idp"], &format!("case {index}: IDP"));
            close(found.recall(), &other["idr"], &format!("case {index}: IDR"));
        }
        let sum = cameras.iter().fold(Clear::default(), |sum, frames| sum.joined(clear(frames, 0.5)));
        close(sum.mota(), &trackeval["mota"], &format!("case {index}: MOTA"));
        close(sum.motp(), &trackeval["motp"], &format!("case {index}: MOTP"));
        assert_eq!(Some(sum.switches), trackeval["switches"].as_u64(), "case {index}");
        let sum = cameras.iter().fold(Hota::default(), |sum, frames| sum.joined(&hota(frames)));
        close(sum.score(), &trackeval["hota"], &format!("case {index}: HOTA"));
        close(sum.detection(), &trackeval["deta"], &format!("case {index}: DetA"));
        close(sum.association(), &trackeval["assa"], &format!("case {index}: AssA"));
    }
}

#[test]
fn detections_are_judged_as_by_pycocotools() {
    for case in list(&expected()["detection"]) {
        let picture = |value: &Value| Picture {
            truth: list(&value[0]).iter().map(area).collect(),
            found: list(&value[1])
                .iter()
                .map(|it| Scored { area: area(it), score: number(&it[4]) })
                .collect(),
        };
        let pictures: Vec<Picture> = list(&case["pictures"]).iter().map(picture).collect();
        close(average_precision(&pictures, 0.5).expect("there are boxes"), &case["at_50"], "AP at 0.5");
        close(mean_average_precision(&pictures).expect("there are boxes"), &case["mean"], "AP");
    }
}

#[test]
fn embeddings_are_judged_as_by_scikit_learn() {
    for case in list(&expected()["retrieval"]) {
        let sample = |value: &Value| Sample {
            identity: value[0].as_u64().expect("an identity"),
            camera: value[1].as_u64().expect("a camera"),
            embedding: list(&value[2]).iter().map(|it| number(it) as f32).collect(),
        };
        let [queries, gallery] =
            ["queries", "gallery"].map(|it| list(&case[it]).iter().map(sample).collect::<Vec<_>>());
        let found = retrieval(&queries, &gallery).expect("there are answers");
        close(found.rank_1, &case["rank_1"], "rank-1");
        close(found.mean_average_precision, &case["map"], "mAP");
        assert_eq!(Some(found.queries), case["answered"].as_u64());
    }
}
