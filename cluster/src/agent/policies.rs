//! Policies of the controller at the transport service of this worker, and what that service has.
//!
//! A thread compares the two every few seconds, so a service that is not there yet, is started again or hangs holds up no heartbeat.
use crate::api::{NET_POLICY_PREFIX, NetReport};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;
use tidemill_net::protocol::{Answer, Listing, PolicySpec, PolicyView, Request};
use tidemill_net::{Client, ClientError};

/// Time between two looks at the service, and so between two reports.
const EVERY: Duration = Duration::from_secs(2);
/// Edges that are reported.
const MOST_EDGES: usize = 200;

/// See the module. The thread ends after this is dropped.
pub(super) struct Policies(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Policies that the controller wants; none: it has said nothing yet.
    wanted: Option<Vec<PolicySpec>>,
    /// The last report, until it is told.
    report: Option<NetReport>,
    /// Not looked at since the last change.
    is_new: bool,
    is_over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Policies {
    /// Starts to look at the service at this socket.
    pub(super) fn start(socket: PathBuf) -> Self {
        let shared = Arc::new(Shared::default());
        let of = Arc::clone(&shared);
        if let Err(error) = Builder::new().name("tm-policies".into()).spawn(move || keep(&of, &socket)) {
            tracing::error!("cannot start the thread that attaches policies: {error}");
        }
        Self(shared)
    }

    /// Takes the policies that the controller wants; none: it is older, and what is attached stays.
    pub(super) fn follow(&self, wanted: Option<Vec<PolicySpec>>) {
        let mut state = self.0.lock();
        if wanted.is_some() && state.wanted != wanted {
            (state.wanted, state.is_new) = (wanted, true);
            self.0.changed.notify_all();
        }
    }

    /// Returns news for the controller.
    pub(super) fn report(&self) -> Option<NetReport> {
        self.0.lock().report.take()
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

fn keep(shared: &Shared, socket: &Path) {
    let mut told = BTreeMap::new();
    loop {
        let wanted = {
            let mut state = shared.lock();
            state.is_new = false;
            state.wanted.clone()
        };
        let report = look(socket, wanted.as_deref());
        for (id, problem) in report.problems.iter().filter(|(id, problem)| told.get(*id) != Some(*problem)) {
            tracing::warn!("policy {id} of the controller is not in force: {problem}");
        }
        told.clone_from(&report.problems);
        let mut state = shared.lock();
        state.report = Some(report);
        let rests = |state: &mut State| !state.is_new && !state.is_over;
        let waited = shared.changed.wait_timeout_while(state, EVERY, rests);
        if waited.unwrap_or_else(PoisonError::into_inner).0.is_over {
            return;
        }
    }
}

/// Attaches, changes and detaches what differs, and returns what is there then.
fn look(socket: &Path, wanted: Option<&[PolicySpec]>) -> NetReport {
    let mut report = NetReport::default();
    let mut found = || {
        let mut client = Client::connect(socket, 0)?;
        let listing = list(&mut client)?;
        let user = format!("user {}", rustix::process::geteuid().as_raw());
        let steps = wanted.map(|wanted| steps(wanted, &listing.policies, &user)).unwrap_or_default();
        if steps.is_empty() {
            return Ok(listing);
        }
        for (id, request) in steps {
            match client.ask(&request) {
                Ok(_) => {}
                Err(ClientError::Refused(reason)) => drop(report.problems.insert(id, reason)),
                Err(error) => return Err(error),
            }
        }
        list(&mut client)
    };
    match found() {
        Ok(mut listing) => {
            report.left_out = listing.edges.len().saturating_sub(MOST_EDGES) as u64;
            listing.edges.truncate(MOST_EDGES);
            report.listing = Some(listing);
        }
        Err(error) => report.problem = Some(error.to_string()),
    }
    report
}

fn list(client: &mut Client) -> Result<Listing, ClientError> {
    match client.ask(&Request::List)? {
        Answer::Listing(listing) => Ok(*listing),
        _ => Err(ClientError::Broken("answers something else".into())),
    }
}

/// Requests that lead from the policies that are there to those that are wanted, each with the controller's name of its policy.
/// Policies of plans and of other users are not touched.
fn steps(wanted: &[PolicySpec], there: &[PolicyView], user: &str) -> Vec<(String, Request)> {
    let own = |view: &&PolicyView| view.by == user && view.spec.id.starts_with(NET_POLICY_PREFIX);
    let own: Vec<&PolicySpec> = there.iter().filter(own).map(|view| &view.spec).collect();
    let mut steps = Vec::new();
    let mut kept = Vec::new();
    let mut others = Vec::new();
    for policy in wanted {
        let spec = PolicySpec { id: format!("{NET_POLICY_PREFIX}{}", policy.id), ..policy.clone() };
        let id = policy.id.clone();
        match own.iter().find(|known| known.id == spec.id) {
            Some(known) if **known == spec => kept.push(spec.id),
            // Only options change in place.
            Some(known) if PolicySpec { options: spec.options.clone(), ..(*known).clone() } == spec => {
                others.push((id, Request::Set { id: spec.id.clone(), options: spec.options }));
                kept.push(spec.id);
            }
            _ => others.push((id, Request::Attach(Box::new(spec)))),
        }
    }
    for known in own.into_iter().filter(|known| !kept.contains(&known.id)) {
        let id = known.id.strip_prefix(NET_POLICY_PREFIX).unwrap_or_default();
        steps.push((id.to_owned(), Request::Detach { id: known.id.clone() }));
    }
    steps.extend(others);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tidemill_net::edge_name::EdgePattern;
    use tidemill_net::protocol::{PolicyCounts, Side};

    const OWN: &str = "user 1000";

    fn spec(id: &str, kind: &str, options: Value) -> PolicySpec {
        PolicySpec {
            id: id.into(),
            edges: EdgePattern::parse("cameras -> *").unwrap(),
            side: Side::Sender,
            kind: kind.into(),
            options,
        }
    }

    fn view(spec: PolicySpec, by: &str) -> PolicyView {
        PolicyView { spec, by: by.into(), edges: 0, counts: PolicyCounts::default(), problem: None }
    }

    /// `set cluster-cap` of each step.
    fn named(steps: &[(String, Request)]) -> Vec<String> {
        let name = |(id, request): &(String, Request)| match request {
            Request::Attach(spec) if spec.id.ends_with(id) => format!("attach {}", spec.id),
            Request::Set { id, options } => format!("set {id} {options}"),
            Request::Detach { id } => format!("detach {id}"),
            other => format!("{other:?}"),
        };
        steps.iter().map(name).collect()
    }

    #[test]
    fn what_differs_is_attached_changed_and_detached_and_nothing_else_is() {
        let wanted = [
            spec("same", "log", json!({})),
            spec("cap", "rate_limit", json!({"rps": 8})),
            spec("new", "log", json!({})),
            spec("other", "none", json!({})),
        ];
        let there = [
            view(spec("cluster-same", "log", json!({})), OWN),
            view(spec("cluster-cap", "rate_limit", json!({"rps": 5})), OWN),
            view(spec("cluster-other", "log", json!({})), OWN),
            view(spec("cluster-gone", "log", json!({})), OWN),
            view(spec("by-hand", "log", json!({})), OWN),
            view(spec("cluster-of-a-plan", "log", json!({})), "plan"),
            view(spec("cluster-of-another", "log", json!({})), "user 7"),
        ];
        let expected = [
            "detach cluster-other",
            "detach cluster-gone",
            r#"set cluster-cap {"rps":8}"#,
            "attach cluster-new",
            "attach cluster-other",
        ];
        assert_eq!(named(&steps(&wanted, &there, OWN)), expected);
        assert!(steps(&[], &[], OWN).is_empty());
    }

    #[test]
    fn a_service_that_is_not_there_is_reported_and_policies_of_an_older_controller_stay() {
        let folder = tempfile::tempdir().unwrap();
        let report = look(&folder.path().join("net.sock"), Some(&[]));
        assert!(report.listing.is_none());
        assert!(report.problem.is_some_and(|problem| problem.contains("net.sock")));
        let policies = Policies::start(folder.path().join("net.sock"));
        policies.follow(Some(vec![spec("cap", "log", json!({}))]));
        policies.follow(None);
        assert_eq!(policies.0.lock().wanted.as_ref().map(Vec::len), Some(1));
    }
}
