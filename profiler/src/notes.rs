//! Notes about profiles with missing or uncertain times.
use crate::pace;
use crate::schedule;
use crate::state::TaskState;
use crate::tasks::Task;
use std::time::Duration;

/// Note about figures without samples, `unbegun` of them of operators or models without any.
pub(crate) fn not_reached(budget: Duration, unreached: usize, figures: usize, unbegun: usize) -> String {
    let which = match unbegun {
        0 => "larger batches".to_owned(),
        1 => "one operator or model has none at all".to_owned(),
        n => format!("{n} operators and models have none at all"),
    };
    format!(
        "the budget of {:.0} s did not reach {unreached} of {figures} figures ({which}): run it again, \
         which continues, or give it a larger --budget",
        budget.as_secs_f64()
    )
}

/// Note about changes of the processor's pace.
pub(crate) fn drifted(tasks: &[Task], states: &[TaskState], best: u64) -> Option<String> {
    let all: Vec<(&Task, &TaskState)> =
        tasks.iter().zip(states).filter(|(_, state)| pace::has_drifted(state, best)).collect();
    let (first, _) = all.first()?;
    let slowest = all.iter().map(|(_, state)| pace::slowness(state, best)).fold(1.0, f64::max);
    Some(format!(
        "the processor did not keep its pace while {} of {} operators and models were measured ({}{}): a fixed computation took up to \
         {slowest:.2} times as long as at its best, so their times are too long; run it again when the machine is quiet",
        all.len(),
        tasks.len(),
        first.name(),
        if all.len() > 1 { ", ..." } else { "" }
    ))
}

/// Note about models without times after a pause if others have them: a planner would prefer the former.
pub(crate) fn without_pauses(tasks: &[Task], states: &[TaskState]) -> Option<String> {
    let (with, without) = schedule::pauses(tasks, states);
    (with > 0 && without > 0).then(|| {
        format!(
            "the budget did not reach the times after a pause of {without} of {} models on whole processors, so these look \
             quicker than they are: run it again, or give it a larger --budget",
            with + without
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_without_times_after_a_pause_are_counted() {
        let task = Task {
            operator: "o".to_owned(),
            variant: Some("v".to_owned()),
            backend: None,
            cpus: None,
            device: None,
            batches: vec![1],
        };
        let share = Task { cpus: Some(0.5), ..task.clone() };
        let plain = Task { variant: None, ..task.clone() };
        let tasks = [task.clone(), task, share, plain];
        let measured = TaskState { after_pause: vec![7], ..TaskState::default() };
        let none = TaskState::default;
        let note = without_pauses(&tasks, &[measured.clone(), none(), none(), none()]).unwrap();
        assert!(note.contains("1 of 2 models"), "{note}");
        assert_eq!(without_pauses(&tasks, &[measured.clone(), measured, none(), none()]), None);
        assert_eq!(without_pauses(&tasks, &[none(), none(), none(), none()]), None, "all are alike");
    }

    #[test]
    fn what_the_budget_did_not_reach_is_told() {
        let note = |unbegun| not_reached(Duration::from_secs(10), 950, 1001, unbegun);
        assert!(
            note(940).contains("10 s did not reach 950 of 1001 figures (940 operators and models"),
            "{}",
            note(940)
        );
        assert!(note(0).contains("(larger batches): run it again"), "{}", note(0));
    }

    #[test]
    fn times_of_a_slower_processor_are_told() {
        let task = Task {
            operator: "o".to_owned(),
            variant: None,
            backend: None,
            cpus: None,
            device: None,
            batches: vec![1],
        };
        let of = |slowest_pace| TaskState { slowest_pace, ..TaskState::default() };
        let note = drifted(&[task.clone(), task.clone()], &[of(1_000), of(1_500)], 1_000).unwrap();
        assert!(note.contains("1 of 2") && note.contains("1.50 times"), "{note}");
        assert_eq!(drifted(&[task], &[of(1_000)], 1_000), None);
    }
}
