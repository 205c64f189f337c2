//! A detector whose models find different numbers of objects, from files to the optimum: compared with costs that are
//! computed here from the numbers in the files, by trying all models and numbers of workers and all corners of the
//! shares.
use proptest::prelude::*;
use std::fmt::Write;
use tidemill_operators::registry::Registry;
use tidemill_optimizer::assemble::{Inputs, Model, Models, Options, assemble};
use tidemill_optimizer::check::check;
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::problem::ReturnTraffic;
use tidemill_optimizer::solution::Status;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::profile::Profile;
use tidemill_spec::workflow::Workflow;

/// Largest busy share of a worker's time.
const BUSY: f64 = 0.85;

/// A detector at frames per second, and a model that processes each object.
#[derive(Debug, Clone)]
struct Case {
    frames: u32,
    /// Thousandths of objects per frame, by detector.
    objects: [u32; 3],
    /// Microseconds of a call at the edge and in the cloud, by model.
    detectors: [[u32; 2]; 3],
    embeddings: [[u32; 2]; 2],
    /// Bytes of a frame, and of an object by detector.
    frame: u32,
    object: [u32; 3],
    /// Tenths of a percent, by detector and embedding; and the limit.
    accuracy: [[u32; 2]; 3],
    wanted: u32,
    /// Number of workers, and thousandths of $/h, at the edge and in the cloud.
    workers: [(u32, u32); 2],
    /// Hundredths of $/GB up.
    traffic: u32,
}

fn cases() -> impl Strategy<Value = Case> {
    let times = || [1_000u32..60_000, 500..20_000];
    let few = || [100u32..4_000, 50..2_000];
    (
        (5u32..60, [200u32..6_000, 200..6_000, 200..6_000], [times(), times(), times()], [few(), few()]),
        (1_000u32..60_000, [100u32..30_000, 100..30_000, 100..30_000]),
        ([[300u32..900, 300..900], [300..900, 300..900], [300..900, 300..900]], 300u32..800),
        [(1u32..4, 5u32..60), (1..4, 20..400)],
        0u32..40,
    )
        .prop_map(
            |(
                (frames, objects, detectors, embeddings),
                (frame, object),
                (accuracy, wanted),
                workers,
                traffic,
            )| {
                Case {
                    frames,
                    objects,
                    detectors,
                    embeddings,
                    frame,
                    object,
                    accuracy,
                    wanted,
                    workers,
                    traffic,
                }
            },
        )
}

impl Case {
    fn profile(&self) -> String {
        let mut text =
            "version: 1\nworkflow: {name: objects}\nmachines:\n  - {worker_type: near, how: published}\n  \
            - {worker_type: far, how: published}\nservices:\n"
                .to_owned();
        let mut service = |operator: &str, variant: String, times: [u32; 2]| {
            for (on, time) in ["near", "far"].into_iter().zip(times) {
                let _ = writeln!(
                    text,
                    "  - {{operator: {operator}, variant: {variant}, worker_type: {on}, how: published, batches: [{{batch: 1, p75: {time}us}}]}}"
                );
            }
        };
        for (d, times) in self.detectors.iter().enumerate() {
            service("detect", format!("d{d}"), *times);
        }
        for (e, times) in self.embeddings.iter().enumerate() {
            service("look", format!("e{e}"), *times);
        }
        text += "ratios:\n";
        for (d, objects) in self.objects.iter().enumerate() {
            let _ = writeln!(
                text,
                "  - {{operator: detect, variants: {{detect: d{d}}}, output_per_input: {}}}",
                f64::from(*objects) / 1e3
            );
        }
        let _ =
            writeln!(text, "messages:\n  - {{from: cameras, to: detect, bytes_per_record: {}B}}", self.frame);
        for (d, bytes) in self.object.iter().enumerate() {
            let _ = writeln!(
                text,
                "  - {{from: detect, to: look, variants: {{detect: d{d}}}, bytes_per_record: {bytes}B}}"
            );
        }
        text += "accuracy:\n  metric: objects found\n  sink: out\n  end_to_end:\n";
        for (d, row) in self.accuracy.iter().enumerate() {
            for (e, accuracy) in row.iter().enumerate() {
                let _ = writeln!(
                    text,
                    "    - {{variants: {{detect: d{d}, look: e{e}}}, accuracy: {}%}}",
                    f64::from(*accuracy) / 10.0
                );
            }
        }
        text
    }

    fn infrastructure(&self) -> String {
        let [(near, near_price), (far, far_price)] = self.workers;
        let dollars = |thousandths: u32| f64::from(thousandths) / 1e3;
        format!(
            "version: 1\nname: two\ntiers:\n  - {{id: edge, workers: [{{type: near, count: {near}, price: {} $/h}}]}}\n  \
             - {{id: cloud, workers: [{{type: far, count: {far}, price: {} $/h}}]}}\nlinks:\n  - {{from: edge, to: cloud, price: {} $/GB}}\n",
            dollars(near_price),
            dollars(far_price),
            f64::from(self.traffic) / 100.0
        )
    }

    fn workflow(&self) -> String {
        format!(
            "version: 1\nname: objects\nsources: [{{id: cameras, kind: video, rate: {frames}/s, options: {{path: clips}}}}]\noperators:\n  \
             - {{id: detect, kind: ml, input: cameras, variants: [d0.yaml, d1.yaml, d2.yaml], batching: {{max_batch: 1, budget: 0ms}}}}\n  \
             - {{id: look, kind: ml, input: detect, variants: [e0.yaml, e1.yaml], batching: {{max_batch: 1, budget: 0ms}}}}\n\
             sinks: [{{id: out, kind: jsonl, input: look, options: {{path: out.jsonl}}}}]\nslo: {{rate: {frames}/s, accuracy: {wanted}%}}\n",
            frames = self.frames,
            wanted = f64::from(self.wanted) / 10.0
        )
    }

