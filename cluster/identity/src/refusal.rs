//! Reasons of refusals.
use crate::fingerprint::Fingerprint;
use crate::name::Name;
use crate::people::{Action, Role};
use crate::request::RequestError;
use crate::timestamp::Timestamp;
use crate::token::{TokenError, TokenId};

/// Why a request is refused. There are two texts: `Display` is for the log of this side and says all;
/// [`Refusal::for_peer`] is for the other side, and says no more than is safe to a peer of which nothing is proved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no token.
    #[error("the request has no token")]
    NoToken,
    /// The text is no token.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// The token is not known, or it has the id of one and another secret.
    #[error("token {id}: {}", if *.has_id { "its id is known, but its secret is wrong: a client may be guessing" } else { "it is not known here" })]
    UnknownToken {
        /// Its id.
        id: TokenId,
        /// Whether there is a token with this id.
        has_id: bool,
    },
    /// The token has expired.
    #[error("token {id} expired on {at}")]
    TokenExpired {
        /// Its id.
        id: TokenId,
        /// When.
        at: Timestamp,
    },
    /// The token was used as often as it may be.
    #[error("token {id} was used already on {at} by worker `{by}`")]
    TokenUsed {
        /// Its id.
        id: TokenId,
        /// When it was used last.
        at: Timestamp,
        /// Who used it.
        by: Name,
    },
    /// The token was revoked.
    #[error("token {id} was revoked on {at} by {by}")]
    TokenRevoked {
        /// Its id.
        id: TokenId,
        /// When.
        at: Timestamp,
        /// By whom.
        by: String,
    },
    /// The token is for another worker, location or tier.
    #[error("token {id} is for {what} `{allowed}`, and `{asked}` was asked for")]
    Constrained {
        /// Its id.
        id: TokenId,
        /// `worker`, `location` or `tier`.
        what: &'static str,
        /// The allowed value.
        allowed: Name,
        /// The requested value.
        asked: Name,
    },
    /// There is a worker of this name, which has another key.
    #[error("there is a worker `{name}` with another key, whose certificate is valid until {until}")]
    NameTaken {
        /// The name.
        name: Name,
        /// Until when it can be in use.
        until: Timestamp,
    },
    /// The request for a certificate cannot be taken.
    #[error("{0}")]
    Request(#[from] RequestError),
    /// No certificate was shown, or none that can be read.
    #[error("the request has no readable certificate")]
    NoCertificate,
    /// The certificate is of another cluster.
    #[error("the certificate is of another cluster: {}, this is {ours}", fingerprint(.theirs.as_ref()))]
    OtherCluster {
        /// The fingerprint of its authority, as far as it was shown.
        theirs: Option<Fingerprint>,
        /// The one of this cluster.
        ours: Fingerprint,
    },
    /// The certificate is not valid any more.
    #[error("certificate {serial} expired on {at}")]
    CertificateExpired {
        /// Its serial number, hexadecimal.
        serial: String,
        /// When.
        at: Timestamp,
    },
    /// The certificate is not valid yet: one of the clocks is wrong.
    #[error("certificate {serial} is valid from {from} on, but now is {now}")]
    CertificateNotYetValid {
        /// Its serial number, hexadecimal.
        serial: String,
        /// From when on.
        from: Timestamp,
        /// The time of this side.
        now: Timestamp,
    },
    /// The certificate was revoked.
    #[error("certificate {serial} of {of} was revoked on {at} by {by}: {reason}")]
    CertificateRevoked {
        /// Its serial number, hexadecimal.
        serial: String,
        /// Of whom it is.
        of: String,
        /// When.
        at: Timestamp,
        /// By whom.
        by: String,
        /// Why.
        reason: String,
    },
    /// The authority signed the certificate, but does not remember it: its folder is an older copy.
    #[error(
        "certificate {serial} was signed by this authority, but is not in its register: was an older copy of its folder restored?"
    )]
    CertificateUnknown {
        /// Its serial number, hexadecimal.
        serial: String,
    },
    /// Only workers can have it.
    #[error("{of} makes a request that only workers may make")]
    NotAWorker {
        /// Its identity.
        of: String,
    },
    /// A worker requests certificates over and over.
    #[error("worker `{name}` has {count} valid certificates, which is the limit")]
    TooManyCertificates {
        /// The worker.
        name: Name,
        /// Their number.
        count: usize,
    },
    /// The role of a person does not suffice.
    #[error("{person} may not {action}: that needs the role {}, but this access token has the role {role}", .action.needs())]
    NotAllowed {
        /// The person.
        person: String,
        /// The role.
        role: Role,
        /// The requested action.
        action: Action,
    },
}

fn fingerprint(theirs: Option<&Fingerprint>) -> String {
    theirs.map_or_else(|| "its authority was not shown".to_owned(), |theirs| format!("fingerprint {theirs}"))
}

