//! The network of workers: policies on their edges, what their transport services report, and paths that are drained.
use super::answering::{Answer, No, Who, asked, broken, none};
use super::{Shared, locked};
use crate::api::{NET_POLICY_PREFIX, NetPolicy, NetPolicyOptions, WorkerNetView, WorkerView};
use crate::facts::FactsError;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tidemill_http::server::Peer;
use tidemill_identity::Action;
use tidemill_net::policy::{Site, make};
use tidemill_net::protocol::PolicySpec;

/// Policies of a cluster; a service takes 256, some of which are its own.
const MOST_POLICIES: usize = 128;
/// Characters of the name of a policy.
const LONGEST_NAME: usize = 64;

/// Returns why a policy cannot be kept.
fn fault(policy: &PolicySpec) -> Option<String> {
    let id = &policy.id;
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if id.is_empty() || id.len() > LONGEST_NAME || !id.chars().all(is_fit) || id.starts_with('.') {
        return Some(format!(
            "`{id}` is no name of a policy: write up to {LONGEST_NAME} letters, digits, `-`, `_` and `.`"
        ));
    }
    if id.starts_with(NET_POLICY_PREFIX) {
        return Some(format!("`{id}`: workers put `{NET_POLICY_PREFIX}` before the name; leave it out"));
    }
    // The controller loads nothing for it: what is a library of a worker is attached on that worker.
    make(&policy.kind, &policy.options, &Site { id: id.clone(), ..Site::default() }).err()
}

fn concerns(policy: &NetPolicy, worker: &str) -> bool {
    policy.workers.as_ref().is_none_or(|names| names.iter().any(|name| name == worker))
}

impl Shared {
    /// Policies to keep attached on a worker.
    pub(super) fn net_policies(&self, worker: &str) -> Vec<NetPolicy> {
        self.facts.look(|document| {
            document.net_policies.iter().filter(|policy| concerns(policy, worker)).cloned().collect()
        })
    }

    pub(super) fn drained_paths(&self, name: &str) -> Vec<String> {
        self.facts.look(|document| {
            document.workers.get(name).map(|facts| facts.drained_paths.clone()).unwrap_or_default()
        })
    }

    /// Drains a path of a worker or ends that; false if there is no such worker.
    fn drain_path(&self, (name, path): (&str, &str), is_drained: bool, by: &str) -> Result<bool, FactsError> {
        let found = self.facts.change(|document| match document.workers.get_mut(name) {
            Some(facts) => {
                facts.drained_paths.retain(|known| known != path);
                if is_drained {
                    facts.drained_paths.push(path.to_owned());
                }
                true
            }
            None => false,
        })?;
        if found {
            let kind = if is_drained { "path_drained" } else { "path_resumed" };
            let what = if is_drained { "drains" } else { "uses again" };
            self.tell(kind, None, Some(name), &format!("{by} {what} path {path} of worker {name}"));
        }
        Ok(found)
    }

    /// Tells that a policy has changed.
    fn tell_policy(&self, kind: &str, does: &str, policy: &NetPolicy) {
        let place = match &policy.workers {
            None => "all workers".to_owned(),
            Some(names) => format!("worker {}", names.join(", ")),
        };
        let NetPolicy { policy: PolicySpec { id, kind: of, edges, .. }, .. } = policy;
        self.tell(kind, None, None, &format!("{does} policy {id} ({of}) on edges `{edges}` of {place}"));
    }
}

