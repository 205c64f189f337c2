//! What all specification files have in common: read, parse, convert, check.
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::SourceFile;
use crate::value::{Node, Value};
use crate::yaml;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Parses a document that starts with `version: 1` and is a map; the tree keeps all positions.
///
/// # Errors
/// Those of [`yaml::parse`]; `E0113` for another version; `E0105` for a document that is no map.
pub(crate) fn tree(source: &Arc<SourceFile>, what: &str) -> Result<Value, Diagnostics> {
    let value = yaml::parse(source)?;
    if value.is_null() {
        let empty = value.error("E0105", format!("the {what} is empty")).with_help("start with `version: 1`");
        return Err(empty.into());
    }
    let Node::Map(_) = value.node else {
        let found = value.kind();
        return Err(value.error("E0105", format!("a {what} is a map of keys, found {found}")).into());
    };
    // Files of another version may differ everywhere: only the version is reported then.
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