/// The kind of a refusal, for protocols that have numbers for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The request is not well-formed (400 in HTTP).
    Malformed,
    /// The identity is not proved (401 in HTTP).
    Unauthenticated,
    /// The identity is proved, but not permitted (403 in HTTP).
    Forbidden,
    /// It conflicts with the present state (409 in HTTP).
    Conflict,
}

impl Refusal {
    /// Returns the sentence for the other side, with a fix. The holder of a token's secret learns the state of the
    /// token, but nothing of other people and workers.
    pub fn for_peer(&self) -> String {
        match self {
            Self::NoToken => "the request has no token: send one as `Authorization: Bearer tmp_…`".to_owned(),
            Self::UnknownToken { .. } => {
                "the token is not known in this cluster: was it made in another one? Ask for a new one"
                    .to_owned()
            }
            Self::TokenExpired { at, .. } => format!("the token expired on {at}: ask for a new one"),
            Self::TokenUsed { at, .. } => format!(
                "the token was used already on {at}: ask for a new one; if you did not use it, report this \
                 to an admin, because another machine has joined with it"
            ),
            Self::TokenRevoked { at, .. } => format!("the token was revoked on {at}: ask for a new one"),
            Self::Constrained { what, asked, .. } => {
                format!(
                    "the token is not for {what} `{asked}`: leave out the {what}, or ask for another token"
                )
            }
            Self::NameTaken { name, .. } => format!(
                "there is a worker `{name}` already: choose another name, or ask for a token that replaces that worker"
            ),
            Self::OtherCluster { theirs, ours } => format!(
                "the certificate is of another cluster ({}, this is {ours}): join this one with its own token",
                fingerprint(theirs.as_ref())
            ),
            Self::CertificateExpired { at, .. } => {
                format!("the certificate expired on {at}: join again with a new token")
            }
            Self::CertificateNotYetValid { from, now, .. } => {
                format!("the certificate is valid from {from} on, but now is {now}: set the wrong clock")
            }
            Self::CertificateRevoked { at, .. } => {
                format!("the certificate was revoked on {at}: ask why, and join again with a new token")
            }
            Self::CertificateUnknown { .. } => {
                "the certificate is no longer known: join again with a new token".to_owned()
            }
            Self::NoCertificate => {
                "the request has no certificate of a worker: join first, and show the certificate".to_owned()
            }
            Self::NotAWorker { .. } => "only workers may make this request".to_owned(),
            Self::TooManyCertificates { .. } => {
                "this worker has too many valid certificates: wait until one expires".to_owned()
            }
            // An error in the request, or of a known peer, can be reported in full.
            Self::Token(_) | Self::Request(_) | Self::NotAllowed { .. } => self.to_string(),
        }
    }

    /// Returns the kind.
    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::Token(_) | Self::Request(_) => RefusalKind::Malformed,
            Self::NotAllowed { .. } | Self::Constrained { .. } | Self::NotAWorker { .. } => {
                RefusalKind::Forbidden
            }
            Self::NameTaken { .. } | Self::TooManyCertificates { .. } => RefusalKind::Conflict,
            _ => RefusalKind::Unauthenticated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer of which nothing is proved learns nothing of others.
    #[test]
    fn the_text_for_the_peer_names_nobody_else() {
        let (id, at) = (TokenId([7; 5]), Timestamp::from_unix(1_000_000_000));
        let (edge, serial) = ("edge-1".parse::<Name>().unwrap(), "4711".to_owned());
        let by = || "Ada".to_owned();
        let secret = [
            Refusal::UnknownToken { id, has_id: true },
            Refusal::TokenUsed { id, at, by: edge.clone() },
            Refusal::TokenRevoked { id, at, by: by() },
            Refusal::Constrained { id, what: "worker", allowed: edge.clone(), asked: "hub".parse().unwrap() },
            Refusal::CertificateRevoked {
                serial: serial.clone(),
                of: "worker `edge-1`".to_owned(),
                at,
                by: by(),
                reason: "stolen".to_owned(),
            },
            Refusal::CertificateUnknown { serial },
        ];
        for refusal in secret {
            let (log, peer) = (refusal.to_string(), refusal.for_peer());
            let told = ["edge-1", "Ada", "stolen", "4711", "guessing", "0707070707"];
            assert!(told.iter().any(|word| log.contains(word)), "{log}");
            assert!(!told.iter().any(|word| peer.contains(word)), "{peer}");
        }
        let same = |has_id| Refusal::UnknownToken { id, has_id }.for_peer();
        assert_eq!(same(true), same(false), "which ids there are is not told");
        let used = Refusal::TokenUsed { id, at, by: edge };
        let text = "token 0707070707 was used already on 2001-09-09 01:46:40 UTC by worker `edge-1`";
        assert_eq!(used.to_string(), text);
        assert!(used.for_peer().contains("on 2001-09-09 01:46:40 UTC: ask for a new one"));
    }
}
