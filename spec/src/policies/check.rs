//! Checks of policies that both kinds of files have in common.
use super::{Home, LONGEST, Policy};
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH};
use crate::identifier;
use crate::span::Located;
use std::collections::HashMap;

/// Finds ids that are invalid or given twice, and invalid kinds.
pub(crate) fn check<'a>(policies: impl Iterator<Item = &'a Policy>, home: Home, found: &mut Diagnostics) {
    let mut firsts: HashMap<&str, &Located<String>> = HashMap::new();
    for policy in policies {
        if found.len() >= ENOUGH {
            return;
        }
        let kind = &policy.kind;
        if identifier::wrong(kind, "").is_some() {
            let shown: String = kind.chars().take(60).collect();
            found.push(
                Diagnostic::error(home.code(), format!("`{shown}` is no kind of policy"))
                    .at(kind.span.clone())
                    .with_help("write small letters, digits, `_` and `-`, such as `rate_limit`"),
            );
        }
        found.extend(policy.id.as_ref().and_then(|id| identifier::check(id, "")));
        for (what, text) in [("kind", Some(kind)), ("id", policy.id.as_ref())] {
            if let Some(text) = text.filter(|text| text.len() > LONGEST) {
                found.push(
                    Diagnostic::error(home.code(), format!("the {what} of a policy is too long"))
                        .at(text.span.clone())
                        .with_help(format!("write {LONGEST} characters at most")),
                );
            }
        }
        let Some(id) = &policy.id else { continue };
        if let Some(first) = firsts.insert(id.as_str(), id) {
            found.push(
                Diagnostic::error(home.code(), format!("policy `{id}` is given twice"))
                    .at(id.span.clone())
                    .with_related(first.span.clone(), "the first one")
                    .with_help("give it another id, or leave `id` out"),
            );
        }
    }
}
