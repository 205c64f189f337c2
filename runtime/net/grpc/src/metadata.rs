//! Metadata of calls and headers of HTTP/2.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::status::{Code, Status, percent_decoded, percent_encoded};

/// Names in lower case with their values, in order; a name may come more than once. Values of names that end in `-bin` are any bytes,
/// all others printable ASCII.
pub type Metadata = Vec<(String, Vec<u8>)>;

/// Written without padding, read with and without it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Headers of the protocol, which are never metadata.
const RESERVED: &[&str] = &[
    "connection",
    "content-length",
    "content-type",
    "grpc-accept-encoding",
    "grpc-encoding",
    "grpc-message",
    "grpc-message-type",
    "grpc-status",
    "grpc-timeout",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
pub(crate) const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
pub(crate) const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Adds metadata to headers. Names of the protocol are left out.
pub(crate) fn write(metadata: &Metadata, headers: &mut HeaderMap) -> Result<(), Status> {
    for (name, value) in metadata {
        if RESERVED.contains(&name.as_str()) {
            continue;
        }
        let refused =
            |why: &str| Status::new(Code::Internal, format!("metadata `{}` {why}", name.escape_debug()));
        let header = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .filter(|header| header.as_str() == name)
            .ok_or_else(|| refused("has no name of metadata"))?;
        let value = if name.ends_with("-bin") {
            HeaderValue::from_str(&BASE64.encode(value)).ok()
        } else if value.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
            HeaderValue::from_bytes(value).ok()
        } else {
            None
        };
        let value = value.ok_or_else(|| refused("is not printable ASCII"))?;
        headers.try_append(header, value).map_err(|_| refused("is one too many"))?;
    }
    Ok(())
}

/// Metadata of headers.
pub(crate) fn read(headers: &HeaderMap) -> Result<Metadata, Status> {
    let mut metadata = Metadata::with_capacity(headers.len());
    for (name, value) in headers {
        let name = name.as_str();
        if RESERVED.contains(&name) {
            continue;
        }
        if !name.ends_with("-bin") {
            metadata.push((name.to_owned(), value.as_bytes().to_vec()));
            continue;
        }
        // Others may join several values by commas, which base64 does not have.
        for part in value.as_bytes().split(|byte| *byte == b',') {
            let bytes = BASE64.decode(part.trim_ascii()).map_err(|error| {
                Status::new(Code::Internal, format!("metadata `{name}` is not base64: {error}"))
            })?;
            metadata.push((name.to_owned(), bytes));
        }
    }
    Ok(metadata)
}

/// Adds a status to headers or trailers.
pub(crate) fn write_status(status: &Status, headers: &mut HeaderMap) {
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(status.code.number())));
    if !status.message.is_empty()
        && let Ok(message) = HeaderValue::from_str(&percent_encoded(&status.message))
    {
        headers.insert(GRPC_MESSAGE, message);
    }
}

/// Reads the status of headers or trailers; none if they have none.
pub(crate) fn read_status(headers: &HeaderMap) -> Option<Status> {
    let number = headers.get(GRPC_STATUS)?;
    let message =
        headers.get(GRPC_MESSAGE).map(|value| percent_decoded(value.as_bytes())).unwrap_or_default();
    let code = number.to_str().ok().and_then(|text| text.parse().ok()).and_then(Code::from_number);
    Some(match code {
        Some(code) => Status { code, message },
        None => Status::new(Code::Unknown, format!("the status is {number:?}, which no code is: {message}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &[u8]) -> (String, Vec<u8>) {
        (name.to_owned(), value.to_vec())
    }

    #[test]
    fn metadata_survives_headers() {
        let metadata = vec![
            pair("a", b"one, and two"),
            pair("a", b"three"),
            pair("b-bin", &[0, 255, 10]),
            pair("b-bin", b""),
            pair("grpc-status-details-bin", b"\x08\x05"),
        ];
        let mut headers = HeaderMap::new();
        write(&metadata, &mut headers).unwrap();
        assert_eq!(headers.get("b-bin").unwrap(), "AP8K");
        assert_eq!(read(&headers).unwrap(), metadata);
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_binary_value_survives(values: Vec<Vec<u8>>) {
            let metadata: Metadata = values.iter().map(|value| pair("x-bin", value)).collect();
            let mut headers = HeaderMap::new();
            write(&metadata, &mut headers).unwrap();
            assert_eq!(read(&headers).unwrap(), metadata);
        }

        #[test]
        fn any_headers_are_metadata_or_refused(names: Vec<String>, bytes: Vec<u8>) {
            for name in names {
                let _ = write(&vec![pair(&name, &bytes)], &mut HeaderMap::new());
            }
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let headers: HeaderMap =
                    [("x-bin", &value), ("x", &value), ("grpc-status", &value), ("grpc-message", &value)]
                        .map(|(name, value)| (HeaderName::from_static(name), value.clone()))
                        .into_iter()
                        .collect();
                let _ = (read(&headers), read_status(&headers));
            }
        }
    }

    #[test]
    fn base64_is_read_with_and_without_padding_and_joined() {
        let mut headers = HeaderMap::new();
        headers.append("x-bin", HeaderValue::from_static("YQ==, YQ,YWI="));
        assert_eq!(read(&headers).unwrap(), [pair("x-bin", b"a"), pair("x-bin", b"a"), pair("x-bin", b"ab")]);
        headers.append("x-bin", HeaderValue::from_static("?"));
        assert_eq!(read(&headers).unwrap_err().code, Code::Internal);
    }

    #[test]
    fn headers_of_the_protocol_are_no_metadata() {
        let mut headers = HeaderMap::new();
        write(&vec![pair("te", b"x"), pair("grpc-status", b"0"), pair("grpc-timeout", b"1S")], &mut headers)
            .unwrap();
        assert!(headers.is_empty());
        headers.insert("content-type", APPLICATION_GRPC);
        assert!(read(&headers).unwrap().is_empty());
    }

    #[test]
    fn metadata_that_headers_cannot_hold_is_refused() {
        for (name, value) in
            [("Upper", "x"), ("", "x"), (":path", "x"), ("a b", "x"), ("a", "ä"), ("a", "\n")]
        {
            let refused = write(&vec![pair(name, value.as_bytes())], &mut HeaderMap::new()).unwrap_err();
            assert_eq!(refused.code, Code::Internal, "{name} {value}");
        }
    }

    #[test]
    fn a_status_survives_headers() {
        for code in Code::ALL {
            let mut headers = HeaderMap::new();
            let status = Status::new(*code, "größer");
            write_status(&status, &mut headers);
            assert_eq!(read_status(&headers), Some(status));
        }
        let mut headers = HeaderMap::new();
        assert_eq!(read_status(&headers), None);
        headers.insert(GRPC_STATUS, HeaderValue::from_static("99"));
        assert_eq!(read_status(&headers).unwrap().code, Code::Unknown);
    }
}
