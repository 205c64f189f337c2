//! The document of the API, made from the types of [`crate::api`]: OpenAPI 3.1, for programs that make clients of it.
mod jobs;
mod net;

use crate::api::{
    ChangeRequest, ControllerView, Duties, Event, FeedRequest, FeedsView, FilePart, FilePartRefused,
    Heartbeat, InfrastructureView, LogLine, MeasuredLinkView, Myself, PersonAnswer, PersonRequest,
    PersonView, PlanView, ProbeView, Refused, RemovedView, RenewRequest, ReplanRequest, ReplanView,
    ResultView, RunFigures, RunView, SamplesView, Source, SourceRequest, Submission, TokenAnswer,
    TokenRequest, WorkerView,
};
use axum::Json;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The permission that a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Everybody,
    Worker,
    WorkerOrViewer,
    Viewer,
    Operator,
    Admin,
}

/// The body of a request or an answer.
enum Content {
    Nothing,
    Json(fn(&mut SchemaGenerator) -> Schema),
    Bytes,
    /// A document of any form.
    Document,
}

fn json_of<T: JsonSchema>() -> Content {
    Content::Json(|generator| generator.subschema_for::<T>())
}

struct Operation {
    method: &'static str,
    path: &'static str,
    by: By,
    summary: &'static str,
    /// Names and meanings of the parameters after the question mark: numbers, or texts if the name ends with `?`.
    query: &'static [(&'static str, &'static str)],
    sent: Content,
    answered: Content,
}

/// Request of a worker to join, as in `tidemill-identity`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it describes the type of another crate")]
struct JoinRequest {
    /// The token: `tmj_…`.
    token: String,
    /// The request for a certificate, as PEM.
    request_pem: String,
    /// The requested name.
    name: Option<String>,
    /// Its location.
    location: Option<String>,
    /// Its tier.
    tier: Option<String>,
}

/// A certificate for a worker, as in `tidemill-identity`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it describes the type of another crate")]
struct Issued {
    /// Its owner: `tidemill:worker/NAME`.
    identity: String,
    /// Location of the worker.
    location: Option<String>,
    /// Its tier.
    tier: Option<String>,
    /// The certificate and that of the authority, as PEM.
    chain_pem: String,
    /// The certificate of the authority, as PEM.
    authority_pem: String,
    /// End of its validity: seconds since the start of 1970.
    expires: u64,
}

const BEHIND: &[(&str, &str)] = &[("after", "Number of the last known entry.")];

fn of(
    method: &'static str,
    path: &'static str,
    by: By,
    summary: &'static str,
    sent: Content,
    answered: Content,
) -> Operation {
    Operation { method, path, by, summary, query: &[], sent, answered }
}

