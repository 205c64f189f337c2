//! The reason of a task's end that only its control group knows: the system killed it for its memory.
use super::tasks::{group_of, log_of};
use crate::api::{TaskEnd, TaskStage, TaskStatus};
use tidemill_elastic::confinement::Confinement;

/// Adds to failed tasks that they ran out of memory.
pub(super) fn explained(statuses: Vec<TaskStatus>, confinement: Option<&Confinement>) -> Vec<TaskStatus> {
    let ran_out = |status: &TaskStatus| {
        let group = group_of(status.rank, status.incarnation);
        confinement.is_some_and(|confinement| confinement.ran_out_of_memory(&log_of(&status.job), &group))
    };
    statuses.into_iter().map(|status| if ran_out(&status) { with_reason(status) } else { status }).collect()
}

fn with_reason(mut status: TaskStatus) -> TaskStatus {
    if let TaskStage::Ended { end: TaskEnd::Failed { why } } = &mut status.stage {
        *why = format!(
            "it needed more memory than its limit, and the system killed a process of it ({why}); \
             ask for more with `resources: {{memory: SIZE}}` or `--memory SIZE`"
        );
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_memory() {
        let end = TaskEnd::Failed { why: "signal 9 ended it".to_owned() };
        let status = TaskStatus {
            job: "train-1".to_owned(),
            rank: 0,
            incarnation: 1,
            stage: TaskStage::Ended { end },
            checkpoint: None,
        };
        assert_eq!(explained(vec![status.clone()], None), std::slice::from_ref(&status));
        let TaskStage::Ended { end: TaskEnd::Failed { why } } = with_reason(status).stage else { panic!() };
        assert!(
            why.contains("more memory") && why.contains("signal 9") && why.contains("--memory SIZE"),
            "{why}"
        );
    }
}
