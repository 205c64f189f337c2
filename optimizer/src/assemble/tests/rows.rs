//! Rows instead of tensors, which a device prepares.
use super::devices::{DEVICE, case};
use super::*;
use crate::check::{check, recomputed_cost};
use crate::cost::cost;
use crate::physical::{ReadError, physical, solution_of};
use crate::planners::exact::Exact;
use crate::problem::{Remote, Sends, ServiceMode};
use crate::solution::Solution;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::units::Bytes;

/// A case in which the rows of all models may go to the device.
fn with_rows(device: &str, keeps_all: bool) -> Case {
    let mut case = case(device, WORKFLOW);
    case.models.values_mut().flatten().for_each(|model| model.rows = Some(Rows { keeps_all }));
    case
}

/// The modes of the features at the edge whose model is on a device, by what they send.
fn modes(assembly: &Assembly, variant: usize, sends: Sends) -> Vec<(ServiceMode, Remote)> {
    let modes = assembly.problem.operators[0].variants[variant].modes[0].iter();
    let remote = modes.filter_map(|mode| Some((mode.clone(), mode.remote.clone()?)));
    remote.filter(|(_, remote)| remote.sends == sends).collect()
}

#[test]
fn rows_have_the_bytes_of_records_and_the_time_of_whole_calls() {
    let assembly = with_rows(DEVICE, false).assembled();
    let [(stage, remote)] = modes(&assembly, 1, Sends::Rows).try_into().expect("one");
    // Bytes of the edges, and the schemas of a call.
    assert_eq!((remote.sent_bytes, remote.received_bytes), (21_500.0, 3_500.0));
    // The device prepares too: 2 ms, on half of it; as tensors it needs four fifths.
    assert!((remote.run.call_seconds - 0.004).abs() < 1e-9, "{remote:?}");
    assert_eq!((stage.seconds_per_record, stage.call_seconds), (0.0, 0.0), "no overheads are known");
    let [(_, tensors)] = modes(&assembly, 1, Sends::Tensors).try_into().expect("one");
    assert!((tensors.run.call_seconds - 0.0032).abs() < 1e-9 && tensors.sent_bytes == 100_000.0);
    let of_batches = modes(&assembly, 0, Sends::Rows).into_iter();
    let of_batches: Vec<(u32, f64)> =
        of_batches.map(|(mode, remote)| (mode.batch, remote.sent_bytes)).collect();
    assert_eq!(of_batches, [(1, 21_500.0), (4, 20_375.0)]);
}

#[test]
fn an_operator_that_keeps_its_input_gets_the_results_alone() {
    let mut case = with_rows(DEVICE, true);
    let after = case.profile.messages.iter_mut().filter(|message| message.from == "features");
    after.for_each(|message| message.bytes_per_record.0 += 20_000);
    let assembly = case.assembled();
    let received = |variant| modes(&assembly, variant, Sends::Rows)[0].1.received_bytes;
    assert_eq!((received(0), received(1)), (2_800.0, 3_800.0));
}

#[test]
fn a_model_measured_alone_takes_longer_as_rows() {
    let mut case = with_rows(DEVICE, false);
    let of_card = |service: &&mut tidemill_spec::profile::Service| service.worker_type == "card";
    for service in case.profile.services.iter_mut().filter(of_card) {
        service.model_part = Some(Percent(100.0));
    }
    let assembly = case.assembled();
    // A fifth of the 8 ms on `big`, which has the device, is not the model's; twice as long on half of the device.
    let [(_, rows)] = modes(&assembly, 1, Sends::Rows).try_into().expect("one");
    assert!((rows.run.call_seconds - 2.0 * (0.002 + 0.2 * 0.008)).abs() < 1e-9, "{rows:?}");
    let [(_, tensors)] = modes(&assembly, 1, Sends::Tensors).try_into().expect("one");
    assert!((tensors.run.call_seconds - 2.0 * 0.002).abs() < 1e-9, "{tensors:?}");
    let said = "features/large is measured on card without preparing inputs: where it gets rows, that is taken to last as long as on big";
    assert!(assembly.notes.iter().any(|note| note == said), "{:?}", assembly.notes);
}

#[test]
fn a_stage_that_sends_rows_writes_and_reads_a_frame() {
    let mut case = with_rows(DEVICE, false);
    let overheads = "{source: {mean: 1ms, p50: 1ms, p90: 1ms, p99: 1ms}, hand_over: {mean: 2ms, p50: 2ms, p90: 2ms, p99: 2ms}, \
                     frame: {mean: 3ms, p50: 3ms, p90: 3ms, p99: 3ms}, frame_per_mebibyte: 1048576us, call: {mean: 4ms, p50: 4ms, p90: 4ms, p99: 4ms}}";
    let known = PROFILE.replace(
        "{worker_type: little, how: measured}",
        &format!("{{worker_type: little, how: measured, overheads: {overheads}}}"),
    );
    let known = Profile::parse(&known, "profile.yaml").expect("a profile");
    case.profile.machines[0].overheads = known.machines[0].overheads;
    let assembly = case.assembled();
    let (stage, _) = modes(&assembly, 1, Sends::Rows).remove(0);
    // 3 ms, and a microsecond for each of 25,000 bytes; then the engine's own 6 ms.
    assert!((stage.seconds_per_record - 0.028).abs() < 1e-6, "{stage:?}");
    assert!((stage.call_seconds - 0.034).abs() < 1e-6 && (stage.mean_call_seconds - 0.028).abs() < 1e-6);
}

