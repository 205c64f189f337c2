mod checkpoints;
mod devices;
mod rows;

use super::*;
use crate::planner::{Planner, SearchLimits};
use crate::problem::{AccuracyModel, Producer};
use std::sync::LazyLock;
use tidemill_operators::registry::Registry;

pub(crate) const WORKFLOW: &str = "
version: 1
name: vqa
sources:
  - {id: images, kind: image_directory, key: key, rate: 40/s, options: {path: images}}
  - {id: questions, kind: wav_directory, key: key, rate: 40/s, options: {path: questions}}
operators:
  - {id: features, kind: ml, input: images, variants: [small.yaml, large.yaml], batching: {max_batch: 4, budget: 20ms}}
  - {id: speech, kind: ml, input: questions, variants: [speech.yaml]}
  - {id: pair, kind: join, inputs: [features, speech], options: {key: key, within: 2s}}
  - {id: answer, kind: ml, input: pair, variants: [answerer.yaml]}
sinks:
  - {id: answers, kind: jsonl, input: answer, options: {path: out.jsonl}}
slo: {rate: 40/s, accuracy: 60%, latency: {percentile: p99, below: 800ms}}
";

pub(crate) const INFRASTRUCTURE: &str = "
version: 1
name: two-tiers
tiers:
  - {id: edge, workers: [{type: little, count: 3, memory: 1GiB, price: 0.02 $/h}]}
  - {id: cloud, workers: [{type: big, count: 2, price: 0.5 $/h}]}
links:
  - {from: edge, to: cloud, price: 0.1 $/GiB, bandwidth: 80Mbps, delay: 20ms}
";

pub(crate) const PROFILE: &str = "
version: 1
workflow: {name: vqa}
machines: [{worker_type: little, how: measured}, {worker_type: big, how: measured}]
services:
  - operator: features
    variant: small
    backend: rten
    worker_type: little
    how: measured
    peak_memory: 64MiB
    batches:
      - {batch: 1, mean: 18ms, deviation: 2ms, p50: 17ms, p75: 20ms, p90: 25ms}
      - {batch: 4, mean: 50ms, p50: 50ms, p75: 60ms, p90: 70ms}
      - {batch: 8, p75: 100ms}
  - {operator: features, variant: small, backend: rten, worker_type: big, how: measured, batches: [{batch: 1, p75: 2ms}]}
  - {operator: features, variant: large, backend: rten, worker_type: big, how: measured, batches: [{batch: 1, p90: 8ms}]}
  - {operator: speech, variant: speech, worker_type: little, how: measured, batches: [{batch: 1, p75: 10ms}]}
  - {operator: speech, variant: speech, worker_type: big, how: measured, batches: [{batch: 1, p75: 1ms}]}
  - {operator: answer, variant: answerer, worker_type: little, how: measured, batches: [{batch: 1, p75: 5ms}]}
  - {operator: answer, variant: answerer, worker_type: big, how: measured, batches: [{batch: 1, p75: 1ms}]}
messages:
  - {from: images, to: features, bytes_per_record: 20kB}
  - {from: questions, to: speech, bytes_per_record: 100kB}
  - {from: features, to: pair, variants: {features: small}, bytes_per_record: 1kB}
  - {from: features, to: pair, variants: {features: large}, bytes_per_record: 2kB}
  - {from: speech, to: pair, input: 1, bytes_per_record: 100B}
accuracy:
  metric: share of right answers
  end_to_end:
    - {variants: {features: small, speech: speech, answer: answerer}, accuracy: 55%}
    - {variants: {features: large, speech: speech, answer: answerer}, accuracy: 65%}
";

/// Facts about the kinds that there are.
pub(crate) fn kinds() -> &'static KindTable {
    static KINDS: LazyLock<KindTable> = LazyLock::new(|| Registry::builtin().facts());
    &KINDS
}

/// The files of a case.
pub(crate) struct Case {
    pub(crate) workflow: Workflow,
    pub(crate) infrastructure: Infrastructure,
    pub(crate) profile: Profile,
    pub(crate) models: Models,
}