pub(super) async fn policies(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<NetPolicy>> {
    asked(shared, (who, headers), Action::View, |shared, _| {
        Ok(shared.facts.look(|document| document.net_policies.clone()))
    })
    .await
}

pub(super) async fn attach(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(mut policy): Json<NetPolicy>,
) -> Answer<NetPolicy> {
    asked(shared, (who, headers), Action::ApplyPlan, move |shared, by| {
        if let Some(names) = &mut policy.workers {
            names.sort();
            names.dedup();
            if names.is_empty() {
                let text = "this policy is for no worker: name some, or leave `workers` out for all";
                return Err(No(StatusCode::BAD_REQUEST, text.into()));
            }
            if let Some(unknown) = names.iter().find(|name| !shared.remembers(name)) {
                return Err(none("worker", unknown));
            }
        }
        if let Some(fault) = fault(&policy.policy) {
            return Err(No(StatusCode::BAD_REQUEST, fault));
        }
        let kept = shared.facts.change(|document| {
            let there = &mut document.net_policies;
            if there.iter().any(|known| known.policy.id == policy.policy.id) {
                let id = &policy.policy.id;
                return Err(format!(
                    "there is a policy {id} already: `set` changes it, `detach` takes it away"
                ));
            }
            if there.len() >= MOST_POLICIES {
                return Err(format!("the cluster has {MOST_POLICIES} policies already"));
            }
            there.push(policy.clone());
            Ok(())
        });
        kept.map_err(|error| broken(&error))?.map_err(|reason| No(StatusCode::CONFLICT, reason))?;
        shared.tell_policy("policy_attached", &format!("{by} attaches"), &policy);
        Ok(policy)
    })
    .await
}

pub(super) async fn set(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(request): Json<NetPolicyOptions>,
) -> Answer<NetPolicy> {
    asked(shared, (who, headers), Action::ApplyPlan, move |shared, by| {
        let changed = shared.facts.change(|document| {
            let known = document.net_policies.iter_mut().find(|known| known.policy.id == name);
            let known = known.ok_or_else(|| none("policy", &name))?;
            let policy = PolicySpec { options: request.options, ..known.policy.clone() };
            if let Some(fault) = fault(&policy) {
                return Err(No(StatusCode::BAD_REQUEST, fault));
            }
            known.policy = policy;
            Ok(known.clone())
        });
        let policy = changed.map_err(|error| broken(&error))??;
        shared.tell_policy("policy_changed", &format!("{by} changes"), &policy);
        Ok(policy)
    })
    .await
}

pub(super) async fn detach(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<NetPolicy> {
    asked(shared, (who, headers), Action::ApplyPlan, move |shared, by| {
        let gone = shared.facts.change(|document| {
            let at = document.net_policies.iter().position(|known| known.policy.id == name)?;
            Some(document.net_policies.remove(at))
        });
        let policy = gone.map_err(|error| broken(&error))?.ok_or_else(|| none("policy", &name))?;
        shared.tell_policy("policy_detached", &format!("{by} detaches"), &policy);
        Ok(policy)
    })
    .await
}

pub(super) async fn of_worker(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<WorkerNetView> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        if !shared.remembers(&name) {
            return Err(none("worker", &name));
        }
        let report = locked(&shared.workers).get(&name).and_then(|worker| worker.net.clone());
        let report = report.map(|report| report.as_ref().clone());
        let wanted = shared.net_policies(&name);
        Ok(WorkerNetView { is_alive: shared.is_alive(&name), report, wanted, worker: name })
    })
    .await
}

async fn set_path_drained(
    shared: Arc<Shared>,
    (name, path): (String, String),
    who: Who,
    is_drained: bool,
) -> Answer<WorkerView> {
    asked(shared, who, Action::Drain, move |shared, by| {
        let find = || shared.worker_views().into_iter().find(|view| view.name == name);
        let view = find().ok_or_else(|| none("worker", &name))?;
        // A path that a worker no longer has can be given back.
        if !view.paths.contains(&path) && !view.drained_paths.contains(&path) {
            return Err(none("path", &path));
        }
        shared.drain_path((&name, &path), is_drained, by).map_err(|error| broken(&error))?;
        find().ok_or_else(|| none("worker", &name))
    })
    .await
}

pub(super) async fn drain_path(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<(String, String)>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<WorkerView> {
    set_path_drained(shared, path, (who, headers), true).await
}

pub(super) async fn resume_path(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<(String, String)>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<WorkerView> {
    set_path_drained(shared, path, (who, headers), false).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(id: &str, kind: &str, options: serde_json::Value) -> PolicySpec {
        serde_json::from_value(json!({"id": id, "from": "cameras", "kind": kind, "options": options}))
            .unwrap()
    }

    #[test]
    fn policies_are_checked_before_they_are_kept() {
        assert_eq!(fault(&policy("cap", "rate_limit", json!({"rps": 5}))), None);
        for id in ["", "a/b", "a b", "../a", "cluster-cap", &"a".repeat(65)] {
            assert!(fault(&policy(id, "log", json!({}))).is_some(), "{id}");
        }
        let error = fault(&policy("cap", "rate_limit", json!({"rsp": 5}))).unwrap();
        assert!(error.contains("rsp"), "{error}");
        assert!(fault(&policy("cap", "limit", json!({}))).unwrap().contains("rate_limit"));
    }

    #[test]
    fn policies_are_for_all_workers_or_for_those_that_are_named() {
        let of = |workers: Option<Vec<String>>| NetPolicy { workers, policy: policy("a", "log", json!({})) };
        assert!(concerns(&of(None), "edge"));
        assert!(concerns(&of(Some(vec!["edge".into()])), "edge"));
        assert!(!concerns(&of(Some(vec!["hub".into()])), "edge"));
    }
}
