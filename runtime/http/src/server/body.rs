//! Bodies of requests: not too slow, and not longer than their sender may send.
use std::error::Error;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use super::connections::PeerActivity;
use super::{SILENCE, SLOWEST};

/// See [`paced`].
struct Paced<B> {
    from: Pin<Box<B>>,
    begun: Instant,
    bytes: u64,
    most: u64,
    is_over: bool,
    /// Since then nothing came, though it was asked for.
    is_waited_for: bool,
    pause: Pin<Box<Sleep>>,
    heard: PeerActivity,
}

/// The body `from`, which ends with an error where it pauses, comes too slowly, or has more than `most` bytes. As long as it comes, its
/// connection is `heard`.
pub fn paced<B>(
    from: B,
    most: Option<u64>,
    heard: PeerActivity,
) -> impl Body<Data = Bytes, Error = io::Error> + Send + 'static
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (from, pause, most) = (Box::pin(from), Box::pin(sleep(SILENCE)), most.unwrap_or(u64::MAX));
    Paced { from, begun: Instant::now(), bytes: 0, most, is_over: false, is_waited_for: false, pause, heard }
}

impl<B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>> Body for Paced<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let next = match self.from.as_mut().poll_frame(cx) {
            Poll::Ready(next) => {
                next.map(|next| next.map_err(io::Error::other).and_then(|frame| self.check(frame)))
            }
            Poll::Pending => {
                if !std::mem::replace(&mut self.is_waited_for, true) {
                    self.pause.as_mut().reset(Instant::now() + SILENCE);
                }
                ready!(self.pause.as_mut().poll(cx));
                Some(Err(slow("the body pauses for too long")))
            }
        };
        self.is_waited_for = false;
        self.is_over = !matches!(next, Some(Ok(_)));
        Poll::Ready(next)
    }
}

fn slow(text: &str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, text.to_owned())
}

impl<B> Paced<B> {
    fn check(&mut self, frame: Frame<Bytes>) -> io::Result<Frame<Bytes>> {
        self.heard.now();
        self.bytes += frame.data_ref().map_or(0, |part| part.len() as u64);
        if self.bytes > self.most {
            let text = format!("the body of a peer that may not send much has more than {} bytes", self.most);
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
        let seconds = self.begun.elapsed().saturating_sub(SILENCE).as_secs();
        if self.bytes < seconds * SLOWEST {
            return Err(slow("the body comes too slowly"));
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use http_body_util::BodyExt;
    use std::time::Duration;

    /// A body of parts of so many bytes, each after a pause.
    fn drops(parts: u32, bytes: usize, pause: Duration) -> Channel {
        let (mut sender, body) = Channel::new(1);
        tokio::spawn(async move {
            for _ in 0..parts {
                tokio::time::sleep(pause).await;
                if sender.send_data(vec![7; bytes].into()).await.is_err() {
                    return;
                }
            }
        });
        body
    }

    /// Of a peer that may send any number of bytes.
    fn all(body: Channel) -> impl Body<Data = Bytes, Error = io::Error> {
        paced(body, None, PeerActivity::new(Instant::now()))
    }

    async fn read(body: impl Body<Data = Bytes, Error = io::Error>) -> Result<usize, String> {
        let read = body.collect().await.map_err(|error| error.to_string())?;
        Ok(read.to_bytes().len())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_come_in_time_or_not_at_all() {
        let second = Duration::from_secs(1);
        assert_eq!(read(all(drops(3, 10, second))).await, Ok(30));
        // A slow way, for a minute and a half: as slow as is allowed.
        assert_eq!(read(all(drops(90, 1024, second))).await, Ok(90 * 1024));
        let message = read(all(drops(1_000, 1, second))).await.unwrap_err();
        assert!(message.contains("too slowly"), "{message}");
        let message = read(all(drops(2, 10, SILENCE * 2))).await.unwrap_err();
        assert!(message.contains("pauses"), "{message}");
        let few = |parts| {
            paced(drops(parts, 1_000, Duration::ZERO), Some(64_000), PeerActivity::new(Instant::now()))
        };
        let message = read(few(100)).await.unwrap_err();
        assert!(message.contains("may not send much"), "{message}");
        assert_eq!(read(few(64)).await, Ok(64_000));
    }

    #[tokio::test(start_paused = true)]
    async fn as_long_as_a_body_comes_its_connection_is_heard() {
        let begun = Instant::now();
        let heard = PeerActivity::new(begun);
        let mut body = std::pin::pin!(paced(drops(3, 2048, Duration::from_secs(1)), None, heard.clone()));
        while body.frame().await.is_some_and(|frame| frame.is_ok()) {
            assert_eq!(heard.last().as_micros(), begun.elapsed().as_micros());
        }
        assert!(heard.last() >= Duration::from_secs(3));
    }
}
