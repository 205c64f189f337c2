//! `Range` and `Content-Range`, as far as they are used here: from a byte to the end.
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};

/// The first byte that a request wants, where it says so. Other forms of the header count as none, as the standard allows.
pub fn first_wanted(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    range?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

/// Says of an answer that its body of `length` bytes begins at `first`, of `size` in all where that is known; its status.
pub fn mark(headers: &mut HeaderMap, first: u64, length: u64, size: Option<u64>) -> StatusCode {
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if first == 0 || length == 0 {
        return StatusCode::OK;
    }
    let size = size.map_or_else(|| "*".to_owned(), |size| size.to_string());
    if let Ok(range) = HeaderValue::try_from(format!("bytes {first}-{}/{size}", first + length - 1)) {
        headers.insert(header::CONTENT_RANGE, range);
    }
    StatusCode::PARTIAL_CONTENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_goes_to_the_end() {
        let wanted = |text: &'static str| {
            first_wanted(&HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(text))]))
        };
        assert_eq!(wanted("bytes=17-"), Some(17));
        for other in ["bytes=17-20", "bytes=-5", "lines=3-", "bytes=1-,9-", ""] {
            assert_eq!(wanted(other), None, "{other}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(mark(&mut headers, 17, 3, None), StatusCode::PARTIAL_CONTENT);
        assert_eq!(
            (&headers["content-range"], &headers["content-length"]),
            (&"bytes 17-19/*".parse().unwrap(), &"3".parse().unwrap())
        );
        assert_eq!(mark(&mut HeaderMap::new(), 0, 3, Some(3)), StatusCode::OK);
    }
}