impl Case {
    /// Parses the texts. A model's path is its id with an extension.
    pub(crate) fn new(workflow: &str, infrastructure: &str, profile: &str) -> Self {
        let workflow = Workflow::parse(workflow, "workflow.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        let with_models = workflow.operators.iter().filter(|operator| !operator.variants.is_empty());
        let models = with_models.map(|operator| {
            let model = |path: &tidemill_spec::span::Located<String>| Model {
                id: path.value.trim_end_matches(".yaml").to_owned(),
                backends: Vec::new(),
                tensors: Some(TensorBytes { sent: 100_000, received: 1_000 }),
                rows: None,
                obstacle: None,
            };
            (operator.id.value.clone(), operator.variants.iter().map(model).collect())
        });
        let models = models.collect();
        let infrastructure = Infrastructure::parse(infrastructure, "infrastructure.yaml");
        Self {
            workflow,
            infrastructure: infrastructure.unwrap_or_else(|errors| panic!("{errors}")),
            profile: Profile::parse(profile, "profile.yaml").unwrap_or_else(|errors| panic!("{errors}")),
            models,
        }
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            workflow: &self.workflow,
            infrastructure: &self.infrastructure,
            profile: &self.profile,
            models: &self.models,
            kinds: kinds(),
        }
    }

    pub(crate) fn assembled(&self) -> Assembly {
        assemble(&self.inputs(), &Options::default()).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Returns the codes and the text of the errors.
    fn refused(&self) -> (Vec<&'static str>, String) {
        let found = assemble(&self.inputs(), &Options::default()).expect_err("is refused");
        (found.iter().map(|finding| finding.code).collect(), found.to_string())
    }
}

fn vqa() -> Case {
    Case::new(WORKFLOW, INFRASTRUCTURE, PROFILE)
}

#[test]
fn a_join_runs_with_its_only_consumer() {
    let assembly = vqa().assembled();
    let problem = &assembly.problem;
    let ids: Vec<&str> = problem.operators.iter().map(|operator| operator.id.as_str()).collect();
    assert_eq!(ids, ["features", "speech", "answer"]);
    assert_eq!(problem.operators[2].fused, ["pair"]);
    assert!(problem.operators[2].stateful && !problem.operators[0].stateful);
    assert_eq!(assembly.hosts["pair"], 2);
    assert_eq!(
        problem.operators.iter().map(|operator| operator.rate).collect::<Vec<_>>(),
        [40.0, 40.0, 40.0]
    );
    let edges: Vec<_> = problem.edges.iter().map(|e| (e.from, e.to, e.input, e.bytes.clone())).collect();
    assert_eq!(
        edges,
        [
            (Producer::Source(0), 0, 0, vec![20e3]),
            (Producer::Source(1), 1, 0, vec![100e3]),
            (Producer::Operator(0), 2, 0, vec![1e3, 2e3]),
            (Producer::Operator(1), 2, 1, vec![100.0]),
        ]
    );
}

#[test]
fn machines_links_and_limits_are_in_base_units() {
    let problem = vqa().assembled().problem;
    assert_eq!(problem.worker_classes[0].memory_bytes, Some(f64::from(1 << 30)));
    assert_eq!((problem.worker_classes[1].count, problem.worker_classes[1].price), (2, 0.5));
    let up = problem.routes[0][1].expect("a link leads up");
    assert_eq!((up.bandwidth, up.delay), (Some(10e6), 0.02));
    assert!((up.price - crate::cost::per_gib(0.1)).abs() < 1e-18);
    assert!(problem.routes[1][0].is_none() && problem.routes[0][0].is_some());
    assert_eq!(problem.limits.accuracy, Some(60.0));
    let limit = &problem.limits.latency[0];
    assert_eq!((limit.percentile, limit.seconds, problem.limits.tick_seconds), (99.0, 0.8, 0.05));
}

#[test]
fn modes_are_the_measured_batches_that_are_allowed() {
    let problem = vqa().assembled().problem;
    let small = &problem.operators[0].variants[0];
    let on_little: Vec<(u32, f64, f64)> =
        small.modes[0].iter().map(|mode| (mode.batch, mode.seconds_per_record, mode.fill_seconds)).collect();
    // A batch of 8 exceeds the operator's `max_batch`.
    assert_eq!(on_little, [(1, 0.02, 0.0), (4, 0.015, 0.02)]);
    assert_eq!(small.modes[0][0].mean_call_seconds, 0.018);
    assert!((small.modes[0][0].variance_call_seconds - 4e-6).abs() < 1e-12);
    assert_eq!(small.modes[0][0].memory_bytes, f64::from(64 << 20));
    // A higher percentile replaces an unknown p75.
    let large = &problem.operators[0].variants[1];
    assert!(large.modes[0].is_empty());
    assert_eq!(large.modes[1][0].call_seconds, 0.008);
}

/// Three of four calls run within a quota, the fourth is stopped for long; most calls come after a pause.
#[test]
fn a_worker_serves_no_more_than_the_mean_allows() {
    let written = "{batch: 1, mean: 18ms, deviation: 2ms, p50: 17ms, p75: 20ms, p90: 25ms}";
    let figures = |batch: &str, after: &str| {
        let text = PROFILE.replace(written, batch);
        let text = text.replace("    peak_memory: 64MiB\n", &format!("    peak_memory: 64MiB\n{after}"));
        let problem = Case::new(WORKFLOW, INFRASTRUCTURE, &text).assembled().problem;
        let mode = problem.operators[0].variants[0].modes[0][0].clone();
        [mode.seconds_per_record, mode.call_seconds, mode.mean_call_seconds]
    };
    let near = |found: [f64; 3], expected: [f64; 3]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?} {expected:?}");
    };
    near(figures("{batch: 1, mean: 30ms, p50: 17ms, p75: 20ms, p90: 90ms}", ""), [0.030, 0.020, 0.030]);
    let after = "    after_pause: {pause: 20ms, times: {batch: 1, mean: 22ms, p75: 25ms}}\n";
    near(figures(written, after), [0.025, 0.025, 0.022]);
}

