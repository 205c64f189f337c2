//! Identities: texts that people copy, and bytes from any peer.
use serde_json::json;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use tidemill_identity::{
    AccessToken, CertificateFacts, CertificateRequest, Fingerprint, JoinAddress, JoinToken, Name,
    PeerIdentity, Role, Serial, TokenId,
};
use tidemill_link::remote::{Address, peer_name};

/// A parsed value can be formatted, and parsing that gives an equal value.
fn told<T: FromStr + Display + PartialEq + Debug>(text: &str) -> bool {
    let Ok(value) = text.parse::<T>() else { return false };
    let again = value.to_string();
    assert!(again.parse::<T>().is_ok_and(|again| again == value), "{value:?} is told as {again:?}");
    true
}

pub(super) fn address(bytes: &[u8]) -> bool {
    told::<JoinAddress>(&String::from_utf8_lossy(bytes))
}

pub(super) fn addresses() -> Vec<Vec<u8>> {
    let fingerprint = "3f0c".repeat(16);
    ["hub.example:4100", "10.0.0.7:7420", "[2001:db8::1]:7420"]
        .map(|place| format!("tidemill://{place}/{fingerprint}").into_bytes())
        .into()
}

pub(super) fn token(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let join = text.parse::<JoinToken>().map(|token| (token.id(), token.reveal()));
    let access = text.parse::<AccessToken>().map(|token| (token.id(), token.reveal()));
    assert!(join.is_err() || access.is_err(), "one token lets in workers and people");
    let (id, again) = match (join, access) {
        (Ok(found), _) | (_, Ok(found)) => found,
        (Err(first), Err(second)) => {
            // The message about a wrong token does not repeat it.
            let whole = text.trim();
            assert!(whole.len() < 30 || !format!("{first} {second}").contains(whole), "{first}");
            return false;
        }
    };
    assert_eq!(
        again
            .parse::<JoinToken>()
            .map(|token| token.id())
            .or(again.parse::<AccessToken>().map(|token| token.id())),
        Ok(id)
    );
    told::<TokenId>(&id.to_string())
}

/// Tokens are random: those in the corpus were valid once, and admit no one now.
pub(super) fn tokens() -> Vec<Vec<u8>> {
    Vec::new()
}

pub(super) fn name(bytes: &[u8]) -> bool {
    let text = &*String::from_utf8_lossy(bytes);
    let found = [
        told::<Name>(text),
        told::<Fingerprint>(text),
        told::<PeerIdentity>(text),
        told::<Role>(text),
        text.parse::<Serial>().is_ok(),
        told::<Address>(text),
        told::<tidemill_bucket::Address>(text),
        text.parse::<tidemill_cluster::controller::StoreAddress>().is_ok(),
    ];
    found.contains(&true)
}

pub(super) fn names() -> Vec<Vec<u8>> {
    [
        "edge-1",
        "tidemill:worker/edge-1",
        "tidemill:controller",
        "operator",
        "00112233445566778899aabbccddeeff",
        "tcp://10.0.0.7:4100",
        "s3://runs/shop",
        "postgres://tidemill@db.example/tidemill?sslmode=verify-full&sslrootcert=db-ca.pem",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into_iter()
    .chain(["3f0c".repeat(16).into_bytes()])
    .collect()
}

pub(super) fn request(bytes: &[u8]) -> bool {
    let of_text = CertificateRequest::from_pem(&String::from_utf8_lossy(bytes)).is_ok();
    CertificateRequest::from_der(bytes).is_ok() || of_text
}

/// Keys are random, too.
pub(super) fn requests() -> Vec<Vec<u8>> {
    Vec::new()
}

pub(super) fn certificate(bytes: &[u8]) -> bool {
    let of_text = CertificateFacts::of_pem(&String::from_utf8_lossy(bytes)).is_ok();
    if let Some(name) = peer_name(bytes) {
        let _ = name.parse::<PeerIdentity>();
    }
    CertificateFacts::of_der(bytes).is_ok() || of_text
}

pub(super) fn certificates() -> Vec<Vec<u8>> {
    Vec::new()
}

pub(super) fn registers() -> Vec<Vec<u8>> {
    let empty = json!({
        "format": 1, "authority": "3f0c".repeat(16), "first_admin_was_given": true, "certificates": [], "join_tokens": [], "people": [],
    });
    vec![format!("{empty}\n").into_bytes()]
}
