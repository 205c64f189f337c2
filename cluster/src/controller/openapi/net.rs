//! Requests about the network of workers.
use super::By::{Operator, Viewer};
use super::Content::Nothing;
use super::{Operation, json_of, of};
use crate::api::{NetPolicy, NetPolicyOptions, WorkerNetView, WorkerView};

pub(super) fn operations() -> Vec<Operation> {
    vec![
        of(
            "post",
            "/v1/workers/{name}/paths/{path}/drain",
            Operator,
            "Moves connections off a path of a worker while another one works.",
            Nothing,
            json_of::<WorkerView>(),
        ),
        of(
            "post",
            "/v1/workers/{name}/paths/{path}/resume",
            Operator,
            "Lets connections use a drained path of a worker again.",
            Nothing,
            json_of::<WorkerView>(),
        ),
        of(
            "get",
            "/v1/workers/{name}/net",
            Viewer,
            "Returns the edges of running programs on a worker and the policies on them.",
            Nothing,
            json_of::<WorkerNetView>(),
        ),
        of(
            "get",
            "/v1/net/policies",
            Viewer,
            "Lists the policies that the controller keeps attached on workers.",
            Nothing,
            json_of::<Vec<NetPolicy>>(),
        ),
        of(
            "post",
            "/v1/net/policies",
            Operator,
            "Attaches a policy to edges on workers.",
            json_of::<NetPolicy>(),
            json_of::<NetPolicy>(),
        ),
        of(
            "post",
            "/v1/net/policies/{name}",
            Operator,
            "Gives a policy other options.",
            json_of::<NetPolicyOptions>(),
            json_of::<NetPolicy>(),
        ),
        of(
            "delete",
            "/v1/net/policies/{name}",
            Operator,
            "Detaches a policy from all of its workers.",
            Nothing,
            json_of::<NetPolicy>(),
        ),
    ]
}
