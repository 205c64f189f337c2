//! Environment variables in texts: `${VAR}` and `${VAR:-default}`; `$${` is a plain `${`.
//!
//! Ids, kinds, references and keys never contain variables: the graph must not depend on the machine. Policies do not either:
//! plans contain them.
//!
//! ```
//! use tidemill_spec::{span::SourceFile, variables, yaml};
//! let mut value = yaml::parse(&SourceFile::new("a.yaml", "path: ${DATA:-data}/images")).unwrap();
//! variables::fill_in(&mut value, &|_name| None).unwrap();
//! assert_eq!(value.get("path").unwrap().as_str(), Some("data/images"));
//! ```
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::value::{Node, Value};
use std::cell::Cell;

/// Source of variables: the environment, or a table in tests.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Looks up a variable in the environment of this process.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Keys whose values are ids, kinds or references.
const FIXED: &[&str] = &["id", "kind", "input", "inputs", "from", "to", "name", "version"];

/// Fills in all variables of a tree.
///
/// # Errors
/// `E0110` for a variable that is not set and has no default, `E0111` for a malformed reference, `E0112` for a variable
/// where none is allowed.
pub fn fill_in(tree: &mut Value, lookup: Lookup<'_>) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    walk(tree, false, lookup, &mut errors);
    errors.into_result(())
}

fn walk(value: &mut Value, fixed: bool, lookup: Lookup<'_>, errors: &mut Diagnostics) {
    let span = value.span.clone();
    match &mut value.node {
        Node::Text(text) if text.value.contains("${") => {
            if fixed {
                errors.push(misplaced("an id, a kind or a reference").at(span));
                return;
            }
            match filled(&text.value, lookup) {
                Ok(filled) => text.written = Some(std::mem::replace(&mut text.value, filled)),
                Err(error) => errors.push(error.at(span)),
            }
        }
        Node::List(items) => items.iter_mut().for_each(|item| walk(item, fixed, lookup, errors)),
        Node::Map(entries) => {
            for entry in entries {
                if entry.key.value.contains("${") {
                    errors.push(misplaced("a key").at(entry.key.span.clone()));
                }
                // The kind decides about `options`; there, `name` or `from` may be ordinary texts.
                let fixed = FIXED.contains(&entry.key.value.as_str());
                if entry.key.value == "options" {
                    fill_options(&mut entry.value, lookup, errors);
                } else if entry.key.value == "policies" {
                    refuse_all(&mut entry.value, errors);
                } else {
                    walk(&mut entry.value, fixed, lookup, errors);
                }
            }
        }
        _ => {}
    }
}

fn fill_options(value: &mut Value, lookup: Lookup<'_>, errors: &mut Diagnostics) {
    match &mut value.node {
        Node::List(items) => items.iter_mut().for_each(|item| fill_options(item, lookup, errors)),
        Node::Map(entries) => {
            for entry in entries {
                if entry.key.value.contains("${") {
                    errors.push(misplaced("a key").at(entry.key.span.clone()));
                }
                fill_options(&mut entry.value, lookup, errors);
            }
        }
        _ => walk(value, false, lookup, errors),
    }
}

/// Refuses variables in policies: a plan has these too, and plans have none. `$${` is a plain `${`.
fn refuse_all(value: &mut Value, errors: &mut Diagnostics) {
    let span = value.span.clone();
    match &mut value.node {
        Node::Text(text) if text.value.contains("${") => {
            let is_asked = Cell::new(false);
            let lookup = |_: &str| {
                is_asked.set(true);
                Some(String::new())
            };
            match filled(&text.value, &lookup) {
                Ok(_) if is_asked.get() => errors.push(misplaced("a policy").at(span)),
                Ok(filled) => text.value = filled,
                Err(error) => errors.push(error.at(span)),
            }
        }
        Node::List(items) => items.iter_mut().for_each(|item| refuse_all(item, errors)),
        Node::Map(entries) => {
            for entry in entries {
                if entry.key.value.contains("${") {
                    errors.push(misplaced("a key").at(entry.key.span.clone()));
                }
                refuse_all(&mut entry.value, errors);
            }
        }
        _ => {}
    }
}

fn misplaced(place: &str) -> Diagnostic {
    Diagnostic::error("E0112", format!("a variable cannot be in {place}"))
        .with_help("write the text itself; `$${` means a plain `${` in free texts")
}

/// Fills in the variables of a text.
///
/// # Errors
/// `E0110` and `E0111`, as [`fill_in`].
pub fn filled(text: &str, lookup: Lookup<'_>) -> Result<String, Box<Diagnostic>> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            out.push_str(&rest[..start - 1]);
            out.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        out.push_str(&rest[..start]);
        let Some(end) = rest[start..].find('}') else {
            return Err(Diagnostic::error("E0111", "`${` without `}`")
                .with_help("close it, `${NAME}`, or write `$${` for a plain `${`")
                .into());
        };
        let inside = &rest[start + 2..start + end];
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let well_formed = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !well_formed {
            return Err(Diagnostic::error("E0111", format!("`{name}` is not the name of a variable"))
                .with_help("write `${NAME}` or `${NAME:-default}`, or `$${` for a plain `${`")
                .into());
        }
        // As in a shell, `:-` also replaces an empty value.
        match (lookup(name), default) {
            (Some(value), Some(default)) if value.is_empty() => out.push_str(default),
            (Some(value), _) => out.push_str(&value),
            (None, Some(default)) => out.push_str(default),
            (None, None) => {
                return Err(Diagnostic::error("E0110", format!("the variable `{name}` is not set"))
                    .with_help(format!("set it, or give a default: `${{{name}:-default}}`"))
                    .into());
            }
        }
        rest = &rest[start + end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Escapes a text so that the parser restores it without filling in variables.
pub(crate) fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}
