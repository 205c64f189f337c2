//! The published case: visual question answering in the medium setup of JellyBean, the inputs of its prototype's optimizer
//! (MIT licence). `optimizer/tests/published_vqa_medium.json` has the same numbers and more percentiles.
use super::KIB;
use tidemill_optimizer::cost::per_gib;
use tidemill_optimizer::problem::{
    AccuracyModel, AccuracyRow, Edge, Limits, Location, Operator, Problem, Producer, ReturnTraffic, Route,
    ServiceMode, Source, Variant, WorkerClass,
};

const EDGE: usize = 0;

/// Worker, its location, its price in $/h.
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

/// Operator, variant, milliseconds of a request at the 75th percentile by worker.
const LATENCIES: [(&str, &str, [f64; 9]); 8] = [
    (
        "SpeechRecognition",
        "wav2vec2-base-960h",
        [264.5288, 186.056, 107.5054, 107.8271, 57.9328, 70.5844, 14.7327, 14.7327, 14.9339],
    ),
    (
        "SpeechRecognition",
        "wav2vec2-large-960h-lv60-self",
        [773.5374, 527.4661, 299.6521, 283.1518, 166.4686, 162.9938, 26.8947, 28.2757, 27.5353],
    ),
    (
        "ExtractImageFeature",
        "resnet18",
        [135.0844, 100.2956, 59.0063, 55.6917, 36.6949, 36.2942, 16.1434, 17.3001, 15.0274],
    ),
    (
        "ExtractImageFeature",
        "resnet34",
        [230.155, 169.1279, 94.4173, 89.5832, 53.7291, 50.5185, 19.2619, 17.6465, 17.1109],
    ),
    (
        "ExtractImageFeature",
        "resnet50",
        [307.9504, 246.4774, 133.7928, 147.0475, 76.2285, 86.8699, 18.1155, 17.339, 17.0622],
    ),
    (
        "ExtractImageFeature",
        "resnet101",
        [465.5516, 423.4748, 229.5531, 214.6378, 122.6358, 125.1677, 23.7041, 23.3836, 23.2222],
    ),
    (
        "ExtractImageFeature",
        "resnet152",
        [648.8488, 569.4882, 320.233, 307.6617, 168.1648, 173.2521, 31.0735, 30.6595, 30.556],
    ),
    ("VQA", "default", [45.8509, 29.2769, 18.5149, 17.2128, 11.3365, 11.1373, 4.586, 4.586, 4.586]),
];

const OPERATORS: [&str; 3] = ["ExtractImageFeature", "SpeechRecognition", "VQA"];

/// Variants of the image features and of the speech recognition, and the accuracy of the answers in percent.
const ACCURACIES: [(usize, usize, f64); 10] = [
    (0, 0, 54.02),
    (0, 1, 56.59),
    (1, 0, 54.37),
    (1, 1, 56.85),
    (2, 0, 55.42),
    (2, 1, 57.94),
    (3, 0, 55.91),
    (3, 1, 58.19),
    (4, 0, 55.76),
    (4, 1, 58.33),
];

/// Settings for planning the published case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedSetting {
    /// A worker runs one operator, no traffic to a lower tier: the original rules.
    OneOperatorPerWorker,
    /// Operators share workers, no traffic to a lower tier.
    Shared,
    /// Operators share workers, traffic to a lower tier costs ten times that to a higher one.
    SharedWithReturnTraffic,
}

impl PublishedSetting {
    /// All settings.
    pub const ALL: [Self; 3] = [Self::OneOperatorPerWorker, Self::Shared, Self::SharedWithReturnTraffic];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneOperatorPerWorker => "one_operator_per_worker",
            Self::Shared => "shared",
            Self::SharedWithReturnTraffic => "shared_with_return_traffic",
        }
    }
}

/// Returns the published case at a rate of questions per second, with a least accuracy in percent. Workers may be busy
/// all the time, as in the original.
pub fn published_vqa_problem(rate: f64, accuracy: f64, setting: PublishedSetting) -> Problem {
    let variants = |operator: &str| -> Vec<Variant> {
        let rows = LATENCIES.iter().filter(|(of, _, _)| *of == operator);
        rows.map(|(_, id, milliseconds)| Variant {
            id: (*id).to_owned(),
            modes: milliseconds.iter().map(|ms| vec![ServiceMode::constant(ms / 1000.0)]).collect(),
        })
        .collect()
    };
    let operator = |id: &&str| Operator {
        id: (*id).to_owned(),
        rate,
        variants: variants(id),
        weightless: false,
        stateful: false,
        follows_event_time: false,
        on_one_worker: false,
        survive: 0,
        fused: Vec::new(),
    };
    let edge = |from: Producer, to: usize, input: usize, kib: &[f64]| Edge {
        from,
        to,
        input,
        rate,
        bytes: kib.iter().map(|kib| kib * KIB).collect(),
    };
    let (small, large) = (2.00390625, 8.00390625);
    let price = |price: f64| Some(Route { price: per_gib(price), ..Route::default() });
    let source = |id: &str| Source {
        id: id.into(),
        rate,
        locations: vec![(EDGE, 1.0)],
        at_one_time: 1,
        replies: false,
    };
    Problem {
        name: "published VQA, medium setup".into(),
        operators: OPERATORS.iter().map(operator).collect(),
        edges: vec![
            edge(Producer::Source(0), 0, 0, &[794.0348300933838]),
            edge(Producer::Source(1), 1, 0, &[97.07174682617188]),
            edge(Producer::Operator(0), 2, 0, &[small, small, large, large, large]),
            edge(Producer::Operator(1), 2, 1, &[0.1, 0.1]),
        ],
        sources: vec![source("ReadImage"), source("ReadSpeech")],
        locations: vec![
            Location { name: "edge".into(), tier: 0 },
            Location { name: "cloud".into(), tier: 1 },
        ],
        worker_classes: WORKERS
            .iter()
            .map(|&(name, location, price)| WorkerClass {
                location,
                worker_type: name.into(),
                count: 1,
                price,
                memory_bytes: None,
            })
            .collect(),
        // From edge to cloud, and back.
        routes: vec![vec![price(0.0), price(0.1)], vec![price(1.0), price(0.0)]],
        rates: None,
        sizes: Vec::new(),
        accuracy: AccuracyModel::Table(
            ACCURACIES
                .iter()
                .map(|&(image, speech, accuracy)| AccuracyRow { variants: vec![image, speech, 0], accuracy })
                .collect(),
        ),
        limits: Limits {
            accuracy: Some(accuracy),
            max_utilization: 1.0,
            one_operator_per_worker: setting == PublishedSetting::OneOperatorPerWorker,
            return_traffic: match setting {
                PublishedSetting::SharedWithReturnTraffic => ReturnTraffic::Priced,
                _ => ReturnTraffic::Forbid,
            },
            ..Limits::default()
        },
    }
}
