//! Order of measurements: first a little of everything, then always the least certain figure.
use crate::state::TaskState;
use crate::statistics::{half_width, mean, samples_for};
use crate::tasks::Task;

/// Half-width goal of the 95 % confidence interval of a mean, as a share of the mean.
pub const WANTED: f64 = 0.05;
/// Least number of samples of a figure.
pub const LEAST: usize = 5;
/// Largest useful number of samples of a figure.
pub const MOST: usize = 2_000;

/// Uncertainty of the figure of one batch size; 0 if it is certain enough.
fn uncertainty(state: &TaskState, batch: u32) -> f64 {
    let samples = state.batches.get(&batch).map(Vec::as_slice).unwrap_or_default();
    let width = half_width(samples);
    if state.failed.is_some() || samples.len() >= MOST || width <= WANTED { 0.0 } else { width }
}

/// Returns the batch sizes of a task that need more samples.
pub fn open(task: &Task, state: &TaskState) -> Vec<u32> {
    task.batches.iter().copied().filter(|batch| uncertainty(state, *batch) > 0.0).collect()
}

/// Returns the index of the task to visit next: the first with the largest uncertainty. `None` when all is certain.
pub fn next(tasks: &[Task], states: &[TaskState]) -> Option<usize> {
    let largest = |(task, state): (&Task, &TaskState)| {
        task.batches.iter().map(|batch| uncertainty(state, *batch)).fold(0.0, f64::max)
    };
    let mut best: Option<(usize, f64)> = None;
    for (place, value) in tasks.iter().zip(states).map(largest).enumerate() {
        if value > best.map_or(0.0, |(_, best)| best) {
            best = Some((place, value));
        }
    }
    best.map(|(place, _)| place)
}

/// Whether a task has the least samples of its smallest batch, or was given up.
fn is_begun(task: &Task, state: &TaskState) -> bool {
    let Some(smallest) = task.batches.iter().min() else { return true };
    state.failed.is_some() || state.batches.get(smallest).is_some_and(|samples| samples.len() >= LEAST)
}

/// Returns the index of the next task without the least samples of its smallest batch, which every profile needs, even with
/// a small budget. `None` when all have them.
pub fn next_unbegun(tasks: &[Task], states: &[TaskState]) -> Option<usize> {
    tasks.iter().zip(states).position(|(task, state)| !is_begun(task, state))
}

/// Whether calls after a pause are still to be measured: for models, and not on a share of a processor, which behaves as a
/// whole one while its quota lasts, nor on a device.
pub fn wants_pause(task: &Task, state: &TaskState) -> bool {
    let is_whole = task.cpus.is_none_or(|cpus| cpus >= 1.0);
    task.variant.is_some()
        && task.device.is_none()
        && is_whole
        && state.failed.is_none()
        && state.after_pause.is_empty()
}

/// Returns the index of the next task with calls after a pause to measure.
pub fn next_without_pause(tasks: &[Task], states: &[TaskState]) -> Option<usize> {
    tasks.iter().zip(states).position(|(task, state)| wants_pause(task, state))
}

/// Number of tasks with times of calls after a pause, and of tasks that still need some.
pub fn pauses(tasks: &[Task], states: &[TaskState]) -> (usize, usize) {
    let with = states.iter().filter(|state| !state.after_pause.is_empty()).count();
    (with, tasks.iter().zip(states).filter(|(task, state)| wants_pause(task, state)).count())
}

/// Number of tasks that [`next_unbegun`] has yet to return.
pub fn unbegun(tasks: &[Task], states: &[TaskState]) -> usize {
    tasks.iter().zip(states).filter(|(task, state)| !is_begun(task, state)).count()
}

/// Number of figures without samples, of tasks that were not given up: the budget did not reach them.
pub fn unreached(tasks: &[Task], states: &[TaskState]) -> usize {
    let of = |(task, state): (&Task, &TaskState)| {
        let without = |batch: &&u32| state.batches.get(*batch).is_none_or(Vec::is_empty);
        if state.failed.is_some() { 0 } else { task.batches.iter().filter(without).count() }
    };
    tasks.iter().zip(states).map(of).sum()
}

/// Number of figures whose mean is certain enough.
pub fn known(tasks: &[Task], states: &[TaskState]) -> usize {
    let of = |(task, state): (&Task, &TaskState)| {
        let known =
            |batch: &&u32| state.batches.get(*batch).is_some_and(|samples| half_width(samples) <= WANTED);
        task.batches.iter().filter(known).count()
    };
    tasks.iter().zip(states).map(of).sum()
}