fn operations() -> Vec<Operation> {
    use By::{Admin, Everybody, Operator, Viewer, Worker, WorkerOrViewer};
    use Content::{Bytes, Document, Nothing};
    let mut all = vec![
        of("get", "/v1/openapi.json", Everybody, "This document.", Nothing, Document),
        of(
            "post",
            "/v1/join",
            Everybody,
            "Lets a worker join with a join token.",
            json_of::<JoinRequest>(),
            json_of::<Issued>(),
        ),
        of(
            "post",
            "/v1/renew",
            Worker,
            "Renews the certificate of a worker.",
            json_of::<RenewRequest>(),
            json_of::<Issued>(),
        ),
        of(
            "post",
            "/v1/heartbeat",
            Worker,
            "Reports the state of a worker, and returns its duties.",
            json_of::<Heartbeat>(),
            json_of::<Duties>(),
        ),
        of(
            "get",
            "/v1/blobs/{digest}",
            WorkerOrViewer,
            "Returns the bytes of a file of a workflow; `Range: bytes=N-` asks for those from N on.",
            Nothing,
            Bytes,
        ),
        of(
            "put",
            "/v1/blobs/{digest}",
            Operator,
            "Stores a file of a workflow; returns its size.",
            Bytes,
            json_of::<u64>(),
        ),
        of(
            "get",
            "/v1/runs/{name}/replan",
            Viewer,
            "Returns the present plan of a run and a better one, if the controller proposes one.",
            Nothing,
            json_of::<ReplanView>(),
        ),
        of(
            "post",
            "/v1/runs/{name}/replan",
            Operator,
            "Looks for a better plan, or judges one that is sent, and can change the run to it.",
            json_of::<ReplanRequest>(),
            json_of::<ReplanView>(),
        ),
        of(
            "get",
            "/v1/runs/{name}/feeds",
            Viewer,
            "Returns the feeds of the live sources of a run, such as its cameras, with their states.",
            Nothing,
            json_of::<FeedsView>(),
        ),
        of(
            "post",
            "/v1/runs/{name}/feeds",
            Operator,
            "Adds, removes, pauses or resumes a feed of a live source; nothing else is restarted.",
            json_of::<FeedRequest>(),
            json_of::<FeedsView>(),
        ),
        of(
            "get",
            "/v1/infrastructure",
            Viewer,
            "Returns the workers as an infrastructure file.",
            Nothing,
            json_of::<InfrastructureView>(),
        ),
        of(
            "get",
            "/v1/links",
            Viewer,
            "Returns the measured delay and rate between workers.",
            Nothing,
            json_of::<Vec<MeasuredLinkView>>(),
        ),
        of(
            "post",
            "/v1/blobs/missing",
            Operator,
            "Returns which of these files are missing.",
            json_of::<Vec<String>>(),
            json_of::<Vec<String>>(),
        ),
        of(
            "post",
            "/v1/blobs",
            Operator,
            "Stores many small files: for each, the 32 bytes of its SHA-256, its length in 4 bytes, the most significant first, and its bytes.",
            Bytes,
            json_of::<u64>(),
        ),
        of(
            "post",
            "/v1/blobs/{digest}/source",
            Worker,
            "Returns a source of a file for a worker.",
            json_of::<SourceRequest>(),
            json_of::<Source>(),
        ),
        of(
            "put",
            "/v1/file-parts/{number}",
            Worker,
            "Stores a part of a file that the controller requested from a worker, and returns the next requests.",
            Bytes,
            json_of::<Vec<FilePart>>(),
        ),
        of(
            "post",
            "/v1/file-parts/{number}",
            Worker,
            "Reports why a worker does not send a requested file, and returns the next requests.",
            json_of::<FilePartRefused>(),
            json_of::<Vec<FilePart>>(),
        ),
        of("get", "/v1/runs", Viewer, "Lists all runs.", Nothing, json_of::<Vec<RunView>>()),
        of(
            "post",
            "/v1/runs",
            Operator,
            "Starts a run, or returns it if it has started already.",
            json_of::<Submission>(),
            json_of::<RunView>(),
        ),
        of("get", "/v1/runs/{name}", Viewer, "Returns a run.", Nothing, json_of::<RunView>()),
        of(
            "delete",
            "/v1/runs/{name}",
            Operator,
            "Cancels a run; its output stays.",
            Nothing,
            json_of::<RunView>(),
        ),
        of(
            "get",
            "/v1/runs/{name}/plan",
            Viewer,
            "Returns the plan of a run, and its changes.",
            Nothing,
            json_of::<PlanView>(),
        ),
        of(
            "post",
            "/v1/runs/{name}/plan",
            Operator,
            "Starts a change of the plan of a run; events report its outcome.",
            json_of::<ChangeRequest>(),
            json_of::<PlanView>(),
        ),
        of(
            "get",
            "/v1/runs/{name}/figures",
            Viewer,
            "Returns the figures of the stages, sources, sinks and links of a run.",
            Nothing,
            json_of::<RunFigures>(),
        ),
        of("get", "/v1/me", Viewer, "Returns the asking person and its role.", Nothing, json_of::<Myself>()),
        of(
            "post",
            "/v1/runs/{name}/remove",
            Operator,
            "Removes an ended run and its files.",
            Nothing,
            json_of::<RemovedView>(),
        ),
        Operation {
            query: BEHIND,
            ..of(
                "get",
                "/v1/runs/{name}/logs",
                Viewer,
                "Lists log lines of the processes of a run, and events of the run.",
                Nothing,
                json_of::<Vec<LogLine>>(),
            )
        },
        Operation {
            query: BEHIND,
            ..of(
                "get",
                "/v1/runs/{name}/samples",
                Viewer,
                "Returns the newest records of each sink, with the pictures and sounds of their sources.",
                Nothing,
                json_of::<SamplesView>(),
            )
        },
        of(
            "get",
            "/v1/runs/{name}/results",
            Viewer,
            "Lists the files of the sinks of a run.",
            Nothing,
            json_of::<Vec<ResultView>>(),
        ),
        Operation {
            query: &[("path?", "The file, if the sink has several.")],
            ..of(
                "get",
                "/v1/runs/{name}/results/{sink}",
                Viewer,
                "Returns the committed bytes of a file of a sink, from N on with `Range: bytes=N-`; none: there are no more now.",
                Nothing,
                Bytes,
            )
        },
        of("get", "/v1/workers", Viewer, "Lists all workers.", Nothing, json_of::<Vec<WorkerView>>()),
        of(
            "delete",
            "/v1/workers/{name}",
            Admin,
            "Revokes the certificates of a worker.",
            Nothing,
            json_of::<u64>(),
        ),
        of(
            "post",
            "/v1/workers/{name}/drain",
            Operator,
            "Moves the work of a worker to others.",
            Nothing,
            json_of::<WorkerView>(),
        ),
        of(
            "post",
            "/v1/workers/{name}/resume",
            Operator,
            "Lets a drained worker accept work again.",
            Nothing,
            json_of::<WorkerView>(),
        ),
        Operation {
            query: &[
                ("after", "Number of the last known entry."),
                ("wait", "Seconds to wait for the next event, at most 60."),
            ],
            ..of("get", "/v1/events", Viewer, "Lists events.", Nothing, json_of::<Vec<Event>>())
        },
        of(
            "post",
            "/v1/join-tokens",
            Admin,
            "Creates a join token.",
            json_of::<TokenRequest>(),
            json_of::<TokenAnswer>(),
        ),
        of(
            "get",
            "/v1/people",
            Admin,
            "Lists the access tokens, without their texts.",
            Nothing,
            json_of::<Vec<PersonView>>(),
        ),
        of(
            "post",
            "/v1/people",
            Admin,
            "Creates an access token.",
            json_of::<PersonRequest>(),
            json_of::<PersonAnswer>(),
        ),
        of(
            "delete",
            "/v1/people/{name}",
            Admin,
            "Revokes all access tokens of a person; returns their number.",
            Nothing,
            json_of::<u64>(),
        ),
        of(
            "get",
            "/v1/controller",
            Viewer,
            "Returns the state of the controller.",
            Nothing,
            json_of::<ControllerView>(),
        ),
        of(
            "get",
            "/v1/probes",
            Viewer,
            "Returns which workers reach each other, as far as tested.",
            Nothing,
            json_of::<ProbeView>(),
        ),
        of(
            "post",
            "/v1/probes",
            Viewer,
            "Tests the connections between workers.",
            Nothing,
            json_of::<ProbeView>(),
        ),
    ];
    all.extend(net::operations());
    all.extend(jobs::operations());
    all
}

