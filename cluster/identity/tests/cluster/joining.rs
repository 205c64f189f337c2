//! Who comes in by a token, and who does not.
use std::time::Duration;

use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519};
use rustls::pki_types::CertificateDer;
use tidemill_identity::*;

use crate::parts::*;

fn once() -> JoinTokenOptions {
    JoinTokenOptions::default()
}

#[test]
fn a_worker_joins_by_a_token() {
    let cluster = Cluster::new();
    let options = JoinTokenOptions { location: Some(name("hall-3")), ..once() };
    let token = cluster.token(&options, NOON);
    let key = NewKey::generate().unwrap();
    let join = JoinRequest { name: Some(name("edge-1")), tier: Some(name("edge")), ..join(&token, &key) };
    let issued = cluster.authority().redeem(&join, NOON).unwrap();
    let edge = PeerIdentity::Worker(name("edge-1"));
    assert_eq!(issued.identity, edge);
    assert_eq!((issued.location.clone(), issued.tier.clone()), (options.location, Some(name("edge"))));
    assert_eq!(issued.authority_pem, cluster.authority().certificate_pem());
    let chain = chain(&issued);
    assert_eq!(PeerIdentity::of_verified(&chain[0]), Ok(edge.clone()));
    assert_eq!(Fingerprint::of(&chain[1]), cluster.authority().fingerprint());
    let facts = CertificateFacts::of_der(&chain[0]).unwrap();
    assert_eq!((facts.not_after, issued.expires, facts.is_authority), (minutes(60), minutes(60), false));
    assert!(
        facts.not_before < NOON && facts.renewal_due() < minutes(41) && facts.renewal_due() > minutes(36)
    );
    let peer = cluster.authority().verify(&chain, minutes(60)).unwrap();
    assert_eq!((peer.identity, peer.location, peer.tier), (edge, Some(name("hall-3")), Some(name("edge"))));
    // As what the controller answers, and as a list for people.
    let json = serde_json::to_string(&issued).unwrap();
    assert_eq!(serde_json::from_str::<Issued>(&json).unwrap(), issued);
    let tokens = cluster.authority().join_tokens();
    assert_eq!((tokens[0].id, &tokens[0].by[..]), (token.id(), "Ada"));
    assert_eq!((tokens[0].uses[0].worker.as_str(), tokens[0].uses[0].at), ("edge-1", NOON));
    assert_eq!(cluster.authority().certificates()[0].serial, peer.serial);
}

/// Nothing but the key is taken from a request: not the name, nor that it would like to be an authority.
#[test]
fn what_a_request_says_of_itself_is_ignored() {
    let cluster = Cluster::new();
    let mut parameters = CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, "controller");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let uri = "tidemill:controller".try_into().unwrap();
    parameters.subject_alt_names.push(rcgen::SanType::URI(uri));
    let key = KeyPair::generate().unwrap();
    let request_pem = parameters.serialize_request(&key).unwrap().pem().unwrap();
    let token = cluster.token(&once(), NOON);
    let join = JoinRequest { request_pem, ..join(&token, &NewKey::generate().unwrap()) };
    let issued = cluster.authority().redeem(&join, NOON).unwrap();
    let chain = chain(&issued);
    let worker = PeerIdentity::Worker(name("worker-1"));
    assert_eq!(PeerIdentity::of_verified(&chain[0]), Ok(worker));
    let parsed = webpki::EndEntityCert::try_from(&chain[0]).unwrap();
    assert_eq!(parsed.valid_dns_names().collect::<Vec<_>>(), ["tidemill"]);
    assert!(!CertificateFacts::of_der(&chain[0]).unwrap().is_authority);
}

#[test]
fn a_token_that_was_used_is_refused_after_a_restart_too() {
    let mut cluster = Cluster::new();
    let token = cluster.token(&once(), NOON);
    let worker = JoinRequest { name: Some(name("edge-1")), ..join(&token, &NewKey::generate().unwrap()) };
    cluster.authority().redeem(&worker, minutes(1)).unwrap();
    let thief = join(&token, &NewKey::generate().unwrap());
    for _ in 0..2 {
        let refusal = refusal(cluster.authority().redeem(&thief, minutes(2)));
        assert_eq!(refusal, Refusal::TokenUsed { id: token.id(), at: minutes(1), by: name("edge-1") });
        assert!(refusal.to_string().contains("by worker `edge-1`") && !refusal.for_peer().contains("edge-1"));
        assert_eq!(refusal.kind(), RefusalKind::Unauthenticated);
        cluster.reopen();
    }
}

