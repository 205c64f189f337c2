//! A person whom the authority has authenticated.
use crate::people::{Action, Role};
use crate::refusal::Refusal;
use crate::token::TokenId;

/// A person who showed a good access token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// The person's name.
    pub name: String,
    /// The permissions of the person.
    pub role: Role,
    /// The token that was shown.
    pub token: TokenId,
}

impl Person {
    /// Returns if the person may do it.
    ///
    /// # Errors
    /// [`Refusal::NotAllowed`] otherwise.
    pub fn require(&self, action: Action) -> Result<(), Refusal> {
        if self.role.may(action) {
            return Ok(());
        }
        Err(Refusal::NotAllowed { person: self.name.clone(), role: self.role, action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_who_submits_is_told_what_it_takes() {
        let viewer = Person { name: "Ada".to_owned(), role: Role::Viewer, token: TokenId([1; 5]) };
        assert_eq!(viewer.require(Action::View), Ok(()));
        let refusal = viewer.require(Action::Submit).unwrap_err();
        let text = "Ada may not start a run: that needs the role operator, but this access token has the role viewer";
        assert_eq!((refusal.to_string(), refusal.for_peer()), (text.to_owned(), text.to_owned()));
    }
}