    /// The least cost in $/h, with the detector of that plan.
    fn least(&self) -> Option<f64> {
        let mut least: Option<f64> = None;
        for detector in 0..3 {
            for embedding in 0..2 {
                if self.accuracy[detector][embedding] < self.wanted {
                    continue;
                }
                for near in 0..=self.workers[0].0 {
                    for far in 0..=self.workers[1].0 {
                        let Some(traffic) = self.traffic_cost(detector, embedding, near, far) else {
                            continue;
                        };
                        let workers = near * self.workers[0].1 + far * self.workers[1].1;
                        let cost = traffic + f64::from(workers) / 1e3;
                        least = Some(least.map_or(cost, |least| least.min(cost)));
                    }
                }
            }
        }
        least
    }

    /// The least cost of traffic with these numbers of workers: a linear program of two shares, `x` of the frames and
    /// `y` of the objects that are processed at the edge, `y` at most `x`, because nothing comes back. Its optimum is
    /// in a corner.
    fn traffic_cost(&self, detector: usize, embedding: usize, near: u32, far: u32) -> Option<f64> {
        let frames = f64::from(self.frames);
        let objects = frames * f64::from(self.objects[detector]) / 1e3;
        let load = |time: u32, rate: f64| f64::from(time) / 1e6 * rate;
        let (detect, look) = (self.detectors[detector], self.embeddings[embedding]);
        let (near_x, near_y) = (load(detect[0], frames), load(look[0], objects));
        let (far_x, far_y) = (load(detect[1], frames), load(look[1], objects));
        // a x + b y <= c
        let limits = [
            (1.0, 0.0, 1.0),
            (0.0, -1.0, 0.0),
            (-1.0, 1.0, 0.0),
            (near_x, near_y, BUSY * f64::from(near)),
            (-far_x, -far_y, BUSY * f64::from(far) - far_x - far_y),
        ];
        let price = f64::from(self.traffic) / 100.0 / 1e9 * 3600.0;
        let cost = |x: f64, y: f64| {
            price
                * ((1.0 - x) * frames * f64::from(self.frame)
                    + (x - y) * objects * f64::from(self.object[detector]))
        };
        let mut least: Option<f64> = None;
        for (index, (a, b, c)) in limits.iter().enumerate() {
            for (d, e, f) in &limits[index + 1..] {
                let determinant = a * e - b * d;
                if determinant.abs() < 1e-12 {
                    continue;
                }
                let (x, y) = ((c * e - b * f) / determinant, (a * f - c * d) / determinant);
                if limits.iter().all(|(a, b, c)| a * x + b * y <= c + 1e-9) {
                    let cost = cost(x, y);
                    least = Some(least.map_or(cost, |least| least.min(cost)));
                }
            }
        }
        least
    }
}

fn models() -> Models {
    let model = |id: String| Model { id, backends: Vec::new(), tensors: None, rows: None, obstacle: None };
    let all = |name: &str, count: usize| (0..count).map(|n| model(format!("{name}{n}"))).collect();
    [("detect".to_owned(), all("d", 3)), ("look".to_owned(), all("e", 2))].into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]
    #[test]
    fn a_detector_that_finds_more_is_planned_with_what_follows(case in cases()) {
        let parsed = |found| panic!("{found}");
        let workflow = Workflow::parse(&case.workflow(), "workflow.yaml").unwrap_or_else(parsed);
        let infrastructure = Infrastructure::parse(&case.infrastructure(), "infrastructure.yaml").unwrap_or_else(|found| panic!("{found}"));
        let profile = Profile::parse(&case.profile(), "profile.yaml").unwrap_or_else(|found| panic!("{found}"));
        let models = models();
        let kinds = Registry::builtin().facts();
        let inputs = Inputs { workflow: &workflow, infrastructure: &infrastructure, profile: &profile, models: &models, kinds: &kinds };
        let options = Options { return_traffic: ReturnTraffic::Forbid, max_utilization: BUSY, ..Options::default() };
        let problem = assemble(&inputs, &options).unwrap_or_else(|found| panic!("{found}")).problem;
        let limits = SearchLimits { wall_seconds: None, gap: 0.0, ..SearchLimits::default() };
        let outcome = Exact.plan(&problem, &limits).unwrap_or_else(|error| panic!("{error}"));
        match (case.least(), outcome.cost) {
            (Some(least), Some(found)) => {
                prop_assert!((least - found).abs() <= 1e-6 * least.max(0.01), "{} instead of {}", found, least);
                prop_assert_eq!(outcome.status, Status::Optimal);
                let solution = outcome.solution.expect("a plan with a cost");
                prop_assert_eq!(check(&problem, &solution), []);
                // The operators after the detector are planned with the detector's number of objects.
                let objects = f64::from(case.objects[solution.variants[0]]) / 1e3 * f64::from(case.frames);
                prop_assert!((problem.at(&solution.variants).operators[1].rate - objects).abs() < 1e-6 * objects);
            }
            (None, None) => prop_assert_eq!(outcome.status, Status::Infeasible),
            (least, found) => prop_assert!(false, "{:?} instead of {:?}", found, least),
        }
    }
}