/// An answer that was lost in transit does not burn the token: the same key gets the same certificate, after a
/// restart and after the end of the token, too; but not for ever.
#[test]
fn the_same_request_gets_the_same_certificate_for_a_while() {
    let mut cluster = Cluster::new();
    let options = JoinTokenOptions { lifetime: Duration::from_secs(60), ..once() };
    let token = cluster.token(&options, NOON);
    let key = NewKey::generate().unwrap();
    let issued = cluster.authority().redeem(&join(&token, &key), NOON).unwrap();
    cluster.reopen();
    // The request may be signed again.
    let again = NewKey::from_pem(key.key_pem()).unwrap();
    let late = NOON.after(ANSWER_KEPT);
    assert_eq!(cluster.authority().redeem(&join(&token, &again), late).unwrap(), issued);
    assert_eq!(cluster.authority().join_tokens()[0].uses.len(), 1);
    assert_eq!(cluster.authority().certificates().len(), 1);
    let too_late = late.after(Duration::from_secs(1));
    let refused = refusal(cluster.authority().redeem(&join(&token, &key), too_late));
    assert!(matches!(refused, Refusal::TokenUsed { .. }));
    // And not once the certificate is revoked.
    cluster.authority().revoke_worker(&name("worker-1"), "stolen", "Ada", late).unwrap();
    let refused = refusal(cluster.authority().redeem(&join(&token, &key), late));
    assert!(matches!(refused, Refusal::TokenUsed { .. }));
}

#[test]
fn tokens_that_do_not_count_are_refused_and_told_apart() {
    let mut cluster = Cluster::new();
    let key = NewKey::generate().unwrap();
    let good = cluster.token(&once(), NOON);
    let text = good.reveal();
    let id = good.id();
    let redeem = |cluster: &Cluster, token: &str, now| {
        let request = JoinRequest { token: token.to_owned(), ..join(&good, &key) };
        refusal(cluster.authority().redeem(&request, now))
    };
    assert_eq!(redeem(&cluster, " ", NOON), Refusal::NoToken);
    let mistyped = redeem(&cluster, &text[..50], NOON);
    assert_eq!(mistyped, Refusal::Token(TokenError::Length { prefix: "tmj_", found: 46 }));
    assert_eq!(mistyped.kind(), RefusalKind::Malformed);
    // Until the end of its last second it can be used.
    let end = minutes(60).after(Duration::from_secs(1));
    assert_eq!(redeem(&cluster, &text, end), Refusal::TokenExpired { id, at: minutes(60) });
    let foreign = Cluster::new().token(&once(), NOON);
    let refused = redeem(&cluster, &foreign.reveal(), NOON);
    assert_eq!(refused, Refusal::UnknownToken { id: foreign.id(), has_id: false });
    let person = cluster.authority().add_person("Ada", Role::Admin, None, NOON).unwrap();
    let refused = redeem(&cluster, &person.reveal(), NOON).to_string();
    assert!(refused.starts_with("this is an access token of a person"), "{refused}");
    cluster.authority().revoke_join_token(id, "printed", "Grace", minutes(5)).unwrap();
    cluster.reopen();
    let revoked = Refusal::TokenRevoked { id, at: minutes(5), by: "Grace".to_owned() };
    assert_eq!(redeem(&cluster, &text, minutes(6)), revoked);
    let missing = cluster.authority().revoke_join_token(foreign.id(), "", "Grace", NOON).unwrap_err();
    assert_eq!(missing.to_string(), format!("there is no join token {}", foreign.id()));
    assert!(cluster.authority().certificates().is_empty());
}

/// The id of a token is no secret; without the right secret it is worth nothing.
#[test]
fn a_guessed_secret_is_refused() {
    let (cluster, mut other) = (Cluster::new(), Cluster::new());
    let token = cluster.token(&once(), NOON);
    let stranger = other.token(&once(), NOON);
    other.rename_token(stranger.id(), token.id());
    let refused = refusal(other.authority().redeem(&join(&token, &NewKey::generate().unwrap()), NOON));
    assert_eq!(refused, Refusal::UnknownToken { id: token.id(), has_id: true });
    assert!(refused.to_string().contains("a client may be guessing"));
}

