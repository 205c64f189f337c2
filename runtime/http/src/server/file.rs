//! Bodies of answers that come from the disk or from another peer while they are sent.
use std::error::Error;
use std::io::{self, ErrorKind, Read};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::READING;
use crate::channel::Channel;

/// Bytes that are read at once.
const PART: usize = 256 << 10;

/// A body of all that `from` gives. The task that reads it ends, and drops `from`, where the peer takes nothing for [`READING`].
pub fn streamed(mut from: impl Read + Send + 'static) -> Channel {
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        loop {
            let read = spawn_blocking(move || {
                let mut part = Vec::with_capacity(PART);
                let read = (&mut from).take(PART as u64).read_to_end(&mut part);
                read.map(|_| (from, part))
            });
            let failure = match read.await {
                Ok(Ok((_, part))) if part.is_empty() => return,
                Ok(Ok((rest, part))) => {
                    from = rest;
                    match timeout(READING, sender.send_data(part.into())).await {
                        Ok(Ok(())) => continue,
                        Ok(Err(_)) => return, // the peer is gone
                        Err(_) => ErrorKind::TimedOut.into(),
                    }
                }
                Ok(Err(error)) => error,
                Err(error) => io::Error::other(error),
            };
            return sender.abort(failure);
        }
    });
    body
}

/// A body that gives what comes of another one, and what moves it there: it ends, too, where the peer takes nothing for [`READING`].
pub fn relayed<B>(from: B) -> (Channel, impl Future<Output = ()> + Send)
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>> + Send> + Send,
{
    let (mut sender, body) = Channel::new(1);
    let moves = async move {
        let mut from = std::pin::pin!(from);
        while let Some(frame) = from.frame().await {
            let part = frame.map(|frame| frame.into_data().unwrap_or_default()).map_err(io::Error::other);
            let failure = match part {
                Ok(part) => match timeout(READING, sender.send_data(part)).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => return, // the peer is gone
                    Err(_) => ErrorKind::TimedOut.into(),
                },
                Err(error) => error,
            };
            return sender.abort(failure);
        }
    };
    (body, moves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_is_read_while_it_is_sent() {
        let bytes: Vec<u8> = (0..3 * PART + 7).map(|n| n as u8).collect();
        let body = streamed(io::Cursor::new(bytes.clone())).collect().await.unwrap();
        assert_eq!(body.to_bytes(), bytes);
        struct Fails;
        impl Read for Fails {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(ErrorKind::PermissionDenied.into())
            }
        }
        let error = streamed(Fails).collect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }

    /// Its file is closed, and others are served.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_left() {
        struct Endless(#[expect(dead_code, reason = "it is dropped")] tokio::sync::mpsc::UnboundedSender<()>);
        impl Read for Endless {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                into.fill(7);
                Ok(into.len())
            }
        }
        let (sender, mut dropped) = tokio::sync::mpsc::unbounded_channel();
        let body = streamed(Endless(sender));
        assert_eq!(dropped.recv().await, None);
        assert_eq!(body.collect().await.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    /// A cut is passed on as one: the end of a body is not taken for the end of a file.
    #[tokio::test(start_paused = true)]
    async fn a_body_is_moved_while_it_comes() {
        let (body, moves) = relayed(streamed(&b"of a worker"[..]));
        let (collected, ()) = tokio::join!(body.collect(), moves);
        assert_eq!(collected.unwrap().to_bytes(), "of a worker");
        let (sender, cut) = Channel::new(1);
        sender.abort(io::Error::other("cut"));
        let (body, moves) = relayed(cut);
        let (collected, ()) = tokio::join!(body.collect(), moves);
        assert_eq!(collected.unwrap_err().to_string(), "cut");
        let (body, moves) = relayed(streamed(&b"nobody takes it"[..]));
        moves.await;
        assert!(body.collect().await.is_ok(), "one part waits to be taken");
    }
}
