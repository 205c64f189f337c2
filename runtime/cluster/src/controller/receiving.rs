//! Files of workflows that are sent: written as they come, a few parts at a time in memory.
use super::Shared;
use super::answering::{Answer, No, blocking, broken, person};
use crate::blobs::BlobError;
use crate::parcel::unpack;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt;
use std::io::{self, Read};
use std::sync::Arc;
use tidemill_identity::Action;
use tokio::sync::mpsc::{Receiver, channel};

/// Bytes of a file.
const MOST: u64 = 64 << 30;
/// Parts that wait to be written.
const WAITING: usize = 8;

/// The received bytes of a file, read on a thread that may block.
struct Received {
    parts: Receiver<io::Result<Bytes>>,
    part: Bytes,
}

impl Read for Received {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part?,
                None => return Ok(0),
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
    blocking(&shared, move |shared| person(shared, &headers, Action::Submit)).await?;
    let (sender, parts) = channel(WAITING);
    let writer = Arc::clone(&shared);
    let written = tokio::task::spawn_blocking(move || {
        writer.blobs.put(&digest, Received { parts, part: Bytes::new() })
    });
    let (mut stream, mut bytes) = (body.into_data_stream(), 0);
    while let Some(part) = stream.next().await {
        bytes += part.as_ref().map_or(0, |part| part.len() as u64);
        let part = match bytes > MOST {
            true => Err(io::Error::other(format!("a file has at most {MOST} bytes"))),
            false => part.map_err(io::Error::other),
        };
        let is_last = part.is_err();
        // The writer has given up: the reason is below.
        if sender.send(part).await.is_err() || is_last {
            break;
        }
    }
    drop(sender);
    match written.await.map_err(|error| broken(&error))? {
        Ok(()) => Ok(Json(bytes)),
        Err(error @ BlobError::System { .. }) => Err(broken(&error)),
        Err(error) => Err(No(StatusCode::BAD_REQUEST, error.to_string())),
    }
}
