//! A body whose parts come from elsewhere.
//!
//! The one of `http-body-util` looks for its error while a part may still arrive: where its sender is dropped right after the last part,
//! it can lose that part. This one ends only once all parts are read.
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::{mpsc, oneshot};

/// See the module.
pub struct Channel {
    parts: mpsc::Receiver<Bytes>,
    failure: oneshot::Receiver<io::Error>,
}

/// Sends the parts of a [`Channel`]. The body ends when it is dropped.
pub(crate) struct Sender {
    parts: mpsc::Sender<Bytes>,
    failure: oneshot::Sender<io::Error>,
}

/// The body is gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Channel {
    /// Makes a body with room for `most` parts.
    pub(crate) fn new(most: usize) -> (Sender, Self) {
        let (parts, of_parts) = mpsc::channel(most);
        let (failure, of_failure) = oneshot::channel();
        (Sender { parts, failure }, Self { parts: of_parts, failure: of_failure })
    }
}

impl Sender {
    /// Sends a part; waits for room.
    pub(crate) async fn send_data(&mut self, part: Bytes) -> Result<(), Gone> {
        self.parts.send(part).await.map_err(|_| Gone)
    }

    /// Ends the body with an error after the parts that were sent.
    pub(crate) fn abort(self, error: io::Error) {
        let Self { parts, failure } = self;
        let _ = failure.send(error); // the body may be gone
        drop(parts);
    }
}

impl Body for Channel {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let part = ready!(self.parts.poll_recv(cx));
        Poll::Ready(match part {
            Some(part) => Some(Ok(Frame::data(part))),
            None => self.failure.try_recv().ok().map(Err),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn an_error_comes_after_the_parts_that_were_sent() {
        let (mut sender, mut body) = Channel::new(1);
        sender.send_data("part".into()).await.unwrap();
        sender.abort(io::Error::other("cut"));
        let part = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(part, "part");
        assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "cut");
        let (sender, body) = Channel::new(1);
        drop(sender);
        assert!(body.collect().await.unwrap().to_bytes().is_empty());
    }
}
