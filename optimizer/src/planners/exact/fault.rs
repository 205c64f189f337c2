//! Faults of the exact planner.
use crate::planner::PlannerError;

pub(super) const NAME: &str = "exact";

pub(super) fn fault(reason: &impl ToString) -> PlannerError {
    PlannerError::Fault { planner: NAME.to_owned(), reason: reason.to_string() }
}