/// The document.
pub fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for operation in operations() {
        let described = describe(&operation, &mut generator);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Some(methods) = path.as_object_mut() {
            methods.insert(operation.method.to_owned(), described);
        }
    }
    let refused = generator.subschema_for::<Refused>();
    let mut schemas = generator.take_definitions(true);
    schemas.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemill controller",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Requests to the controller of a cluster. People show an access token, workers their certificates. \
                Later versions can add fields.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Refused": {
                    "description": "The controller rejects the request, with the reason.",
                    "content": {"application/json": {"schema": refused}},
                },
            },
            "securitySchemes": {
                "accessToken": {"type": "http", "scheme": "bearer", "description": "From `tidemill people add`."},
                "certificate": {"type": "mutualTLS", "description": "Of a worker that has joined."},
            },
        },
    })
}

fn describe(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let in_path = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| {
            let kind = if name == "number" { "integer" } else { "string" };
            json!({"name": name, "in": "path", "required": true, "schema": {"type": kind}})
        })
        .collect();
    for (name, what) in operation.query {
        let (name, schema) = match name.strip_suffix('?') {
            Some(name) => (name, json!({"type": "string"})),
            None => (*name, json!({"type": "integer", "minimum": 0, "default": 0})),
        };
        parameters.push(json!({"name": name, "in": "query", "description": what, "schema": schema}));
    }
    let (role, security) = match operation.by {
        By::Everybody => ("everybody", json!([])),
        By::Worker => ("worker", json!([{"certificate": []}])),
        By::WorkerOrViewer => ("worker or viewer", json!([{"certificate": []}, {"accessToken": []}])),
        By::Viewer => ("viewer", json!([{"accessToken": []}])),
        By::Operator => ("operator", json!([{"accessToken": []}])),
        By::Admin => ("admin", json!([{"accessToken": []}])),
    };
    let mut answer = json!({"description": "Done."});
    if let Some(content) = content(&operation.answered, generator) {
        answer["content"] = content;
    }
    let mut described = json!({
        "operationId": operation_id(operation),
        "summary": operation.summary,
        "x-role": role,
        "security": security,
        "parameters": parameters,
        "responses": {"200": answer, "default": {"$ref": "#/components/responses/Refused"}},
    });
    if let Some(content) = content(&operation.sent, generator) {
        described["requestBody"] = json!({"required": true, "content": content});
    }
    described
}

