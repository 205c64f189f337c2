//! Access of people.
use super::Authority;
use crate::error::{IdentityError, StoreError};
use crate::people::Role;
use crate::person::Person;
use crate::refusal::Refusal;
use crate::register::{AccessTokenRecord, Register, Revocation};
use crate::timestamp::Timestamp;
use crate::token::{AccessToken, TokenId};

/// Longest name of a person, in characters.
pub const PERSON_LENGTH: usize = 64;
/// Name of the first person.
pub const FIRST_ADMIN: &str = "admin";

impl Authority {
    /// Makes the access token of the first admin, once. `keep` stores it where the admin finds it, before it counts:
    /// if the process is killed in between, the next call makes another one. An admin who loses it before making
    /// another one ends the controller and uses [`Authority::add_person`] on the folder, whose content is enough to
    /// be the authority.
    ///
    /// # Errors
    /// [`IdentityError::Store`] when it cannot be kept; then it was not given.
    pub fn first_admin(
        &self,
        now: Timestamp,
        keep: impl FnOnce(&AccessToken) -> Result<(), StoreError>,
    ) -> Result<Option<AccessToken>, IdentityError> {
        self.change(now, |register| {
            if register.first_admin_was_given {
                return Ok(None);
            }
            register.first_admin_was_given = true;
            let token = add(register, FIRST_ADMIN, Role::Admin, None, now)?;
            keep(&token)?;
            Ok(Some(token))
        })
    }

    /// Makes an access token for a person, who may have more than one. Show its text once: only a hash of it is kept.
    ///
    /// # Errors
    /// [`IdentityError::Invalid`] when the name is none, or the token would have expired already.
    pub fn add_person(
        &self,
        name: &str,
        role: Role,
        expires: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<AccessToken, IdentityError> {
        let length = name.chars().count();
        let is_plain = name.trim() == name && !name.chars().any(char::is_control);
        if length == 0 || length > PERSON_LENGTH || !is_plain {
            let short: String = name.chars().take(PERSON_LENGTH).collect();
            return Err(IdentityError::Invalid(format!(
                "{short:?} cannot be the name of a person: 1 to {PERSON_LENGTH} letters on one line, without spaces around them"
            )));
        }
        if let Some(at) = expires.filter(|at| *at <= now) {
            return Err(IdentityError::Invalid(format!(
                "an access token cannot expire on {at}: now is {now}"
            )));
        }
        self.change(now, |register| add(register, name, role, expires, now))
    }

    /// Returns all known access tokens, oldest first.
    pub fn people(&self) -> Vec<AccessTokenRecord> {
        self.look(|register| register.people.clone())
    }

    /// Ends an access token.
    ///
    /// # Errors
    /// [`IdentityError::NoSuch`] when there is none of this id, [`IdentityError::Invalid`] when it is the last one of an admin.
    pub fn revoke_access_token(
        &self,
        id: TokenId,
        reason: &str,
        by: &str,
        now: Timestamp,
    ) -> Result<(), IdentityError> {
        let revoked = self.revoke_access(reason, by, now, |token| token.id == id)?;
        if revoked { Ok(()) } else { Err(IdentityError::NoSuch(format!("access token {id}"))) }
    }

    /// Ends all access tokens of a person.
    ///
    /// # Errors
    /// As [`Authority::revoke_access_token`].
    pub fn revoke_person(
        &self,
        name: &str,
        reason: &str,
        by: &str,
        now: Timestamp,
    ) -> Result<(), IdentityError> {
        let revoked =
            self.revoke_access(reason, by, now, |token| token.name == name && token.is_good(now))?;
        let missing = || IdentityError::NoSuch(format!("person {name:?} with an access token that is valid"));
        if revoked { Ok(()) } else { Err(missing()) }
    }

    fn revoke_access(
        &self,
        reason: &str,
        by: &str,
        now: Timestamp,
        is_meant: impl Fn(&AccessTokenRecord) -> bool,
    ) -> Result<bool, IdentityError> {
        self.change(now, |register| {
            let admins = |register: &Register| {
                register.people.iter().filter(|token| token.role == Role::Admin && token.is_good(now)).count()
            };
            let before = admins(register);
            let mut found = false;
            for token in register.people.iter_mut().filter(|token| is_meant(token)) {
                let revocation = Revocation { at: now, by: by.to_owned(), reason: reason.to_owned() };
                token.revoked.get_or_insert(revocation);
                found = true;
            }
            if before > 0 && admins(register) == 0 {
                let text = "that is the last access token of an admin: create another one first";
                return Err(IdentityError::Invalid(text.to_owned()));
            }
            Ok(found)
        })
    }

    /// Returns the person of an access token.
    ///
    /// # Errors
    /// See [`Refusal`]: there is no text, it is no token or not known, it has expired or was revoked.
    pub fn authenticate(&self, token: &str, now: Timestamp) -> Result<Person, Refusal> {
        if token.trim().is_empty() {
            return Err(Refusal::NoToken);
        }
        let token: AccessToken = token.parse()?;
        let id = token.id();
        self.look(|register| {
            let record = register.people.iter().find(|record| record.id == id);
            let has_id = record.is_some();
            let record = record.filter(|record| token.is(&record.hash));
            let record = record.ok_or(Refusal::UnknownToken { id, has_id })?;
            if let Some(revocation) = &record.revoked {
                return Err(Refusal::TokenRevoked { id, at: revocation.at, by: revocation.by.clone() });
            }
            if let Some(at) = record.expires.filter(|at| now > *at) {
                return Err(Refusal::TokenExpired { id, at });
            }
            Ok(Person { name: record.name.clone(), role: record.role, token: id })
        })
    }
}

fn add(
    register: &mut Register,
    name: &str,
    role: Role,
    expires: Option<Timestamp>,
    now: Timestamp,
) -> Result<AccessToken, IdentityError> {
    let token = loop {
        let token = AccessToken::draw()?;
        if register.people.iter().all(|other| other.id != token.id()) {
            break token;
        }
    };
    register.people.push(AccessTokenRecord {
        id: token.id(),
        name: name.to_owned(),
        role,
        made: now,
        expires,
        revoked: None,
        hash: token.hash(),
    });
    Ok(token)
}
