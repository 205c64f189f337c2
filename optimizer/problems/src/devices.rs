//! Tiny problems with devices that run models for stages elsewhere.
use super::KIB;
use super::small::{small_problem, small_problem_with_latency, small_problem_with_rates};
use tidemill_optimizer::problem::{Problem, Remote, Sends, ServiceMode, WorkerClass};
use tidemill_random::Random;

/// As [`small_problem`] or [`small_problem_with_rates`], with one or two classes of devices, which some models can run
/// on, in one or two batch sizes, some of them with their records as tensors or as rows.
pub fn small_problem_with_devices(seed: u64) -> Problem {
    let problem = match seed % 3 {
        0 => small_problem_with_rates(seed),
        _ => small_problem(seed),
    };
    with_devices(problem, seed, &[1, 4])
}

/// As [`small_problem_with_latency`], with one device, which some models can run on.
pub fn small_problem_with_devices_and_latency(seed: u64) -> Problem {
    with_devices(small_problem_with_latency(seed), seed, &[1])
}

/// The same run with rows, of which most are smaller than tensors; the device prepares them.
fn as_rows(tensors: &Remote, random: &mut Random) -> Remote {
    let longer = if random.chance(0.3) { 1.0 } else { random.uniform(1.0, 3.0) };
    let run = ServiceMode {
        batch: tensors.run.batch,
        seconds_per_record: tensors.run.seconds_per_record * longer,
        memory_bytes: tensors.run.memory_bytes,
        ..ServiceMode::constant(tensors.run.call_seconds * longer)
    };
    Remote {
        run: Box::new(run),
        sends: Sends::Rows,
        sent_bytes: tensors.sent_bytes * random.uniform(0.05, 1.5),
        received_bytes: tensors.received_bytes * random.uniform(0.2, 2.0),
        ..tensors.clone()
    }
}

fn with_devices(mut problem: Problem, seed: u64, batches: &[u32]) -> Problem {
    let mut random = Random::of_seed(seed ^ 0x4445_5649);
    // Forms of records change nothing else.
    let mut other = Random::of_seed(seed ^ 0x524F_5753);
    problem.name = format!("{}, with devices", problem.name);
    let is_limited = !problem.limits.latency.is_empty();
    let own = problem.worker_classes.len();
    for number in 0..if is_limited { 1 } else { 1 + random.below(2) } {
        problem.worker_classes.push(WorkerClass {
            location: random.below(problem.locations.len()),
            worker_type: format!("device{number}"),
            count: 1 + random.below(2) as u32,
            price: if random.chance(0.2) { 0.0 } else { 10f64.powf(random.uniform(-1.5, 0.3)) },
            memory_bytes: (!is_limited && random.chance(0.2)).then(|| random.uniform(0.5, 2.0)),
        });
    }
    let classes = own..problem.worker_classes.len();
    for operator in problem.operators.iter_mut().filter(|operator| !operator.weightless) {
        let runs_there = random.chance(0.7);
        let with_rows = other.chance(0.5);
        let is_only_there = random.chance(0.1);
        let bytes = [10f64.powf(random.uniform(-1.0, 2.0)), 10f64.powf(random.uniform(-2.0, 1.0))];
        let [sent_bytes, received_bytes] = bytes.map(|bytes| bytes * KIB / operator.rate.max(1.0).sqrt());
        for variant in &mut operator.variants {
            variant.modes.resize(classes.end, Vec::new());
            if !runs_there || random.chance(0.2) {
                continue;
            }
            let local = variant.modes.iter().flatten().map(|mode| mode.seconds_per_record);
            let slowest = local.fold(0.0, f64::max);
            for class in classes.clone() {
                let speed = random.uniform(2.0, 10.0);
                for &batch in &batches[..1 + random.below(batches.len())] {
                    let seconds = slowest / speed * (0.4 + 0.6 * f64::from(batch));
                    let memory_bytes = random.uniform(0.2, 1.2);
                    let run = ServiceMode {
                        batch,
                        seconds_per_record: seconds / f64::from(batch),
                        memory_bytes,
                        ..ServiceMode::constant(seconds)
                    };
                    let sends = Sends::Tensors;
                    let remote = Remote { class, run: Box::new(run), sends, sent_bytes, received_bytes };
                    let rows = with_rows.then(|| as_rows(&remote, &mut other));
                    for modes in variant.modes[..own].iter_mut().filter(|modes| !modes.is_empty()) {
                        let part = random.uniform(0.05, 0.5);
                        let seconds = modes[0].seconds_per_record * part;
                        let stage = |seconds: f64, remote: &Remote| ServiceMode {
                            batch,
                            seconds_per_record: seconds,
                            remote: Some(remote.clone()),
                            ..ServiceMode::constant(seconds * f64::from(batch))
                        };
                        modes.push(stage(seconds, &remote));
                        modes.extend(rows.iter().map(|rows| stage(seconds * other.uniform(0.0, 0.4), rows)));
                    }
                }
            }
            if is_only_there {
                variant.modes.iter_mut().for_each(|modes| modes.retain(|mode| mode.remote.is_some()));
            }
        }
    }
    debug_assert_eq!(problem.check(), Ok(()));
    problem
}
