//! The shipped vehicle models reach the quality of the Python evaluation: on frames of the shipped clips, by the measures
//! of the tracking crate.
use image::{DynamicImage, ImageFormat};
use std::collections::HashMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use tidemill_inference::backend;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::model::Model;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_inference::tensor::TensorData;
use tidemill_tracking::bounding_box::BoundingBox;
use tidemill_tracking::metrics::detection::{Picture, Scored, average_precision};
use tidemill_tracking::metrics::retrieval::{Sample, retrieval};

/// Another JPEG decoder and another order of additions round differently.
const TOLERANCE: f64 = 0.02;
const OVERLAP: f64 = 0.5;
/// Least side in pixels for re-identification.
const LEAST_SIDE: f64 = 12.0;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sample() -> PathBuf {
    repository().join("models/testdata/aicity")
}

struct Vehicle {
    picture: String,
    camera: String,
    identity: u64,
    area: BoundingBox,
    counts: bool,
}

/// `truth.csv`: picture, camera, id, left, top, width, height, flag, class.
fn truth() -> Vec<Vehicle> {
    let text = std::fs::read_to_string(sample().join("truth.csv")).unwrap();
    let vehicle = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let [left, top, width, height] = [3, 4, 5, 6].map(|index: usize| cells[index].parse().unwrap());
        Vehicle {
            picture: cells[0].to_owned(),
            camera: cells[1].to_owned(),
            identity: cells[2].parse().unwrap(),
            area: BoundingBox { left, top, width, height },
            counts: cells[7] == "1",
        }
    };
    text.lines().skip(1).map(vehicle).collect()
}

/// `expected.csv`: model, measure, value.
fn expected(measure: &str) -> Vec<(String, f64)> {
    let text = std::fs::read_to_string(sample().join("expected.csv")).unwrap();
    let rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    rows.filter(|row| row[1] == measure).map(|row| (row[0].to_owned(), row[2].parse().unwrap())).collect()
}

fn model(name: &str) -> Model {
    let manifest = repository().join("models/aicity").join(format!("{name}.yaml"));
    let blueprint = Blueprint::read(&manifest).unwrap_or_else(|errors| panic!("{name}: {}", errors[0]));
    Model::load(blueprint, backend::backend("rten", &repository()).unwrap().as_ref()).unwrap()
}

fn numbers(model: &mut Model, picture: &[u8]) -> Vec<f32> {
    let row = model.prepare(&[Cell::Bytes(picture)]).unwrap();
    let raw = model.run(&[row]).unwrap();
    let OutputColumn::Tensor(TensorData::Float32(values)) = model.finish(raw).remove(0) else {
        panic!("a tensor of floats was expected")
    };
    values
}

/// The detections, without those that only overlap ignored vehicles.
fn judged(found: Vec<Scored>, truth: &[&Vehicle]) -> Picture {
    let mut picture = Picture::default();
    picture.truth.extend(truth.iter().filter(|vehicle| vehicle.counts).map(|vehicle| vehicle.area));
    let mut taken = vec![false; picture.truth.len()];
    for scored in found {
        let free = (0..taken.len()).filter(|index| !taken[*index]);
        let overlaps = free.map(|index| (picture.truth[index].overlap(&scored.area), index));
        let best = overlaps.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(overlap, _)| *overlap >= OVERLAP);
        let unimportant = truth.iter().any(|v| !v.counts && v.area.overlap(&scored.area) >= OVERLAP);
        if let Some((_, index)) = best {
            taken[index] = true;
        }
        if best.is_some() || !unimportant {
            picture.found.push(scored);
        }
    }
    picture
}

