//! Messages in the bodies of HTTP/2: a flag, a length and the message.

use std::io::Cursor;

use bytes::{Buf, Bytes, BytesMut, buf::Chain};
use h2::RecvStream;

use crate::status::{Code, Status};

/// Length of what stands before each message.
const PREFIX: usize = 5;

/// Room that is reserved for a message before its bytes come; one that only claims to be long costs no more.
const RESERVED: usize = 1 << 20;

/// A message as it is sent.
pub(crate) type Frame = Chain<Cursor<[u8; PREFIX]>, Bytes>;

/// A message with what stands before it.
pub(crate) fn framed(message: Bytes) -> Result<Frame, Status> {
    let length = u32::try_from(message.len())
        .map_err(|_| Status::new(Code::ResourceExhausted, "the message has more than 4 GiB"))?;
    let [a, b, c, d] = length.to_be_bytes();
    Ok(Cursor::new([0, a, b, c, d]).chain(message))
}

/// Something that came instead of a message.
#[derive(Debug)]
pub(crate) enum Broken {
    /// A message that is refused.
    Refused(Status),
    /// An error of the stream or its connection.
    Stream(h2::Error),
}

/// Messages of a body that arrives in parts.
pub(crate) struct Messages {
    body: RecvStream,
    taking: Taking,
}

impl Messages {
    /// Reads a body, of which no message may be longer than `most`.
    pub(crate) fn new(body: RecvStream, most: usize) -> Messages {
        Messages { body, taking: Taking { most, rest: Bytes::new(), prefix: BytesMut::new(), open: None } }
    }

    /// Waits for the next message; none is the end of the body.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            if let Some(message) = self.taking.next().map_err(Broken::Refused)? {
                return Ok(Some(message));
            }
            match self.body.data().await {
                Some(data) => {
                    let data = data.map_err(Broken::Stream)?;
                    self.body.flow_control().release_capacity(data.len()).map_err(Broken::Stream)?;
                    self.taking.rest = data;
                }
                None if self.taking.in_message() => {
                    return Err(Broken::Refused(Status::new(
                        Code::Internal,
                        "the body ends within a message",
                    )));
                }
                None => return Ok(None),
            }
        }
    }

    /// Waits for what comes after the last message.
    pub(crate) async fn trailers(&mut self) -> Result<Option<http::HeaderMap>, Broken> {
        self.body.trailers().await.map_err(Broken::Stream)
    }
}

/// Messages out of parts of a body.
struct Taking {
    most: usize,
    /// The part that is read; it is empty before another one comes.
    rest: Bytes,
    prefix: BytesMut,
    /// Length of the message that is being read, and what there is of it.
    open: Option<(usize, BytesMut)>,
}

impl Taking {
    fn in_message(&self) -> bool {
        self.open.is_some() || !self.prefix.is_empty()
    }

    /// The next message, or none if it needs another part.
    fn next(&mut self) -> Result<Option<Bytes>, Status> {
        if self.open.is_none() {
            let missing = PREFIX - self.prefix.len();
            self.prefix.extend_from_slice(&self.rest.split_to(missing.min(self.rest.len())));
            let [flag, a, b, c, d] = self.prefix[..] else { return Ok(None) };
            let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            if flag != 0 {
                let why = "the message is compressed, though no compression is agreed on";
                return Err(Status::new(Code::Internal, why));
            }
            if length > self.most {
                let why = format!("the message has {length} bytes, more than the limit of {}", self.most);
                return Err(Status::new(Code::ResourceExhausted, why));
            }
            self.prefix.clear();
            self.open = Some((length, BytesMut::new()));
        }
        let Some((length, there)) = &mut self.open else { return Ok(None) };
        if there.is_empty() && self.rest.len() >= *length {
            let message = self.rest.split_to(*length);
            self.open = None;
            return Ok(Some(message));
        }
        if there.is_empty() && !self.rest.is_empty() {
            there.reserve((*length).min(RESERVED));
        }
        let missing = *length - there.len();
        there.extend_from_slice(&self.rest.split_to(missing.min(self.rest.len())));
        if there.len() < *length {
            return Ok(None);
        }
        Ok(self.open.take().map(|(_, message)| message.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taking(most: usize) -> Taking {
        Taking { most, rest: Bytes::new(), prefix: BytesMut::new(), open: None }
    }

    fn bytes_of(message: &[u8]) -> Vec<u8> {
        let mut frame = framed(Bytes::copy_from_slice(message)).unwrap();
        frame.copy_to_bytes(frame.remaining()).to_vec()
    }

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let sent: Vec<Vec<u8>> = vec![b"one".to_vec(), vec![], vec![7; 300], b"x".to_vec(), vec![]];
        let body: Vec<u8> = sent.iter().flat_map(|message| bytes_of(message)).collect();
        for size in 1..=body.len() {
            let mut taking = taking(300);
            let mut taken = Vec::new();
            for part in body.chunks(size) {
                taking.rest = Bytes::copy_from_slice(part);
                while let Some(message) = taking.next().unwrap() {
                    taken.push(message.to_vec());
                }
                assert!(taking.rest.is_empty());
            }
            assert_eq!(taken, sent, "in parts of {size}");
            assert!(!taking.in_message());
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_bytes_are_messages_or_refused(parts: Vec<Vec<u8>>, small in proptest::collection::vec(0..4_u8, 0..200)) {
            for parts in [parts, small.chunks(7).map(<[u8]>::to_vec).collect()] {
                let mut taking = taking(1000);
                let mut refused = false;
                for part in parts {
                    taking.rest = part.into();
                    loop {
                        match taking.next() {
                            Ok(Some(message)) => assert!(message.len() <= 1000),
                            Ok(None) => break assert!(taking.rest.is_empty()),
                            Err(_) => break refused = true,
                        }
                    }
                    if refused {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn long_and_compressed_messages_are_refused() {
        let mut long = taking(2);
        long.rest = Bytes::from(bytes_of(b"one"));
        assert_eq!(long.next().unwrap_err().code, Code::ResourceExhausted);
        let mut compressed = taking(2);
        compressed.rest = Bytes::from_static(&[1, 0, 0, 0, 0]);
        assert_eq!(compressed.next().unwrap_err().code, Code::Internal);
        let mut cut = taking(2);
        cut.rest = Bytes::from_static(&[0, 0, 0]);
        assert_eq!(cut.next().unwrap(), None);
        assert!(cut.in_message());
    }
}
