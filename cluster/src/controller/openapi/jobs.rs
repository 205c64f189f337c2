//! Requests about jobs.
use super::By::{Operator, Viewer, Worker};
use super::Content::{Bytes, Nothing};
use super::{BEHIND, Operation, json_of, of};
use crate::api::{JobExplanation, JobRemoval, JobSubmission, JobView, JobsRemoved, LogLine};

pub(super) fn operations() -> Vec<Operation> {
    vec![
        of("get", "/v1/jobs", Viewer, "Lists the jobs of the queue.", Nothing, json_of::<Vec<JobView>>()),
        of("post", "/v1/jobs", Operator, "Queues a job.", json_of::<JobSubmission>(), json_of::<JobView>()),
        of(
            "post",
            "/v1/jobs/remove",
            Operator,
            "Removes jobs that have ended, with their results and logs.",
            json_of::<JobRemoval>(),
            json_of::<JobsRemoved>(),
        ),
        of("get", "/v1/jobs/{job}", Viewer, "Describes a job.", Nothing, json_of::<JobView>()),
        of("delete", "/v1/jobs/{job}", Operator, "Cancels a job.", Nothing, json_of::<JobView>()),
        of(
            "get",
            "/v1/jobs/{job}/explanation",
            Viewer,
            "Explains why a job waits, runs or was preempted.",
            Nothing,
            json_of::<JobExplanation>(),
        ),
        Operation {
            query: BEHIND,
            ..of(
                "get",
                "/v1/jobs/{job}/logs",
                Viewer,
                "Returns the output of the tasks of a job.",
                Nothing,
                json_of::<Vec<LogLine>>(),
            )
        },
        of(
            "post",
            "/v1/jobs/{job}/tasks/{rank}/{incarnation}/missing",
            Worker,
            "Returns which files of a task the controller does not have.",
            json_of::<Vec<String>>(),
            json_of::<Vec<String>>(),
        ),
        of(
            "put",
            "/v1/jobs/{job}/tasks/{rank}/{incarnation}/files/{digest}",
            Worker,
            "Stores a file of a checkpoint or a result; returns its size.",
            Bytes,
            json_of::<u64>(),
        ),
    ]
}
