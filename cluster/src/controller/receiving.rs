//! Files of workflows that are sent: written as they come.
use super::Shared;
use super::answering::{Answer, No, blocking, broken, person};
use crate::blobs::BlobError;
use crate::parcel::unpack;
use axum::Json;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt;
use std::io::{self, Read};
use std::sync::Arc;
use tidemill_identity::Action;
use tokio::runtime::Handle;

/// Bytes of a file.
const MOST: u64 = 64 << 30;

/// The body of a request, read on a thread that may block.
struct Received {
    body: BodyDataStream,
    part: Bytes,
    bytes: u64,
}

impl Read for Received {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            let Some(part) = Handle::current().block_on(self.body.next()) else { return Ok(0) };
            self.part = part.map_err(io::Error::other)?;
            self.bytes += self.part.len() as u64;
            if self.bytes > MOST {
                return Err(io::Error::other(format!("a file has at most {MOST} bytes")));
            }
        }
        let count = self.part.len().min(into.len());
        into[..count].copy_from_slice(&self.part.split_to(count));
        Ok(count)
    }
}

/// Many small files in one request.
pub(super) async fn parcel(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer<u64> {
    blocking(&shared, move |shared| {
        person(shared, &headers, Action::Submit)?;
        let wrong = |error: &dyn std::fmt::Display| No(StatusCode::BAD_REQUEST, error.to_string());
        let files = unpack(&bytes).map_err(|error| wrong(&error))?;
        match shared.blobs.put_all(&files) {
            Ok(()) => Ok(Json(files.len() as u64)),
            Err(error @ BlobError::System { .. }) => Err(broken(&error)),
            Err(error) => Err(wrong(&error)),
        }
    })
    .await
}

pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Path(digest): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<u64> {
    blocking(&shared, move |shared| {
        person(shared, &headers, Action::Submit)?;
        take_file(shared, &digest, body)
    })
    .await
}

/// Keeps a file as its bytes come; their number.
pub(super) fn take_file(shared: &Shared, digest: &str, body: Body) -> Result<Json<u64>, No> {
    let mut received = Received { body: body.into_data_stream(), part: Bytes::new(), bytes: 0 };
    match shared.blobs.put(digest, &mut received) {
        Ok(()) => Ok(Json(received.bytes)),
        Err(error @ BlobError::System { .. }) => Err(broken(&error)),
        Err(error) => Err(No(StatusCode::BAD_REQUEST, error.to_string())),
    }
}