#[test]
fn the_engine_takes_time_around_a_call_and_no_worker() {
    let time = "{mean: 1ms, p50: 1ms, p90: 1ms, p99: 1ms}";
    let overheads = format!(
        "overheads: {{source: {time}, hand_over: {time}, frame: {time}, frame_per_mebibyte: 0s, call: {time}}}"
    );
    let machine = "{worker_type: little, how: measured";
    let text = PROFILE.replace(machine, &format!("{machine}, {overheads}"));
    let of = |profile: &str| {
        let problem = Case::new(WORKFLOW, INFRASTRUCTURE, profile).assembled().problem;
        let [little, big] = [0, 1].map(|class| problem.operators[0].variants[0].modes[class][0].clone());
        (little.call_seconds, little.seconds_per_record, big.call_seconds)
    };
    let (without, with) = (of(PROFILE), of(&text));
    assert!((with.0 - without.0 - 0.002).abs() < 1e-12, "handed over and called: {with:?} {without:?}");
    assert_eq!((with.1, with.2), (without.1, without.2));
}

#[test]
fn slower_modes_count_only_where_latency_does() {
    let options = Options { without: BTreeSet::from([Level::Latency]), ..Options::default() };
    let problem = assemble(&vqa().inputs(), &options).unwrap_or_else(|errors| panic!("{errors}")).problem;
    let modes: Vec<u32> = problem.operators[0].variants[0].modes[0].iter().map(|mode| mode.batch).collect();
    assert_eq!(modes, [4]);
}

#[test]
fn what_has_no_figures_is_left_out_and_named() {
    let assembly = vqa().assembled();
    let report = "features/large has no figures on `little`: not planned there";
    assert!(assembly.notes.iter().any(|note| note == report), "{:?}", assembly.notes);
}

#[test]
fn accuracies_are_a_table_where_measured_end_to_end() {
    let problem = vqa().assembled().problem;
    assert_eq!((problem.accuracy_of(&[0, 0, 0]), problem.accuracy_of(&[1, 0, 0])), (Some(55.0), Some(65.0)));
    assert!(problem.accepts(&[1, 0, 0]) && !problem.accepts(&[0, 0, 0]));
}