#[test]
fn where_rows_cannot_go_tensors_do() {
    let server = DEVICE.replace("cloud.example:7440", "oip:http://cloud.example:8000");
    let assembly = with_rows(&server, false).assembled();
    assert!(modes(&assembly, 1, Sends::Rows).is_empty() && !modes(&assembly, 1, Sends::Tensors).is_empty());
    let mut unknown = with_rows(DEVICE, false);
    unknown.profile.messages.retain(|message| message.from != "images");
    let free = "price: 0 $/GB";
    for link in &mut unknown.infrastructure.links {
        let infrastructure = INFRASTRUCTURE.replace("price: 0.1 $/GiB, bandwidth: 80Mbps", free);
        let other = Infrastructure::parse(&infrastructure, "infrastructure.yaml").expect("an infrastructure");
        (link.price, link.bandwidth) = (other.links[0].price.clone(), None);
    }
    let assembly = unknown.assembled();
    let said =
        "features/large sends no rows to devices: the profile lacks sizes of its records, before or after it";
    assert!(assembly.notes.iter().any(|note| note == said), "{:?}", assembly.notes);
    assert!(modes(&assembly, 1, Sends::Rows).is_empty() && !modes(&assembly, 1, Sends::Tensors).is_empty());
}

#[test]
fn a_model_without_tensors_of_a_known_size_sends_rows() {
    let mut case = with_rows(DEVICE, false);
    case.models.values_mut().flatten().for_each(|model| model.tensors = None);
    let assembly = case.assembled();
    assert!(!modes(&assembly, 1, Sends::Rows).is_empty() && modes(&assembly, 1, Sends::Tensors).is_empty());
    case.models.values_mut().flatten().for_each(|model| model.rows = None);
    let assembly = case.assembled();
    assert!(!assembly.problem.has_remotes());
    assert!(assembly.notes.iter().any(|note| note.starts_with("features/large is not planned on card")));
}

fn planned(case: &Case) -> (Assembly, Solution) {
    let assembly = case.assembled();
    let outcome = Exact.plan(&assembly.problem, &SearchLimits::default()).expect("plans");
    (assembly, outcome.solution.expect("there is a plan"))
}

/// Traffic costs, and rows are a fifth of the tensors.
#[test]
fn a_plan_says_what_it_sends_and_is_read_back() {
    let mut case = with_rows(DEVICE, false);
    case.infrastructure.tiers[1].workers.value[0].price.value.0 = 5.0;
    let (assembly, solution) = planned(&case);
    let problem = &assembly.problem;
    assert_eq!(check(problem, &solution), []);
    let total = cost(problem, &solution).expect("has a cost").total();
    assert!((recomputed_cost(problem, &solution) - total).abs() < 1e-9);
    let mut plan = physical(&case.inputs(), &assembly, &solution, Vec::new()).expect("is a plan");
    let text = plan.to_yaml().expect("prints");
    assert!(text.contains("sends: rows"), "{text}");
    let read = PlanFile::parse(&text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let stage = read.plan.stages.iter().find(|stage| stage.operator == "features").expect("a stage");
    let run = stage.remote_run.as_ref().expect("is expected");
    let expected = [21_500, 3_500].map(Bytes);
    assert_eq!((stage.sends, [run.sent, run.received]), (Sends::Rows, expected));
    assert_eq!(stage.max_batch, 1);
    let again = solution_of(&case.inputs(), &assembly, &read.plan).unwrap_or_else(|error| panic!("{error}"));
    assert!((cost(problem, &again).expect("has a cost").total() - total).abs() < 1e-9);
    // By hand: tensors, which cost more.
    let features = plan.stages.iter_mut().find(|stage| stage.operator == "features").expect("a stage");
    features.sends = Sends::Tensors;
    let tensors = solution_of(&case.inputs(), &assembly, &plan).unwrap_or_else(|error| panic!("{error}"));
    assert!(cost(problem, &tensors).expect("has a cost").total() > total);
    case.models.values_mut().flatten().for_each(|model| model.tensors = None);
    let refused = solution_of(&case.inputs(), &case.assembled(), &plan);
    assert_eq!(
        refused,
        Err(ReadError::Sends { stage: features_of(&plan), sends: Sends::Tensors }),
        "no figures of tensors"
    );
}

fn features_of(plan: &tidemill_spec::plan::Plan) -> String {
    plan.stages.iter().find(|stage| stage.operator == "features").map(|stage| stage.id.clone()).expect("one")
}
