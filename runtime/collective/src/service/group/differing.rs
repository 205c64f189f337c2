//! Ranks that call different operations.
use crate::operation::Numbered;
use crate::protocol::{Failure, FailureKind};

/// Returns the failure of a group where one rank calls something else than another one, which is on this host.
pub(super) fn differs(one: (u32, &Numbered), other: (u32, &Numbered), host: &str) -> Failure {
    let words = |of: &Numbered| format!("{:?} of {} {:?}", of.operation, of.length, of.element);
    let text = format!(
        "operation {} differs: rank {} calls {}, rank {} on host {host} calls {}",
        one.1.number,
        one.0,
        words(one.1),
        other.0,
        words(other.1)
    );
    Failure { kind: FailureKind::Differs, rank: Some(other.0), host: host.to_owned(), text }
}
