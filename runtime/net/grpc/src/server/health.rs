//! `grpc.health.v1.Health/Check`, which load balancers and orchestrators ask.

use bytes::Bytes;

use crate::calls::Calls;
use crate::status::{Code, Status};

/// The method that the server answers by itself.
pub(super) const PATH: &str = "/grpc.health.v1.Health/Check";

/// Answers a check. The request has one field, the name of a service; the answer has one, a number.
pub(super) fn check(request: &[u8], calls: &dyn Calls) -> Result<Bytes, Status> {
    let service = match service(request) {
        Some(service) => service,
        None => return Err(Status::new(Code::InvalidArgument, "no HealthCheckRequest")),
    };
    let healthy = if service.is_empty() { Some(true) } else { calls.healthy(service) };
    match healthy {
        Some(true) => Ok(Bytes::from_static(&[0x08, 1])),  // SERVING
        Some(false) => Ok(Bytes::from_static(&[0x08, 2])), // NOT_SERVING
        None => Err(Status::new(Code::NotFound, format!("no service `{service}` here"))),
    }
}

/// The field 1 of a message that has only text in it; the last one counts.
fn service(mut message: &[u8]) -> Option<&str> {
    let mut service = "";
    while let Some((&tag, rest)) = message.split_first() {
        if tag != 0x0a {
            return None;
        }
        let (length, rest) = length(rest)?;
        let (text, rest) = rest.split_at_checked(length)?;
        service = std::str::from_utf8(text).ok()?;
        message = rest;
    }
    Some(service)
}

/// A number of at most five bytes, seven bits in each, and what is after it.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((usize::try_from(number).ok()?, bytes.get(at + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_bytes_are_a_check_or_none(bytes: Vec<u8>, name in "[a-z]{0,300}") {
            service(&bytes);
            service(&[&[0x0a], &bytes[..]].concat());
            let length = name.len();
            let prefix = if length < 128 { vec![0x0a, length as u8] } else { vec![0x0a, length as u8 | 0x80, (length >> 7) as u8] };
            assert_eq!(service(&[&prefix, name.as_bytes()].concat()), Some(name.as_str()));
        }
    }

    #[test]
    fn the_service_of_a_check_is_read() {
        assert_eq!(service(b""), Some(""));
        assert_eq!(service(b"\x0a\x03abc"), Some("abc"));
        let long = [&b"\x0a\xc8\x01"[..], &[b'x'; 200]].concat();
        assert_eq!(service(&long).map(str::len), Some(200));
        for damaged in
            [&b"\x0a"[..], b"\x0a\x04abc", b"\x12\x00", b"\x0a\x01\xff", b"\x0a\xff\xff\xff\xff\xff\xff"]
        {
            assert_eq!(service(damaged), None, "{damaged:?}");
        }
    }
}
