//! Readable errors of requests.
use object_store::Error;
use object_store::client::HttpError;
use tidemill_state::StoreError;

/// The attempted operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Doing {
    Read,
    Write,
    Remove,
}

impl Doing {
    fn text(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "written",
            Self::Remove => "removed",
        }
    }
}

/// Converts the error of a request to one of the store.
pub(crate) fn told(place: &str, doing: Doing, error: Error) -> StoreError {
    let (place, doing) = (place.to_owned(), doing.text());
    let said = said(&error);
    let reason = match &error {
        Error::NotFound { .. } => format!("{said}; make the bucket, or name another one"),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            format!("{said}; see to AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they may do there")
        }
        Error::UnknownConfigurationKey { .. } | Error::NotImplemented { .. } => {
            format!("{said}; see to the variables AWS_*")
        }
        _ => {
            let reason = format!("{said}; see to the service, the network, AWS_ENDPOINT_URL and AWS_REGION");
            return StoreError::Service { place, doing, reason };
        }
    };
    StoreError::Denied { place, doing, reason }
}

/// Whether a request certainly had no effect.
pub(crate) fn is_refused(error: &Error) -> bool {
    let is_of = |error: &Error| {
        matches!(
            error,
            Error::NotFound { .. } | Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
        )
    };
    is_of(error) || status(&error.to_string()).is_some_and(|status| (400..500).contains(&status))
}

/// The service's short message: its code and text where it gives some, else the innermost error.
fn said(error: &Error) -> String {
    let whole = error.to_string();
    let tag = |name: &str| {
        let text = whole.split_once(&format!("<{name}>"))?.1;
        Some(text.split_once(&format!("</{name}>"))?.0.trim().to_owned()).filter(|text| !text.is_empty())
    };
    match (status(&whole), tag("Code")) {
        (Some(status), Some(code)) => match tag("Message") {
            Some(message) => format!("the service says {status} {code} ({message})"),
            None => format!("the service says {status} {code}"),
        },
        (Some(status), None) => format!("the service says {status}"),
        (None, _) => innermost(error),
    }
}

/// The status of the answer, which the error has only in its text.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ")?.1.get(..3)?.parse().ok()
}

fn innermost(error: &Error) -> String {
    let mut kind = None;
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        kind = kind.or_else(|| source.downcast_ref::<HttpError>().map(|error| format!("{:?}", error.kind())));
        last = source;
    }
    let text = last.to_string();
    match kind {
        Some(kind) if kind == "Connect" => format!("no connection ({text})"),
        Some(kind) if kind == "Timeout" => format!("no answer ({text})"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_service_are_told_and_nothing_else() {
        let body = "Server returned non-2xx status code: 403 Forbidden: <?xml?><Error><Code>AccessDenied</Code>\
                    <Message>No.</Message><RequestId>7</RequestId></Error>";
        let error = Error::PermissionDenied { path: "p".to_owned(), source: body.into() };
        assert!(is_refused(&error));
        let told = told("s3://abc/d", Doing::Write, error).to_string();
        assert!(
            told.starts_with(
                "s3://abc/d cannot be written: the service says 403 AccessDenied (No.); see to AWS_"
            ),
            "{told}"
        );
        let error =
            Error::Generic { store: "S3", source: "Server returned non-2xx status code: 503 Slow: ".into() };
        assert!(!is_refused(&error));
        assert_eq!(said(&error), "the service says 503");
        let error = Error::Generic { store: "S3", source: "broken pipe".into() };
        assert_eq!(said(&error), "broken pipe");
    }
}
