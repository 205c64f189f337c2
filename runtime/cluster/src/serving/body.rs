//! Bodies of requests: not too slow, and of strangers not too long.
use super::connections::Heard;
use super::{SILENCE, SLOWEST};
use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::{StreamExt, stream};
use std::io::{Error, ErrorKind};
use tokio::time::{Instant, timeout};

struct Paced {
    from: BodyDataStream,
    begun: Instant,
    bytes: u64,
    most: u64,
    is_over: bool,
    heard: Heard,
}

/// Wraps a body so that it ends with an error where it pauses, comes too slowly, or has more than `most` bytes. While it comes, it marks
/// its connection `heard`.
pub(super) fn paced(body: Body, most: Option<u64>, heard: Heard) -> Body {
    let (from, most) = (body.into_data_stream(), most.unwrap_or(u64::MAX));
    let paced = Paced { from, begun: Instant::now(), bytes: 0, most, is_over: false, heard };
    Body::from_stream(stream::unfold(paced, |mut paced| async move {
        let next = paced.next().await?;
        paced.is_over = next.is_err();
        Some((next, paced))
    }))
}

impl Paced {
    async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        if self.is_over {
            return None;
        }
        let slow = |text: &str| Some(Err(Error::new(ErrorKind::TimedOut, text.to_owned())));
        let part = match timeout(SILENCE, self.from.next()).await {
            Err(_) => return slow("the body pauses for too long"),
            Ok(None) => return None,
            Ok(Some(Err(error))) => return Some(Err(Error::other(error))),
            Ok(Some(Ok(part))) => part,
        };
        self.heard.now();
        self.bytes += part.len() as u64;
        if self.bytes > self.most {
            let text =
                format!("the body of somebody who may not send much has more than {} bytes", self.most);
            return Some(Err(Error::new(ErrorKind::FileTooLarge, text)));
        }
        let seconds = self.begun.elapsed().saturating_sub(SILENCE).as_secs();
        if self.bytes < seconds * SLOWEST {
            return slow("the body comes too slowly");
        }
        Some(Ok(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A body of `parts` of `bytes` bytes, each after a pause.
    fn drops(parts: u32, bytes: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |n| async move {
            if n == parts {
                return None;
            }
            tokio::time::sleep(pause).await;
            Some((Ok::<_, Error>(Bytes::from(vec![7; bytes])), n + 1))
        }))
    }

    /// The body of a peer without a limit of bytes.
    fn all(body: Body) -> Body {
        paced(body, None, Heard::new(Instant::now()))
    }

    async fn read(body: Body) -> Result<usize, String> {
        let mut stream = body.into_data_stream();
        let mut bytes = 0;
        while let Some(part) = stream.next().await {
            bytes += part.map_err(|error| error.to_string())?.len();
        }
        Ok(bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_come_in_time_or_not_at_all() {
        let second = Duration::from_secs(1);
        assert_eq!(read(all(drops(3, 10, second))).await, Ok(30));
        // A slow link, for a minute and a half: as slow as is allowed.
        assert_eq!(read(all(drops(90, 1024, second))).await, Ok(90 * 1024));
        let told = read(all(drops(1_000, 1, second))).await.unwrap_err();
        assert!(told.contains("too slowly"), "{told}");
        let told = read(all(drops(2, 10, SILENCE * 2))).await.unwrap_err();
        assert!(told.contains("pauses"), "{told}");
        let few =
            |parts| paced(drops(parts, 1_000, Duration::ZERO), Some(64_000), Heard::new(Instant::now()));
        let told = read(few(100)).await.unwrap_err();
        assert!(told.contains("may not send much"), "{told}");
        assert_eq!(read(few(64)).await, Ok(64_000));
    }

    #[tokio::test(start_paused = true)]
    async fn as_long_as_a_body_comes_its_connection_is_heard() {
        let begun = Instant::now();
        let heard = Heard::new(begun);
        let mut stream =
            paced(drops(3, 2048, Duration::from_secs(1)), None, heard.clone()).into_data_stream();
        while stream.next().await.is_some() {
            assert_eq!(heard.last().as_micros(), begun.elapsed().as_micros());
        }
        assert!(heard.last() >= Duration::from_secs(3));
    }
}