#[test]
fn a_token_for_one_worker_lets_no_other_one_in() {
    let cluster = Cluster::new();
    let options = JoinTokenOptions {
        name: Some(name("edge-1")),
        location: Some(name("hall-3")),
        tier: Some(name("edge")),
        ..once()
    };
    let token = cluster.token(&options, NOON);
    let key = NewKey::generate().unwrap();
    let asks = [
        ("worker", JoinRequest { name: Some(name("hub")), ..join(&token, &key) }),
        ("location", JoinRequest { location: Some(name("hub")), ..join(&token, &key) }),
        ("tier", JoinRequest { tier: Some(name("hub")), ..join(&token, &key) }),
    ];
    for (what, ask) in asks {
        let refused = refusal(cluster.authority().redeem(&ask, NOON));
        assert!(matches!(&refused, Refusal::Constrained { what: found, .. } if *found == what), "{refused}");
        let peer = refused.for_peer();
        assert!(peer.contains(&format!("not for {what} `hub`")) && !peer.contains("edge"), "{peer}");
    }
    // That did not use it up, and who asks for nothing gets what it is for.
    let issued = cluster.authority().redeem(&join(&token, &key), NOON).unwrap();
    assert_eq!(issued.identity, PeerIdentity::Worker(name("edge-1")));
    assert_eq!((issued.location, issued.tier), (options.location, options.tier));
}

#[test]
fn a_request_that_does_not_prove_its_key_is_refused_and_uses_nothing_up() {
    let cluster = Cluster::new();
    let token = cluster.token(&once(), NOON);
    let key = NewKey::generate().unwrap();
    // The last letters of a request are of its signature; those of Ed25519 are all of one length.
    let lines = || {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        request.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut ours, theirs) = (lines(), lines());
    let last = ours.len() - 2;
    ours[last].clone_from(&theirs[last]);
    let broken = ours.join("\n");
    let cases = [
        (broken, RequestError::Signature),
        ("x".to_owned(), RequestError::Pem),
        (String::new(), RequestError::Pem),
    ];
    for (request_pem, error) in cases {
        let ask = JoinRequest { request_pem, ..join(&token, &key) };
        assert_eq!(refusal(cluster.authority().redeem(&ask, NOON)), Refusal::Request(error));
    }
    assert!(cluster.authority().redeem(&join(&token, &key), NOON).is_ok());
}

#[test]
fn a_token_can_be_for_many_workers() {
    let mut cluster = Cluster::new();
    let token = cluster.token(&JoinTokenOptions { uses: 3, ..once() }, NOON);
    let mut names = Vec::new();
    for _ in 0..3 {
        let issued = cluster.authority().redeem(&join(&token, &NewKey::generate().unwrap()), NOON).unwrap();
        names.push(issued.identity.for_people());
        cluster.reopen();
    }
    assert_eq!(names, ["worker `worker-1`", "worker `worker-2`", "worker `worker-3`"]);
    let refused = refusal(cluster.authority().redeem(&join(&token, &NewKey::generate().unwrap()), NOON));
    assert!(matches!(refused, Refusal::TokenUsed { .. }));
}

#[test]
fn a_name_belongs_to_the_worker_that_has_it() {
    let cluster = Cluster::new();
    let first = cluster.worker("edge-1");
    let token = cluster.token(&once(), NOON);
    let key = NewKey::generate().unwrap();
    let ask = JoinRequest { name: Some(name("edge-1")), ..join(&token, &key) };
    let refused = refusal(cluster.authority().redeem(&ask, NOON));
    assert_eq!(refused, Refusal::NameTaken { name: name("edge-1"), until: minutes(60) });
    assert_eq!(refused.kind(), RefusalKind::Conflict);
    // A token that replaces it: the old certificates are revoked.
    let options = JoinTokenOptions { name: Some(name("edge-1")), replaces: true, ..once() };
    let replacing = cluster.token(&options, NOON);
    let issued = cluster.authority().redeem(&join(&replacing, &key), minutes(1)).unwrap();
    assert_eq!(issued.identity, first.issued.identity);
    let refused = cluster.authority().verify(&first.chain(), minutes(1)).unwrap_err();
    assert!(matches!(refused, Refusal::CertificateRevoked { .. }), "{refused}");
    assert!(cluster.authority().revoked().contains(&first.facts().serial));
    assert!(cluster.authority().verify(&chain(&issued), minutes(1)).is_ok());
    // The same key may come again: it proves that it is the same worker.
    let ask = JoinRequest { name: Some(name("edge-1")), ..join(&token, &key) };
    assert!(cluster.authority().redeem(&ask, minutes(20)).is_ok());
    // And the name is free again when its certificates have expired.
    let late = cluster.token(&once(), minutes(81));
    let ask = JoinRequest { name: Some(name("edge-1")), ..join(&late, &NewKey::generate().unwrap()) };
    assert!(cluster.authority().redeem(&ask, minutes(81)).is_ok());
}