#[test]
fn accuracies_hold_for_all_variants_that_the_sink_does_not_hear_of() {
    let rows = "
accuracy:
  metric: share of right answers
  sink: seen
  end_to_end:
    - {variants: {features: small}, accuracy: 55%}
    - {variants: {features: large}, accuracy: 65%}
";
    let profile = PROFILE.split("accuracy:").next().unwrap_or_default().to_owned() + rows;
    let workflow = WORKFLOW.replace("sinks:", "sinks:\n  - {id: seen, kind: nowhere, input: features}");
    let problem = Case::new(&workflow, INFRASTRUCTURE, &profile).assembled().problem;
    assert_eq!((problem.accuracy_of(&[0, 0, 0]), problem.accuracy_of(&[1, 0, 0])), (Some(55.0), Some(65.0)));
    // Something must be known of an operator that feeds the sink.
    let all = profile.replace("sink: seen", "sink: answers");
    let any = workflow.replace("accuracy: 60%, ", "");
    let assembly = Case::new(&any, INFRASTRUCTURE, &all).assembled();
    assert_eq!(assembly.problem.accuracy_of(&[0, 0, 0]), None);
    assert!(assembly.notes.iter().any(|note| note.contains("2 rows of accuracy")), "{:?}", assembly.notes);
}

#[test]
fn a_variant_of_unknown_accuracy_is_not_taken_for_perfect() {
    let rows = "
accuracy:
  metric: share of right answers
  models:
    - {operator: features, variant: small, name: top1, value: 0.6, higher_is_better: true, accuracy: 60%}
";
    let profile = PROFILE.split("accuracy:").next().unwrap_or_default().to_owned() + rows;
    let assembly = Case::new(WORKFLOW, INFRASTRUCTURE, &profile).assembled();
    assert_eq!(assembly.problem.accuracy_of(&[0, 0, 0]), Some(60.0));
    assert_eq!(assembly.problem.accuracy_of(&[1, 0, 0]), None);
    let report = "the accuracy of `features large` is not known: not chosen if an accuracy is required";
    assert!(assembly.notes.iter().any(|note| note == report), "{:?}", assembly.notes);
}

#[test]
fn accuracies_are_looked_up_row_by_row_otherwise() {
    let rows = "
accuracy:
  metric: share of right answers
  response:
    - {operator: answer, variant: answerer, inputs: {features: 50%, speech: 80%}, output: 52%}
    - {operator: answer, variant: answerer, inputs: {features: 70%, speech: 80%}, output: 61%}
  models:
    - {operator: features, variant: small, name: top1, value: 0.6, higher_is_better: true, accuracy: 60%}
    - {operator: features, variant: large, name: top1, value: 0.7, higher_is_better: true, accuracy: 70%}
    - {operator: speech, variant: speech, name: wer, value: 0.1, higher_is_better: false, accuracy: 90%}
";
    let profile = PROFILE.split("accuracy:").next().unwrap_or_default().to_owned() + rows;
    let problem = Case::new(WORKFLOW, INFRASTRUCTURE, &profile).assembled().problem;
    assert!(matches!(problem.accuracy, AccuracyModel::RowLookup(_)));
    assert_eq!((problem.accuracy_of(&[0, 0, 0]), problem.accuracy_of(&[1, 0, 0])), (Some(52.0), Some(61.0)));
}

#[test]
fn sources_stand_at_every_site_of_the_lowest_tier() {
    let sites = INFRASTRUCTURE.replace("{id: edge,", "{id: edge, locations: [north, south],");
    let assembly = Case::new(WORKFLOW, &sites, PROFILE).assembled();
    let problem = &assembly.problem;
    let names: Vec<&str> = problem.locations.iter().map(|location| location.name.as_str()).collect();
    assert_eq!(names, ["edge/north", "edge/south", "cloud"]);
    assert_eq!(problem.sources[0].locations, [(0, 0.5), (1, 0.5)]);
    assert!(problem.routes[0][1].is_none(), "no link leads from site to site");
    assert!(problem.routes[0][0].is_some() && problem.routes[1][2].is_some());
    assert_eq!(problem.origins().len(), 1);
    assert_eq!(assembly.sites[1], Site { tier: "edge".into(), location: Some("south".into()) });
}