/// Number of figures, and of those that need no more samples: certain enough, or given up.
pub fn figures(tasks: &[Task], states: &[TaskState]) -> (usize, usize) {
    let all = tasks.iter().map(|task| task.batches.len()).sum();
    let open: usize = tasks.iter().zip(states).map(|(task, state)| open(task, state).len()).sum();
    (all, all - open)
}

/// Estimated seconds for the open figures by their samples; those without any count as `unknown` each.
pub fn seconds_left(tasks: &[Task], states: &[TaskState], unknown: f64) -> f64 {
    let mut sum = 0.0;
    for (task, state) in tasks.iter().zip(states) {
        for batch in open(task, state) {
            let samples = state.batches.get(&batch).map(Vec::as_slice).unwrap_or_default();
            sum += match samples.len() < LEAST {
                true => unknown,
                false => more_seconds(samples).max(0.25),
            };
        }
    }
    sum
}

/// Estimated seconds of measuring until these samples are certain.
pub fn more_seconds(samples: &[u64]) -> f64 {
    let wanted = samples_for(samples, WANTED).min(MOST as f64);
    (wanted - samples.len() as f64).max(1.0) * mean(samples) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(batches: &[u32]) -> Task {
        Task {
            operator: "o".to_owned(),
            variant: None,
            backend: None,
            cpus: None,
            device: None,
            batches: batches.to_vec(),
        }
    }

    fn state(samples: &[(u32, Vec<u64>)]) -> TaskState {
        TaskState { batches: samples.iter().cloned().collect(), ..TaskState::default() }
    }

    #[test]
    fn everything_comes_first_then_the_least_certain() {
        let tasks = [task(&[1, 2]), task(&[1]), task(&[1])];
        let steady = vec![1_000_000; 8];
        let loose: Vec<u64> = (0..8).map(|i| 1_000_000 + 400_000 * (i % 2)).collect();
        let looser: Vec<u64> = (0..8).map(|i| 1_000_000 + 900_000 * (i % 2)).collect();
        let mut states = [TaskState::default(), TaskState::default(), TaskState::default()];
        assert_eq!(next(&tasks, &states), Some(0));
        assert_eq!((next_unbegun(&tasks, &states), unbegun(&tasks, &states)), (Some(0), 3));
        assert_eq!(unreached(&tasks, &states), 4);
        assert_eq!(seconds_left(&tasks, &states, 2.0), 8.0);
        states[0] = state(&[(1, steady.clone()), (2, loose)]);
        assert_eq!(next(&tasks, &states), Some(1));
        states[1] = state(&[(1, looser)]);
        states[2] = TaskState { failed: Some("no".to_owned()), ..TaskState::default() };
        assert_eq!((next_unbegun(&tasks, &states), unreached(&tasks, &states)), (None, 0));
        let only_smallest = [state(&[(1, vec![1_000_000; LEAST])])];
        assert_eq!(next_unbegun(&tasks[..1], &only_smallest), None);
        assert_eq!(unreached(&tasks[..1], &only_smallest), 1);
        assert_eq!((next(&tasks, &states), open(&tasks[0], &states[0])), (Some(1), vec![2]));
        assert_eq!(figures(&tasks, &states), (4, 2));
        assert!(seconds_left(&tasks, &states, 2.0) < 4.0);
        let model = |cpus| Task { variant: Some("v".to_owned()), cpus, ..task(&[1]) };
        let models = [tasks[0].clone(), model(Some(0.5)), model(Some(1.0))];
        let mut of_models = [TaskState::default(), TaskState::default(), TaskState::default()];
        assert_eq!(next_without_pause(&models, &of_models), Some(2));
        let there = Task { device: Some("hub:7440".to_owned()), ..model(None) };
        assert!(wants_pause(&model(None), &of_models[0]) && !wants_pause(&there, &of_models[0]));
        of_models[2].after_pause.push(5);
        assert_eq!(next_without_pause(&models, &of_models), None);
        states[1] = state(&[(1, steady.clone())]);
        assert_eq!(next(&tasks, &states), Some(0));
        states[0] = state(&[(1, steady.clone()), (2, steady)]);
        assert_eq!(next(&tasks, &states), None);
    }

    #[test]
    fn noise_without_end_is_given_up() {
        let noisy: Vec<u64> = (0..MOST as u64).map(|i| if i % 50 == 0 { 1_000_000 } else { 1 }).collect();
        let tasks = [task(&[1])];
        assert_eq!(next(&tasks, &[state(&[(1, noisy[..100].to_vec())])]), Some(0));
        let states = [state(&[(1, noisy)])];
        assert_eq!(
            (next(&tasks, &states), figures(&tasks, &states), known(&tasks, &states)),
            (None, (1, 1), 0)
        );
    }
}
