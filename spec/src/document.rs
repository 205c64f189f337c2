//! Steps of loading any specification file: read, parse, convert, check.
use crate::deserializer;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::{SourceFile, Span};
use crate::value::{Node, Value};
use crate::yaml;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Parses a document that starts with `version: 1` and is a map; the tree keeps all positions.
///
/// # Errors
/// As [`yaml::parse`]; `E0113` for another version; `E0105` for a document that is no map.
pub(crate) fn tree(source: &Arc<SourceFile>, what: &str) -> Result<Value, Diagnostics> {
    let value = yaml::parse(source)?;
    if value.is_null() {
        let empty = value.error("E0105", format!("the {what} is empty")).with_help("start with `version: 1`");
        return Err(empty.into());
    }
    let Node::Map(_) = value.node else {
        let found = value.kind();
        let first = Span::new(source, 0, source.text().lines().next().map_or(0, str::len));
        return Err(Diagnostic::error("E0105", format!("a {what} is a map of keys, found {found}"))
            .at(first)
            .with_help(format!("a {what} starts with `version: 1`; is this the right file?"))
            .into());
    };
    if let Some(other) = other_kind(&value, what) {
        return Err(other.into());
    }
    // Files of another version may differ everywhere, so only the version is reported.
    if let Some(version) = value.get("version")
        && version.node != Node::Integer(1)
    {
        let unsupported =
            Diagnostic::error("E0113", format!("this version of the {what} format is not supported"))
                .at(version.span.clone())
                .with_help("write `version: 1`");
        return Err(unsupported.into());
    }
    Ok(value)
}

/// Kinds of files, with keys that distinguish them.
const KINDS: &[(&str, &[&str])] = &[
    ("workflow", &["operators", "sinks", "slo", "run"]),
    ("infrastructure", &["tiers", "links"]),
    ("profile", &["machines", "services", "ratios", "messages"]),
    ("plan", &["plan_version", "percentile", "stages", "classes", "edges", "predicted"]),
    ("test file", &["tests"]),
    ("job file", &["job"]),
    (
        "model manifest",
        &["sha256", "licence", "origin", "backends", "outputs", "repeat", "decoder", "generate"],
    ),
];

/// Returns an error where a file is clearly of another kind: it has keys of that kind, and none of the right one.
fn other_kind(value: &Value, what: &str) -> Option<Diagnostic> {
    let keys_of = |keys: &[&'static str]| keys.iter().filter_map(|key| value.entry(key)).collect::<Vec<_>>();
    let (_, right) = KINDS.iter().find(|(kind, _)| *kind == what)?;
    if !keys_of(right).is_empty() {
        return None;
    }
    let found = KINDS.iter().map(|(kind, keys)| (*kind, keys_of(keys)));
    let (kind, keys) = found.filter(|(_, keys)| !keys.is_empty()).max_by_key(|(_, keys)| keys.len())?;
    let article = |word: &str| if word.starts_with('i') { "an" } else { "a" };
    let names: Vec<String> = keys.iter().map(|entry| format!("`{}`", entry.key)).collect();
    let first = keys.iter().map(|entry| &entry.key.span).min_by_key(|span| span.range().start)?;
    Some(
        Diagnostic::error(
            "E0117",
            format!("this is {} {kind}; {} {what} is needed here", article(kind), article(what)),
        )
        .at(first.clone())
        .with_help(format!("name another file: {} {kind} has {}", article(kind), names.join(", "))),
    )
}

/// Converts the tree and checks the result, reporting all errors in the order of the file.
pub(crate) fn convert<T: DeserializeOwned>(
    tree: &Value,
    check: impl FnOnce(&T) -> Diagnostics,
) -> Result<T, Diagnostics> {
    let result = tree.deserialize_into().and_then(|value| check(&value).into_result(value));
    result.map_err(|mut errors| {
        errors.sort();
        errors
    })
}

/// Codes of errors that leave the rest of a file valid: an unknown key, a value without its unit.
const HARMLESS: &[&str] = &["E0103", "E0106"];

/// As [`convert`]; where only keys were unknown or units wrong, returns the rest of the file too, for further checks.
pub(crate) fn convert_partly<T: DeserializeOwned>(
    tree: &Value,
    check: impl FnOnce(&T) -> Diagnostics,
) -> Result<T, (Diagnostics, Option<T>)> {
    let (result, mut found) = deserializer::deserialize_partly::<T>(tree);
    let harmless = found.iter().all(|finding| HARMLESS.contains(&finding.code));
    let Some(value) = result.filter(|_| harmless) else {
        found.sort();
        return Err((found, None));
    };
    if found.is_empty() {
        return match check(&value).into_result(()) {
            Ok(()) => Ok(value),
            Err(mut found) => {
                found.sort();
                Err((found, None))
            }
        };
    }
    found.sort();
    Err((found, Some(value)))
}