#[test]
fn sources_stand_where_the_infrastructure_says() {
    let sites = INFRASTRUCTURE.replace("{id: edge,", "{id: edge, locations: [north, south],");
    let placed =
        sites + "sources: [{id: images, tier: edge, location: south}, {id: questions, tier: cloud}]\n";
    let problem = Case::new(WORKFLOW, &placed, PROFILE).assembled().problem;
    assert_eq!(problem.sources[0].locations, [(1, 1.0)]);
    assert_eq!(problem.sources[1].locations, [(2, 1.0)]);
    assert_eq!(problem.origins().len(), 2);
}

#[test]
fn rates_follow_the_level_and_the_ratios() {
    let workflow = WORKFLOW
        .replace("key: key, rate: 40/s, options: {path: q", "key: key, rate: 20/s, options: {path: q");
    let profile =
        PROFILE.replace("messages:", "ratios: [{operator: speech, output_per_input: 0.5}]\nmessages:");
    let case = Case::new(&workflow, INFRASTRUCTURE, &profile);
    let problem = case.assembled().problem;
    // The slowest source gets 40/s, the other keeps its proportion; a join makes pairs at the lower rate.
    assert_eq!(problem.sources.iter().map(|source| source.rate).collect::<Vec<_>>(), [80.0, 40.0]);
    assert_eq!(
        problem.operators.iter().map(|operator| operator.rate).collect::<Vec<_>>(),
        [80.0, 40.0, 20.0]
    );
    assert_eq!(problem.edges[3].rate, 20.0);
    let options = Options { rate: Some(Rate(10.0)), ..Options::default() };
    let slower = assemble(&case.inputs(), &options).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((slower.rate, slower.problem.sources[0].rate), (10.0, 20.0));
}

#[test]
fn rates_follow_the_models_chosen() {
    let ratios = "ratios:
  - {operator: features, variants: {features: small}, output_per_input: 0.5}
  - {operator: features, variants: {features: large}, output_per_input: 2}
  - {operator: answer, variants: {features: large}, output_per_input: 3}
messages:";
    let case = Case::new(WORKFLOW, INFRASTRUCTURE, &PROFILE.replace("messages:", ratios));
    let assembly = case.assembled();
    let problem = &assembly.problem;
    let rates = |problem: &crate::problem::Problem| -> Vec<f64> {
        problem.operators.iter().map(|operator| operator.rate).collect()
    };
    // A join makes pairs at the lower rate, here of 20/s and 80/s against 40/s.
    assert_eq!(rates(&problem.at(&[0, 0, 0])), [40.0, 40.0, 20.0]);
    assert_eq!(rates(&problem.at(&[1, 0, 0])), [40.0, 40.0, 40.0]);
    assert_eq!(rates(problem), [40.0, 40.0, 40.0], "the most of any");
    let features = problem.edges.iter().position(|edge| edge.from == Producer::Operator(0)).expect("an edge");
    assert_eq!(
        (problem.edge_rate(features, &[0, 0, 0]), problem.edge_rate(features, &[1, 0, 0])),
        (20.0, 80.0)
    );
    assert_eq!(problem.edge_bytes_per_second(features, &[1, 0, 0]), 160_000.0);
    let outcome = crate::planners::exact::Exact.plan(problem, &SearchLimits::default()).expect("plans");
    let solution = outcome.solution.expect("a plan");
    let plan = crate::physical::physical(&case.inputs(), &assembly, &solution, Vec::new()).expect("it fits");
    let to_sink = plan.edges.iter().find(|edge| edge.to == "answers").expect("an edge");
    assert_eq!(to_sink.rate.map(|rate| rate.0), Some(120.0), "only the large model is accurate enough");
}

const RELATIONAL: &str = "
version: 1
name: vqa
sources:
  - {id: rows, kind: csv, rate: 10/s, options: {path: rows.csv}}
  - {id: more, kind: csv, rate: 10/s, options: {path: more.csv}}