/// Checks this number of detectors, the smallest first.
fn detectors_find_as_much(count: usize) {
    let truth = truth();
    let mut by_picture: HashMap<&str, Vec<&Vehicle>> = HashMap::new();
    for vehicle in &truth {
        by_picture.entry(&vehicle.picture).or_default().push(vehicle);
    }
    let expected = expected("average_precision_50");
    assert_eq!(expected.len(), 5);
    for (name, wanted) in expected.into_iter().take(count) {
        let mut model = model(&name);
        let mut pictures = Vec::new();
        for entry in std::fs::read_dir(sample()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|end| end != "jpg") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let (width, height) = image::image_dimensions(&path).unwrap();
            let (width, height) = (f64::from(width), f64::from(height));
            let boxes = numbers(&mut model, &bytes);
            let rows = boxes.as_chunks::<6>().0.iter().filter(|row| row[4] > 0.0);
            let found = rows.map(|row| {
                let [left, top, wide, high, score, _] = row.map(f64::from);
                let area = BoundingBox {
                    left: left * width,
                    top: top * height,
                    width: wide * width,
                    height: high * height,
                };
                Scored { area, score }
            });
            let none = Vec::new();
            let name = path.file_name().unwrap().to_str().unwrap();
            pictures.push(judged(found.collect(), by_picture.get(name).unwrap_or(&none)));
        }
        assert!(pictures.len() >= 20, "{} pictures", pictures.len());
        let value = average_precision(&pictures, OVERLAP).unwrap();
        println!("{name}: {value:.4}, in the evaluation {wanted:.4}");
        assert!((value - wanted).abs() < TOLERANCE, "{name}: {value:.4} and {wanted:.4}");
    }
}

#[test]
fn the_smallest_detector_finds_as_much_as_in_the_evaluation() {
    detectors_find_as_much(1);
}

#[test]
#[ignore = "long: make test-long"]
fn detectors_find_as_much_as_in_the_evaluation() {
    detectors_find_as_much(5);
}

/// Checks this number of models, the smallest first.
fn embeddings_find_vehicles_again(count: usize) {
    let truth = truth();
    let vehicles: Vec<&Vehicle> = truth
        .iter()
        .filter(|v| v.counts && v.area.width >= LEAST_SIDE && v.area.height >= LEAST_SIDE)
        .collect();
    let cuts: Vec<Vec<u8>> = vehicles.iter().map(|vehicle| cut(vehicle)).collect();
    let expected = expected("mean_average_precision");
    assert_eq!(expected.len(), 5);
    for (name, wanted) in expected.into_iter().take(count) {
        let mut model = model(&name);
        let samples: Vec<Sample> = vehicles
            .iter()
            .zip(&cuts)
            .map(|(vehicle, bytes)| {
                let embedding = numbers(&mut model, bytes);
                let length = embedding.iter().map(|value| value * value).sum::<f32>();
                assert!((length - 1.0).abs() < 1e-4, "{name}: a length of {length}");
                let camera = u64::from(vehicle.camera.as_bytes()[vehicle.camera.len() - 1]);
                Sample { identity: vehicle.identity, camera, embedding }
            })
            .collect();
        let mut precisions = Vec::new();
        for query in &samples {
            let others: Vec<Sample> =
                samples.iter().filter(|other| other.camera != query.camera).cloned().collect();
            precisions.extend(
                retrieval(std::slice::from_ref(query), &others).map(|found| found.mean_average_precision),
            );
        }
        let value = precisions.iter().sum::<f64>() / precisions.len() as f64;
        println!("{name}: {value:.4}, in the evaluation {wanted:.4}");
        assert!((value - wanted).abs() < 1.5 * TOLERANCE, "{name}: {value:.4} and {wanted:.4}");
    }
}

#[test]
fn the_smallest_embedding_finds_vehicles_again_as_often_as_in_the_evaluation() {
    embeddings_find_vehicles_again(1);
}

#[test]
#[ignore = "long: make test-long"]
fn embeddings_find_vehicles_again_as_often_as_in_the_evaluation() {
    embeddings_find_vehicles_again(5);
}

/// The content of a box, in whole pixels, as PNG.
fn cut(vehicle: &Vehicle) -> Vec<u8> {
    let picture = image::open(sample().join(&vehicle.picture)).unwrap().into_rgb8();
    let (width, height) = picture.dimensions();
    let place = |value: f64, most: u32| (value.round_ties_even().max(0.0) as u32).min(most);
    let area = &vehicle.area;
    let (left, top) = (place(area.left, width - 1), place(area.top, height - 1));
    let right = place(area.left + area.width, width).max(left + 1);
    let bottom = place(area.top + area.height, height).max(top + 1);
    let part = image::imageops::crop_imm(&picture, left, top, right - left, bottom - top).to_image();
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::ImageRgb8(part).write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}