fn content(content: &Content, generator: &mut SchemaGenerator) -> Option<Value> {
    match content {
        Content::Nothing => None,
        Content::Json(schema) => Some(json!({"application/json": {"schema": schema(generator)}})),
        Content::Bytes => Some(json!({"application/octet-stream": {}})),
        Content::Document => Some(json!({"application/json": {"schema": {"type": "object"}}})),
    }
}

/// `get_runs_name_logs` of `GET /v1/runs/{name}/logs`.
fn operation_id(operation: &Operation) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let path: String = operation.path.trim_start_matches("/v1/").chars().map(plain).collect();
    let words = path.split('_').filter(|word| !word.is_empty());
    std::iter::once(operation.method).chain(words).collect::<Vec<_>>().join("_")
}

pub(super) async fn openapi() -> Json<Value> {
    Json(document())
}

#[cfg(test)]
mod tests {
    use super::super::server::routes;
    use super::*;
    use std::collections::BTreeSet;
    use tidemill_identity as identity;

    #[test]
    fn every_path_of_the_server_is_in_the_document() {
        let served: BTreeSet<&str> = routes().paths.into_iter().collect();
        let document = document();
        let described: BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(described, served, "left: described, right: served");
        let ids: BTreeSet<String> = operations().iter().map(operation_id).collect();
        assert_eq!(ids.len(), operations().len(), "names of operations are of one each");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk(value: &Value, document: &Value) {
            if let Some(Value::String(reference)) = value.get("$ref") {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            match value {
                Value::Object(fields) => fields.values().for_each(|value| walk(value, document)),
                Value::Array(values) => values.iter().for_each(|value| walk(value, document)),
                _ => {}
            }
        }
        let document = document();
        walk(&document, &document);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for name in ["RunView", "Submission", "Plan", "Heartbeat", "Duties", "Refused"] {
            assert!(schemas.contains_key(name), "{name}: {:?}", schemas.keys());
        }
    }

    /// Types of the library of identities are described by hand: this is what they really are.
    #[test]
    fn what_is_described_by_hand_has_the_right_fields() {
        let folder = tempfile::tempdir().unwrap();
        let now = identity::Timestamp::from_unix(1_795_435_200);
        let lifetimes = identity::Lifetimes::default();
        let authority =
            identity::Authority::open_or_create(&folder.path().join("a"), lifetimes, now).unwrap();
        let token = authority.create_join_token(&identity::JoinTokenOptions::default(), "x", now).unwrap();
        let request = identity::JoinRequest {
            token: token.reveal().to_string(),
            request_pem: identity::NewKey::generate().unwrap().request_pem().to_owned(),
            name: None,
            location: None,
            tier: None,
        };
        let issued = authority.redeem(&request, now).unwrap();
        let document = document();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let described = |name: &str| keys(&document["components"]["schemas"][name]["properties"]);
        assert_eq!(keys(&serde_json::to_value(&request).unwrap()), described("JoinRequest"));
        assert_eq!(keys(&serde_json::to_value(&issued).unwrap()), described("Issued"));
    }
}