operators:
  - {id: good, kind: filter, input: rows, options: {where: a > 1}}
  - {id: look, kind: ml, input: good, variants: [small.yaml]}
  - {id: named, kind: map, input: look, options: {columns: {a: b}}}
  - {id: both, kind: join, inputs: [named, more], options: {key: key, within: 2s}}
  - {id: left, kind: ml, input: both, variants: [small.yaml]}
  - {id: right, kind: ml, input: both, variants: [small.yaml]}
  - {id: kept, kind: filter, input: more, options: {where: a > 1}}
sinks:
  - {id: a, kind: jsonl, input: left, options: {path: a.jsonl}}
  - {id: b, kind: jsonl, input: right, options: {path: b.jsonl}}
  - {id: c, kind: jsonl, input: kept, options: {path: c.jsonl}}
";

#[test]
fn weightless_operators_are_fused_where_that_decides_nothing() {
    let profile = "
version: 1
workflow: {name: vqa}
machines: [{worker_type: little, how: measured}]
services:
  - {operator: look, variant: small, worker_type: little, how: measured, batches: [{batch: 1, p75: 1ms}]}
  - {operator: left, variant: small, worker_type: little, how: measured, batches: [{batch: 1, p75: 1ms}]}
  - {operator: right, variant: small, worker_type: little, how: measured, batches: [{batch: 1, p75: 1ms}]}
messages:
  - {from: rows, to: good, bytes_per_record: 10B}
  - {from: named, to: both, bytes_per_record: 20B}
  - {from: more, to: both, input: 1, bytes_per_record: 30B}
  - {from: both, to: left, bytes_per_record: 40B}
  - {from: both, to: right, bytes_per_record: 40B}
  - {from: more, to: kept, bytes_per_record: 30B}
";
    let assembly = Case::new(RELATIONAL, INFRASTRUCTURE, profile).assembled();
    let problem = &assembly.problem;
    let seen: Vec<(&str, bool, Vec<&str>)> = problem
        .operators
        .iter()
        .map(|o| (o.id.as_str(), o.weightless, o.fused.iter().map(String::as_str).collect()))
        .collect();
    // A filter after a source runs with its consumer, a map with its producer. A filter between source and sink stands
    // alone. So does the join: all its records must meet on one worker, and others need not stay there.
    assert_eq!(
        seen,
        [
            ("look", false, vec!["good", "named"]),
            ("both", false, vec![]),
            ("left", false, vec![]),
            ("right", false, vec![]),
            ("kept", true, vec![]),
        ]
    );
    let both = &problem.operators[1];
    assert!(both.stateful && both.on_one_worker);
    assert!(both.variants[0].modes.iter().flatten().all(|mode| mode.call_seconds == 0.0));
    assert!(
        assembly.notes.iter().any(|note| note.starts_with("both has no figures")),
        "{:?}",
        assembly.notes
    );
    let bytes: Vec<f64> = problem.edges.iter().map(|edge| edge.bytes[0]).collect();
    assert_eq!(bytes, [10.0, 20.0, 30.0, 40.0, 40.0, 30.0]);
}

#[test]
fn a_rate_is_needed() {
    let workflow = WORKFLOW.replace("rate: 40/s, options", "options").replace("slo: {rate: 40/s, ", "slo: {");
    let (codes, text) = Case::new(&workflow, INFRASTRUCTURE, PROFILE).refused();
    assert_eq!(codes, ["E0901"]);
    assert!(text.contains("`--slo rate=40/s`"), "{text}");
}

#[test]
fn an_operator_without_figures_is_refused() {
    let mut case = vqa();
    case.profile.services.retain(|service| service.operator != "speech");
    let (codes, text) = case.refused();
    assert_eq!(codes, ["E0902"]);
    assert!(
        text.contains("no figures of `speech` on any worker of the infrastructure (`little` and `big`)"),
        "{text}"
    );
    assert!(text.contains("`tidemill profile workflow.yaml --infra FILE`"), "{text}");
}

