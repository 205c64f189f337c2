//! Policies that the controller keeps attached at the transport service of a worker.
use crate::place::{Place, until};
use serde_json::{Value, json};
use std::path::Path;
use tidemill_cluster::api::{NetPolicy, NetPolicyOptions, WorkerNetView};
use tidemill_cluster::client::ClientError;
use tidemill_link::remote::Security;
use tidemill_net::protocol::{PolicySpec, PolicyView, Request};
use tidemill_net::{Client, Options, Service};

fn policy(id: &str, options: Value) -> PolicySpec {
    let json = json!({"id": id, "from": "cameras", "kind": "rate_limit", "options": options});
    serde_json::from_value(json).unwrap()
}

fn start(folder: &Path, files: &Path) -> Service {
    std::fs::create_dir_all(folder).unwrap();
    let socket = folder.join("net.sock");
    let security = Security::none();
    let options =
        Options { socket, folder: files.into(), public: None, security, on_upgrade: None, on_panic: None };
    Service::start(options).unwrap()
}

/// Names and options of the policies that the controller says a worker's service has.
fn there(place: &Place) -> Vec<(String, Value)> {
    let view: WorkerNetView = place.admin.get("/v1/workers/edge/net").unwrap();
    let listing = view.report.and_then(|report| report.listing);
    let named = |view: PolicyView| (view.spec.id, view.spec.options);
    listing.into_iter().flat_map(|listing| listing.policies).map(named).collect()
}

fn refused(answer: Result<NetPolicy, ClientError>) -> (u16, String) {
    match answer {
        Err(ClientError::Refused { status, text }) => (status, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_has_the_policies_of_the_controller_whenever_its_service_is_there() {
    let mut place = Place::new();
    let token = place.join_token(1);
    place.agent("edge", &token, &["/bin/false"]);
    let view = || place.admin.get::<WorkerNetView>("/v1/workers/edge/net");
    until("the agent says that there is no service", || {
        view().is_ok_and(|view| view.report.is_some_and(|report| report.problem.is_some()))
    });

    // They are kept until there is one.
    let attach = |workers: Option<&str>, policy: PolicySpec| {
        let workers = workers.map(|name| vec![name.to_owned()]);
        place.admin.post::<NetPolicy>("/v1/net/policies", &NetPolicy { workers, policy })
    };
    attach(None, policy("cap", json!({"rps": 5}))).unwrap();
    attach(Some("edge"), policy("other", json!({"rps": 7}))).unwrap();
    let (folder, files) = (place.folder.path().join("edge/services/net"), tempfile::tempdir().unwrap());
    let service = start(&folder, files.path());
    let both = |options: Value| {
        vec![("cluster-cap".to_owned(), options), ("cluster-other".to_owned(), json!({"rps": 7}))]
    };
    until("both are attached", || there(&place) == both(json!({"rps": 5})));
    assert_eq!(view().unwrap().wanted.len(), 2);

    // One that is attached on the worker itself is left alone.
    let mut client = Client::connect(&folder.join("net.sock"), 0).unwrap();
    client.ask(&Request::Attach(Box::new(policy("by-hand", json!({}))))).unwrap();
    let changed = NetPolicyOptions { options: json!({"rps": 8}) };
    let set: NetPolicy = place.admin.post("/v1/net/policies/cap", &changed).unwrap();
    assert_eq!(set.policy.options, json!({"rps": 8}));
    until("one is changed", || {
        there(&place) == [both(json!({"rps": 8})), vec![("by-hand".into(), json!({}))]].concat()
    });

    // Another service, which remembers nothing.
    drop(client);
    drop(service);
    let others = tempfile::tempdir().unwrap();
    let _service = start(&folder, others.path());
    until("they are attached again", || there(&place) == both(json!({"rps": 8})));
    place.admin.delete::<NetPolicy>("/v1/net/policies/cap").unwrap();
    until("one is detached", || there(&place) == both(json!({}))[1..]);

    assert_eq!(refused(attach(None, policy("other", json!({})))).0, 409);
    assert_eq!(refused(attach(Some("hub"), policy("third", json!({})))).0, 404);
    let (status, text) = refused(attach(None, policy("third", json!({"rsp": 1}))));
    assert!(status == 400 && text.contains("rsp"), "{status} {text}");
    assert_eq!(refused(place.admin.delete("/v1/net/policies/cap")).0, 404);
    assert_eq!(refused(place.admin.post("/v1/net/policies/cap", &changed)).0, 404);
    let left: Vec<NetPolicy> = place.admin.get("/v1/net/policies").unwrap();
    assert_eq!(left.len(), 1);
}

/// A heartbeat or duties of a program before there were policies.
#[test]
fn messages_without_policies_are_understood() {
    let duties: tidemill_cluster::api::Duties = serde_json::from_value(json!({"assignments": []})).unwrap();
    assert_eq!(duties.net_policies, None);
    let mut heartbeat = json!(tidemill_cluster::api::Heartbeat::default());
    heartbeat.as_object_mut().unwrap().remove("net");
    let heartbeat: tidemill_cluster::api::Heartbeat = serde_json::from_value(heartbeat).unwrap();
    assert_eq!(heartbeat.net, None);
}