#[test]
fn tokens_that_cannot_be_are_told_so() {
    let cluster = Cluster::new();
    let cases = [
        (JoinTokenOptions { uses: 0, ..once() }, "1 to 10000 times, not 0"),
        (JoinTokenOptions { uses: 10_001, ..once() }, "not 10001"),
        (JoinTokenOptions { lifetime: Duration::ZERO, ..once() }, "1 second to 366 days"),
        (JoinTokenOptions { lifetime: Duration::MAX, ..once() }, "1 second to 366 days"),
        (
            JoinTokenOptions { uses: 2, name: Some(name("a")), ..once() },
            "only one worker can have the name `a`",
        ),
        (JoinTokenOptions { replaces: true, ..once() }, "must name it"),
    ];
    for (options, word) in cases {
        let error = cluster.authority().create_join_token(&options, "Ada", NOON).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(cluster.authority().join_tokens().is_empty());
}

/// The text of a token lies nowhere, and neither debug output nor errors have it.
#[test]
fn only_a_hash_of_a_token_is_kept() {
    let cluster = Cluster::new();
    let token = cluster.token(&once(), NOON);
    let text = token.reveal();
    let ask = join(&token, &NewKey::generate().unwrap());
    let register = std::fs::read_to_string(cluster.folder.path().join("register.json")).unwrap();
    for shown in [register, format!("{token:?} {ask:?} {:?}", cluster.authority().join_tokens())] {
        assert!(shown.contains(&token.id().to_string()) || shown.contains("JoinRequest"), "{shown}");
        assert!(!shown.contains(&text[4..]) && !shown.contains(&text[12..44]));
    }
}

#[test]
fn no_certificate_outlives_the_authority() {
    let cluster = Cluster::new();
    let almost = minutes(24 * 60 - 10);
    let token = cluster.token(&once(), almost);
    let key = NewKey::generate().unwrap();
    let issued = cluster.authority().redeem(&join(&token, &key), almost).unwrap();
    assert_eq!(issued.expires, cluster.authority().certificate().not_after);
    let after = minutes(24 * 60 + 1);
    let token = cluster.token(&once(), after);
    let error = cluster.authority().redeem(&join(&token, &key), after).unwrap_err().to_string();
    assert!(
        error.contains("the authority is valid from") && error.contains("is the clock right?"),
        "{error}"
    );
    assert!(cluster.authority().join_tokens().iter().any(|it| it.id == token.id() && it.uses.is_empty()));
}

#[test]
fn certificates_of_others_are_refused() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let stranger = other.worker("edge-1");
    let (theirs, ours) = (other.authority().fingerprint(), cluster.authority().fingerprint());
    let refused = cluster.authority().verify(&stranger.chain(), NOON).unwrap_err();
    assert_eq!(refused, Refusal::OtherCluster { theirs: Some(theirs), ours });
    let text = format!("of another cluster: fingerprint {theirs}, this is {ours}");
    assert!(refused.to_string().contains(&text), "{refused}");
    let refused = cluster.authority().verify(&stranger.chain()[..1], NOON).unwrap_err();
    assert_eq!(refused, Refusal::OtherCluster { theirs: None, ours });
    assert_eq!(cluster.authority().verify(&[], NOON), Err(Refusal::NoCertificate));
    let garbage = CertificateDer::from(b"garbage".to_vec());
    assert_eq!(cluster.authority().verify(&[garbage], NOON), Err(Refusal::NoCertificate));
    // Our authority after the leaf of another one proves nothing.
    let mixed = [stranger.chain()[0].clone(), cluster.worker("hub").chain()[1].clone()];
    let refused = cluster.authority().verify(&mixed, NOON).unwrap_err();
    assert_eq!(refused, Refusal::OtherCluster { theirs: None, ours });
}
