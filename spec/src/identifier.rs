//! Syntax of ids. Ids name state, metrics and files, so they are plain and stable.
use crate::diagnostic::Diagnostic;
use crate::span::Located;

/// Checks an id against `^[a-z][a-z0-9_-]*$`; `more` lists further characters that may follow the first. Reports
/// `E0115` at the id, with the nearest valid id.
pub(crate) fn check(id: &Located<String>, more: &str) -> Option<Diagnostic> {
    let (message, help) = wrong(&id.value, more)?;
    Some(Diagnostic::error("E0115", message).at(id.span.clone()).with_help(help))
}

/// Returns message and help for an invalid id.
pub(crate) fn wrong(id: &str, more: &str) -> Option<(String, String)> {
    let follows =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c) || more.contains(c);
    let starts = id.starts_with(|c: char| c.is_ascii_lowercase());
    if starts && id.chars().all(follows) && id.len() <= 128 {
        return None;
    }
    let mut better: String =
        id.trim().to_lowercase().chars().take(40).map(|c| if follows(c) { c } else { '_' }).collect();
    if !better.starts_with(|c: char| c.is_ascii_lowercase()) {
        better.insert_str(0, "x_");
    }
    let short: String = id.chars().take(60).collect();
    Some((
        format!("`{short}` cannot be an id"),
        format!(
            "ids start with a lower-case letter, then have lower-case letters, digits, `_`, `-`{}; for example `{better}`",
            more.chars().map(|c| format!(", `{c}`")).collect::<String>()
        ),
    ))
}
