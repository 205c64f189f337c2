//! Parsers of requests that any peer could send, for tests with arbitrary bytes: each function says whether the bytes are accepted.
use crate::api::*;
use crate::blobs::{self, BlobError};
use crate::controller::{Behind, Which};
use crate::facts::{self, Document};
use crate::serving::Offset;
use axum::Json;
use axum::extract::Query;
use axum::http::Uri;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use tidemill_identity::{Issued, JoinRequest};

/// Says whether bytes are taken.
type Read = fn(&[u8]) -> bool;

/// Names of bodies and what reads them.
const BODIES: &[(&str, Read)] = &[
    ("join", body::<JoinRequest>),
    ("renew", body::<RenewRequest>),
    ("heartbeat", body::<Heartbeat>),
    ("submit", submission),
    ("change", body::<ChangeRequest>),
    ("replan", body::<ReplanRequest>),
    ("token", body::<TokenRequest>),
    ("person", body::<PersonRequest>),
    ("part-refused", body::<FilePartRefused>),
    ("source", body::<SourceRequest>),
    ("missing", body::<Vec<String>>),
    // Answers to a worker.
    ("issued", body::<Issued>),
    ("duties", duties),
    ("from", body::<Source>),
];

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    Json::<T>::from_bytes(bytes).ok().map(|Json(value)| value)
}

/// A value that was read can be written and reads back as equal.
fn again<T: Serialize + DeserializeOwned>(value: &T) -> bool {
    let bytes = serde_json::to_vec(value).expect("plain data");
    let read = read::<T>(&bytes).expect("what was written");
    assert_eq!(serde_json::to_vec(&read).expect("plain data"), bytes);
    true
}

fn body<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> bool {
    read::<T>(bytes).is_some_and(|value| again(&value))
}

fn are_inside(bundle: &Bundle) -> bool {
    let folder = Path::new("/folder");
    let is_inside = |place: Result<PathBuf, BlobError>| match place {
        Ok(place) => {
            let is_inside =
                place.starts_with(folder) && !place.components().any(|part| part.as_os_str() == "..");
            assert!(is_inside, "{}", place.display());
            true
        }
        Err(_) => false,
    };
    is_inside(blobs::workflow_in(folder, bundle))
        && bundle.files.iter().all(|file| is_inside(blobs::inside(folder, &file.path)))
}

fn submission(bytes: &[u8]) -> bool {
    let read = read::<Submission>(bytes);
    read.is_some_and(|submission| again(&submission) && are_inside(&submission.bundle))
}

fn duties(bytes: &[u8]) -> bool {
    let read = read::<Duties>(bytes);
    read.is_some_and(|duties| again(&duties) && duties.assignments.iter().all(|one| are_inside(&one.bundle)))
}

/// The body of a request or an answer: on the first line its name, then JSON.
pub fn named_body(bytes: &[u8]) -> bool {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (name, rest) = bytes.split_at(at);
    let found = BODIES.iter().find(|(of, _)| of.as_bytes() == name);
    found.is_some_and(|(_, read)| read(rest.get(1..).unwrap_or_default()))
}

/// Reads the query of an address.
pub fn query(bytes: &[u8]) -> bool {
    let Ok(uri) = Uri::try_from([b"/v1/events?", bytes].concat()) else { return false };
    let behind = Query::<Behind>::try_from_uri(&uri).is_ok();
    let offset = Query::<Offset>::try_from_uri(&uri).is_ok();
    let which = Query::<Which>::try_from_uri(&uri).is_ok();
    behind && offset && which
}

/// Reads the state of the controller, as it lies in its folder.
pub fn facts_document(bytes: &[u8]) -> bool {
    let Ok(document) = serde_json::from_slice::<Document>(bytes) else { return false };
    again(&document)
}

/// Reads the changes after it, a line each with a checksum; also with recomputed checksums.
pub fn facts_log(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let sealed: String = text
        .lines()
        .map(|line| facts::line_of(line.split_once(' ').map_or(line, |(_, json)| json)))
        .collect();
    facts::has_change(sealed.as_bytes());
    facts::has_change(bytes)
}

/// A line of such a log.
pub fn facts_line(json: &str) -> String {
    facts::line_of(json)
}

/// A line of a log as it lies in the controller's folder.
pub fn log_line(bytes: &[u8]) -> bool {
    serde_json::from_slice::<LogLine>(bytes).is_ok_and(|line| again(&line))
}
