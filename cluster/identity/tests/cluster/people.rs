//! People and their tokens.
use tidemill_identity::*;

use crate::parts::*;

#[test]
fn the_first_admin_is_given_once() {
    let mut cluster = Cluster::new();
    let token = cluster.authority().first_admin(NOON, |_| Ok(())).unwrap().unwrap();
    for _ in 0..2 {
        assert!(cluster.authority().first_admin(minutes(1), |_| Ok(())).unwrap().is_none());
        let person = cluster.authority().authenticate(&token.reveal(), minutes(1)).unwrap();
        assert_eq!((person.name.as_str(), person.role, person.token), (FIRST_ADMIN, Role::Admin, token.id()));
        assert!(Action::ALL.into_iter().all(|action| person.require(action).is_ok()));
        cluster.reopen();
    }
}

/// Killed, or without a place for it, before the register says that it was given: the next time there is one that counts.
#[test]
fn a_first_token_that_nobody_could_keep_was_not_given() {
    let mut cluster = Cluster::new();
    let full = |_: &AccessToken| {
        let source = std::io::ErrorKind::StorageFull.into();
        Err(StoreError::Io { done: "written", path: "admin.token".into(), source })
    };
    let error = cluster.authority().first_admin(NOON, full).unwrap_err();
    assert!(error.to_string().starts_with("admin.token cannot be written"), "{error}");
    cluster.reopen();
    assert!(cluster.authority().people().is_empty());
    let mut kept = None;
    let keep = |token: &AccessToken| {
        kept = Some(token.reveal().to_string());
        Ok(())
    };
    assert!(cluster.authority().first_admin(NOON, keep).unwrap().is_some());
    cluster.reopen();
    let person = cluster.authority().authenticate(&kept.unwrap(), minutes(1)).unwrap();
    assert_eq!(person.name, FIRST_ADMIN);
}

#[test]
fn people_come_in_by_their_tokens_until_these_end() {
    let mut cluster = Cluster::new();
    let authority = cluster.authority();
    let ada = authority.add_person("Ada", Role::Operator, Some(minutes(10)), NOON).unwrap();
    let grace = authority.add_person("Grace Hopper", Role::Viewer, None, NOON).unwrap();
    cluster.reopen();
    let authority = cluster.authority();
    let person = authority.authenticate(&format!(" {} ", *ada.reveal()), minutes(10)).unwrap();
    assert_eq!((person.name.as_str(), person.role), ("Ada", Role::Operator));
    let expired = authority.authenticate(&ada.reveal(), minutes(11)).unwrap_err();
    assert_eq!(expired, Refusal::TokenExpired { id: ada.id(), at: minutes(10) });
    assert_eq!(expired.for_peer(), format!("the token expired on {}: ask for a new one", minutes(10)));
    let viewer = authority.authenticate(&grace.reveal(), minutes(1_000_000)).unwrap();
    let refused = viewer.require(Action::Submit).unwrap_err();
    let action = Action::Submit;
    assert_eq!(
        refused,
        Refusal::NotAllowed { person: "Grace Hopper".to_owned(), role: Role::Viewer, action }
    );
    assert_eq!(refused.kind(), RefusalKind::Forbidden);
    let list = authority.people();
    assert_eq!(
        list.iter().map(|it| (it.id, it.role)).collect::<Vec<_>>(),
        [(ada.id(), Role::Operator), (grace.id(), Role::Viewer)]
    );
    assert!(list[0].is_good(minutes(10)) && !list[0].is_good(minutes(11)));
}

#[test]
fn nobody_is_told_little() {
    let cluster = Cluster::new();
    let authority = cluster.authority();
    assert_eq!(authority.authenticate("", NOON), Err(Refusal::NoToken));
    let stranger = Cluster::new().authority().add_person("Eve", Role::Admin, None, NOON).unwrap();
    let refused = authority.authenticate(&stranger.reveal(), NOON).unwrap_err();
    assert_eq!(refused, Refusal::UnknownToken { id: stranger.id(), has_id: false });
    assert_eq!(refused.kind(), RefusalKind::Unauthenticated);
    let joins = cluster.token(&JoinTokenOptions::default(), NOON);
    let refused = authority.authenticate(&joins.reveal(), NOON).unwrap_err().to_string();
    assert!(refused.contains("this is a join token (tmj_…); here an access token of a person"), "{refused}");
}

/// The id of a token without its secret.
#[test]
fn a_guessed_secret_is_refused() {
    let (cluster, mut other) = (Cluster::new(), Cluster::new());
    let token = cluster.authority().add_person("Ada", Role::Admin, None, NOON).unwrap();
    let stranger = other.authority().add_person("Eve", Role::Admin, None, NOON).unwrap();
    other.rename_token(stranger.id(), token.id());
    let refused = other.authority().authenticate(&token.reveal(), NOON).unwrap_err();
    assert_eq!(refused, Refusal::UnknownToken { id: token.id(), has_id: true });
    assert!(cluster.authority().authenticate(&token.reveal(), NOON).is_ok());
}

#[test]
fn tokens_of_people_are_revoked_for_good() {
    let mut cluster = Cluster::new();
    let admin = cluster.authority().first_admin(NOON, |_| Ok(())).unwrap().unwrap();
    let one = cluster.authority().add_person("Ada", Role::Operator, None, NOON).unwrap();
    let two = cluster.authority().add_person("Ada", Role::Operator, None, NOON).unwrap();
    let authority = cluster.authority();
    authority.revoke_access_token(one.id(), "lost", "admin", minutes(1)).unwrap();
    assert!(authority.authenticate(&two.reveal(), minutes(2)).is_ok());
    authority.revoke_person("Ada", "left", "admin", minutes(3)).unwrap();
    cluster.reopen();
    let authority = cluster.authority();
    for (token, at) in [(&one, minutes(1)), (&two, minutes(3))] {
        let refused = authority.authenticate(&token.reveal(), minutes(4)).unwrap_err();
        assert_eq!(refused, Refusal::TokenRevoked { id: token.id(), at, by: "admin".to_owned() });
    }
    let error = authority.revoke_person("Ada", "left", "admin", minutes(5)).unwrap_err().to_string();
    assert_eq!(error, "there is no person \"Ada\" with an access token that is valid");
    // One person must be left who can let others in.
    let error = authority.revoke_person(FIRST_ADMIN, "", "admin", minutes(5)).unwrap_err().to_string();
    assert!(error.contains("the last access token of an admin"), "{error}");
    let temporary = authority.add_person("Bob", Role::Admin, Some(minutes(7)), minutes(5)).unwrap();
    let late = authority.revoke_access_token(admin.id(), "", "admin", minutes(8));
    assert!(late.is_err(), "the other one has expired");
    authority.revoke_access_token(admin.id(), "", "admin", minutes(6)).unwrap();
    assert!(authority.authenticate(&temporary.reveal(), minutes(6)).is_ok());
    assert!(authority.first_admin(minutes(6), |_| Ok(())).unwrap().is_none());
}

#[test]
fn people_have_names() {
    let cluster = Cluster::new();
    for name in ["", " Ada", "Ada\n", "a\tb", &"x".repeat(65)] {
        let error = cluster.authority().add_person(name, Role::Viewer, None, NOON).unwrap_err().to_string();
        assert!(error.contains("cannot be the name of a person"), "{error}");
    }
    let error =
        cluster.authority().add_person("Ada", Role::Viewer, Some(NOON), NOON).unwrap_err().to_string();
    assert!(error.starts_with("an access token cannot expire on"), "{error}");
}
