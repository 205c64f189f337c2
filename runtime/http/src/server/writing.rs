//! Answers that are sent: a peer that takes nothing for [`READING`] loses its connection, and one that takes something counts as active.
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::READING;
use super::connections::PeerActivity;

/// A connection whose peer must take what is sent. The limit is here and not at the bodies of answers: hyper asks a body for nothing
/// while it waits for the socket.
pub(super) struct Writing<S> {
    stream: S,
    activity: PeerActivity,
    /// The peer takes nothing at the moment.
    is_stuck: bool,
    limit: Pin<Box<Sleep>>,
}

impl<S> Writing<S> {
    pub(super) fn new(stream: S, activity: PeerActivity) -> Self {
        Self { stream, activity, is_stuck: false, limit: Box::pin(sleep(READING)) }
    }

    /// Passes the outcome of a write on; fails where none has succeeded for too long.
    fn limited<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.is_stuck = false;
            return outcome;
        }
        if !std::mem::replace(&mut self.is_stuck, true) {
            self.limit.as_mut().reset(Instant::now() + READING);
        }
        self.limit.as_mut().poll(cx).map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Writing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Writing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(outcome, Poll::Ready(Ok(1..))) {
            self.activity.now();
        }
        self.limited(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        if matches!(outcome, Poll::Ready(Ok(1..))) {
            self.activity.now();
        }
        self.limited(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limited(cx, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Accepts, Answers, Bytes, Full, Incoming, Peer, Request, Response, serve};
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    /// Gives one connection.
    struct Once(Option<DuplexStream>);

    impl Accepts for Once {
        type Io = DuplexStream;

        async fn accept(&mut self) -> (DuplexStream, Peer) {
            match self.0.take() {
                Some(stream) => (stream, Peer { address: ([127, 0, 0, 1], 1).into(), chain: Arc::default() }),
                None => std::future::pending().await,
            }
        }
    }

    struct Long;

    impl Answers for Long {
        type Body = Full<Bytes>;

        async fn answer(&self, _: Request<Incoming>, _: &Peer, _: &PeerActivity) -> Response<Full<Bytes>> {
            Response::new(Full::from(vec![7; 1 << 20]))
        }
    }

    /// Asks for a long answer over a connection with room for little.
    async fn asked() -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (mut client, server) = duplex(1 << 10);
        let serves = tokio::spawn(serve(Once(Some(server)), Arc::new(Long)));
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        (client, serves)
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_loses_its_connection() {
        let (mut client, serves) = asked().await;
        tokio::time::sleep(READING + Duration::from_secs(1)).await;
        let mut read = Vec::new();
        // The connection ends after what had room in it.
        let _ = client.read_to_end(&mut read).await;
        assert!(read.starts_with(b"HTTP/1.1 200 OK") && read.len() <= 1 << 11, "{}", read.len());
        serves.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_gets_all_of_a_long_answer() {
        let (mut client, serves) = asked().await;
        let (mut read, mut part) = (0, vec![0; 64 << 10]);
        while read < 1 << 20 {
            tokio::time::sleep(READING / 600).await;
            read += client.read(&mut part).await.unwrap();
        }
        serves.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_active_while_an_answer_is_taken() {
        let begun = Instant::now();
        let activity = PeerActivity::new(begun);
        let (near, mut far) = duplex(8);
        let mut writing = Writing::new(near, activity.clone());
        for second in 1..4 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            writing.write_all(b"12345678").await.unwrap();
            assert_eq!(activity.last(), Duration::from_secs(second));
            far.read_exact(&mut [0; 8]).await.unwrap();
        }
    }
}
