//! Reports several mistakes at once: errors in options beside unknown keys.
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::value::{Node, Value};

/// Binds with these options. If the only errors are unknown keys, binds once more without them, to report further errors
/// such as a missing file.
pub(super) fn bind<T>(
    options: &Value,
    bind: impl Fn(&Value) -> Result<T, Diagnostics>,
) -> Result<T, Diagnostics> {
    let mut found = match bind(options) {
        Ok(bound) => return Ok(bound),
        Err(found) => found,
    };
    if let Some(rest) = without_unknown_keys(options, &found)
        && let Err(more) = bind(&rest)
    {
        found.append(more);
    }
    Err(found)
}

fn without_unknown_keys(options: &Value, found: &Diagnostics) -> Option<Value> {
    let Node::Map(entries) = &options.node else { return None };
    if found.iter().any(|finding| finding.code != "E0103") {
        return None;
    }
    let unknown: Vec<usize> = found.iter().map(|finding| finding.span.range().start).collect();
    let kept: Vec<_> =
        entries.iter().filter(|entry| !unknown.contains(&entry.key.span.range().start)).cloned().collect();
    (kept.len() + unknown.len() == entries.len())
        .then(|| Value { node: Node::Map(kept), span: options.span.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::diagnostic::Diagnostic;
    use tidemill_spec::span::SourceFile;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Options {
        path: String,
    }

    fn codes(text: &str) -> Vec<&'static str> {
        let options = tidemill_spec::yaml::parse(&SourceFile::new("w.yaml", text)).unwrap();
        let result = bind(&options, |options| {
            let options: Options = options.deserialize_into()?;
            match options.path.as_str() {
                "there" => Ok(()),
                _ => Err(Diagnostic::error("E0609", "missing").into()),
            }
        });
        result.err().unwrap_or_default().iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn an_unknown_key_hides_nothing() {
        assert!(codes("path: there").is_empty());
        assert_eq!(codes("path: there\npaht: x"), ["E0103"]);
        assert_eq!(codes("path: gone\npaht: x\nb: {c: 1}"), ["E0103", "E0103", "E0609"]);
        assert_eq!(
            codes("paht: there"),
            ["E0103", "E0104"],
            "what follows from the misspelt key is not looked at"
        );
    }
}