#[test]
fn an_accuracy_that_nobody_measured_is_refused() {
    let mut case = vqa();
    case.profile.accuracy = None;
    assert_eq!(case.refused().0, ["E0903"]);
    let options = Options { without: BTreeSet::from([Level::Accuracy]), ..Options::default() };
    assert!(assemble(&case.inputs(), &options).is_ok());
}

#[test]
fn a_message_of_unknown_size_is_refused_where_traffic_matters() {
    let mut case = vqa();
    case.profile.messages.retain(|message| message.from != "questions");
    let (codes, text) = case.refused();
    assert_eq!(codes, ["E0904"]);
    assert!(text.contains("from `questions` to `speech`"), "{text}");
    case.infrastructure.links.clear();
    case.infrastructure.tiers[0].workers.value[0].worker_type.value = "big".into();
    assert!(assemble(&case.inputs(), &Options::default()).is_ok());
}

#[test]
fn a_missing_link_is_refused() {
    let mut case = vqa();
    case.infrastructure.links.clear();
    case.profile.services.retain(|service| service.operator != "speech" || service.worker_type == "big");
    let (codes, text) = case.refused();
    assert_eq!(codes, ["E0905"]);
    assert!(text.contains("`speech` can run only in `cloud`, but no link leads there from `edge`"), "{text}");
    assert!(text.contains("{from: edge, to: cloud"), "{text}");
}

#[test]
fn models_with_an_obstacle_are_planned_with_only_if_all_have_one() {
    let mut case = vqa();
    let models = case.models.get_mut("features").expect("is there");
    models[0].obstacle = Some("not fetched".into());
    let assembly = case.assembled();
    assert_eq!(assembly.problem.operators[0].variants.len(), 1);
    assert!(assembly.notes.contains(&"features/small is left out: not fetched".to_owned()));
    case.models.values_mut().flatten().for_each(|model| model.obstacle = Some("not here".into()));
    assert_eq!(case.assembled().problem.operators[0].variants.len(), 2);
}

/// Plans leave the share of other programs free: everything is slowed so that work filling the remainder fills the
/// machine.
#[test]
fn what_others_take_of_a_machine_is_not_there() {
    let machines = "{type: little, count: 3, memory: 1GiB, price: 0.02 $/h}";
    let shared = "{type: little, count: 2, memory: 1GiB, price: 0.02 $/h, names: [a, b]}, \
                  {type: little, memory: 1GiB, price: 0 $/h, names: [c], busy: 42.5%}, \
                  {type: little, memory: 1GiB, price: 0 $/h, names: [d], busy: 90%}";
    let assembly = Case::new(WORKFLOW, &INFRASTRUCTURE.replace(machines, shared), PROFILE).assembled();
    let modes = &assembly.problem.operators[0].variants[0].modes;
    let times =
        |class: usize| -> Vec<f64> { modes[class].iter().map(|mode| mode.seconds_per_record).collect() };
    assert_eq!(assembly.names[..3], [vec!["a".to_owned(), "b".into()], vec!["c".into()], vec!["d".into()]]);
    assert_eq!(times(0), [0.02, 0.015]);
    assert!((assembly.slowdown(1) - 2.0).abs() < 1e-12);
    assert!(times(1).iter().zip(times(0)).all(|(busy, free)| (busy - 2.0 * free).abs() < 1e-12));
    assert!(times(2).is_empty(), "nothing is left");
    let locations = INFRASTRUCTURE
        .replace("{id: edge, workers", "{id: edge, locations: [north, south], workers")
        .replace(
            machines,
            "{type: little, count: 2, memory: 1GiB, price: 0.02 $/h, names: [a, b, c, d]}, \
         {type: little, memory: 1GiB, price: 0.03 $/h, names: [e], locations: [south]}",
        );
    let assembly = Case::new(WORKFLOW, &locations, PROFILE).assembled();
    let classes: Vec<(usize, f64)> =
        assembly.problem.worker_classes.iter().map(|class| (class.location, class.price)).collect();
    assert_eq!(classes, [(0, 0.02), (1, 0.02), (1, 0.03), (2, 0.5)]);
    assert_eq!(assembly.names[1], ["c", "d"]);
}
