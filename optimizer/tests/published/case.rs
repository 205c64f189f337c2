//! The published medium case of visual question answering: three operators, nine workers on two tiers.
//!
//! The numbers are facts of the JellyBean prototype (MIT licence): seconds of a request at the 75th percentile by model
//! and machine, end-to-end accuracy of joint variants, bytes per record, prices.
use tidemill_optimizer::cost::per_gib;
use tidemill_optimizer::problem::{
    AccuracyModel, AccuracyRow, Edge, Limits, Location, Operator, Problem, Producer, ReturnTraffic, Route,
    ServiceMode, Source, Variant, WorkerClass,
};

/// Machines with location (0 edge, 1 cloud) and price in $/h.
const WORKERS: [(&str, usize, f64); 9] = [
    ("cpu-1", 0, 0.096),
    ("cpu-2", 0, 0.192),
    ("cpu-3", 0, 0.384),
    ("cpu-4", 0, 0.384),
    ("cpu-5", 0, 0.768),
    ("cpu-6", 1, 2.305),
    ("gpu-1", 1, 2.497),
    ("gpu-2", 1, 2.497),
    ("gpu-3", 1, 2.497),
];

/// Milliseconds at the 75th percentile, by machine in the order above.
const IMAGE: [(&str, [f64; 9]); 5] = [
    ("resnet18", [135.0844, 100.2956, 59.0063, 55.6917, 36.6949, 36.2942, 16.1434, 17.3001, 15.0274]),
    ("resnet34", [230.155, 169.1279, 94.4173, 89.5832, 53.7291, 50.5185, 19.2619, 17.6465, 17.1109]),
    ("resnet50", [307.9504, 246.4774, 133.7928, 147.0475, 76.2285, 86.8699, 18.1155, 17.339, 17.0622]),
    ("resnet101", [465.5516, 423.4748, 229.5531, 214.6378, 122.6358, 125.1677, 23.7041, 23.3836, 23.2222]),
    ("resnet152", [648.8488, 569.4882, 320.233, 307.6617, 168.1648, 173.2521, 31.0735, 30.6595, 30.556]),
];
const SPEECH: [(&str, [f64; 9]); 2] = [
    (
        "wav2vec2-base-960h",
        [264.5288, 186.056, 107.5054, 107.8271, 57.9328, 70.5844, 14.7327, 14.7327, 14.9339],
    ),
    (
        "wav2vec2-large-960h-lv60-self",
        [773.5374, 527.4661, 299.6521, 283.1518, 166.4686, 162.9938, 26.8947, 28.2757, 27.5353],
    ),
];
const ANSWER: [(&str, [f64; 9]); 1] =
    [("default", [45.8509, 29.2769, 18.5149, 17.2128, 11.3365, 11.1373, 4.586, 4.586, 4.586])];

/// End-to-end accuracy by image model (rows) and speech model (columns).
const ACCURACY: [[f64; 2]; 5] =
    [[54.02, 56.59], [54.37, 56.85], [55.42, 57.94], [55.91, 58.19], [55.76, 58.33]];

/// Bytes of an encoded image, a sound, the image features by image model, and a transcript.
const IMAGE_BYTES: f64 = 794.0348300933838 * 1024.0;
const SOUND_BYTES: f64 = 97.07174682617188 * 1024.0;
const FEATURE_BYTES: [f64; 5] = [2052.0, 2052.0, 8196.0, 8196.0, 8196.0];
const TEXT_BYTES: f64 = 0.1 * 1024.0;

/// The case at a rate per second and an accuracy limit in percent; utilisation up to 1, workers shared, traffic to the
/// edge at its price.
pub fn medium(rate: f64, accuracy: f64) -> Problem {
    let variants = |table: &[(&str, [f64; 9])]| -> Vec<Variant> {
        let variant = |(name, milliseconds): &(&str, [f64; 9])| Variant {
            id: (*name).to_owned(),
            modes: milliseconds.iter().map(|ms| vec![ServiceMode::constant(ms / 1000.0)]).collect(),
        };
        table.iter().map(variant).collect()
    };
    let operator = |id: &str, table: &[(&str, [f64; 9])]| Operator {
        id: id.to_owned(),
        rate,
        variants: variants(table),
        weightless: false,
        stateful: false,
        fused: Vec::new(),
    };
    let source = |id: &str| Source { id: id.to_owned(), rate, locations: vec![(0, 1.0)] };
    let edge =
        |from: Producer, to: usize, input: usize, bytes: Vec<f64>| Edge { from, to, input, rate, bytes };
    let route = |price: f64| Some(Route { price: per_gib(price), bandwidth: None, delay: 0.0 });
    let mut rows = Vec::new();
    for (image, accuracies) in ACCURACY.iter().enumerate() {
        for (speech, &accuracy) in accuracies.iter().enumerate() {
            rows.push(AccuracyRow { variants: vec![image, speech, 0], accuracy });
        }
    }
    Problem {
        name: "vqa-medium".to_owned(),
        operators: vec![
            operator("extract_image_feature", &IMAGE),
            operator("recognise_speech", &SPEECH),
            operator("answer", &ANSWER),
        ],
        edges: vec![
            edge(Producer::Source(0), 0, 0, vec![IMAGE_BYTES]),
            edge(Producer::Source(1), 1, 0, vec![SOUND_BYTES]),
            edge(Producer::Operator(0), 2, 0, FEATURE_BYTES.to_vec()),
            edge(Producer::Operator(1), 2, 1, vec![TEXT_BYTES; 2]),
        ],
        sources: vec![source("images"), source("sounds")],
        locations: vec![
            Location { name: "edge".to_owned(), tier: 0 },
            Location { name: "cloud".to_owned(), tier: 1 },
        ],
        worker_classes: WORKERS
            .iter()
            .map(|(name, location, price)| WorkerClass {
                location: *location,
                worker_type: (*name).to_owned(),
                count: 1,
                price: *price,
                memory_bytes: None,
            })
            .collect(),
        routes: vec![vec![route(0.0), route(0.1)], vec![route(1.0), route(0.0)]],
        accuracy: AccuracyModel::Table(rows),
        limits: Limits {
            accuracy: Some(accuracy),
            max_utilization: 1.0,
            return_traffic: ReturnTraffic::Priced,
            ..Limits::default()
        },
    }
}
