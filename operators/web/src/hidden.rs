//! Values of options that may be secret: they stand in the environment or in a file, and not in the workflow.
//!
//! They are read where the source or sink is opened, and nothing shows them.
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use std::borrow::Cow;
use std::path::PathBuf;
use tidemill_http::{HeaderName, HeaderValue};
use tidemill_operators::kind::EndContext;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::secret::Secret;
use tidemill_spec::value::{Entry, Node, Value};

/// Headers whose values are secrets: they are not written into a workflow.
const ALWAYS_HIDDEN: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-api-key"];
/// Headers that the request has already.
const OWN: [&str; 10] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "idempotency-key",
    "sec-websocket-key",
    "sec-websocket-version",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Where a hidden value is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Place {
    /// Variable of the environment that has it.
    #[serde(default)]
    env: Option<String>,
    /// File with the value alone, relative to the workflow file; a line break at its end does not count.
    #[serde(default)]
    secret_file: Option<PathBuf>,
    /// Text before it, such as `Bearer` and a blank.
    #[serde(default)]
    prefix: String,
}

/// The form of a value in the schema.
pub(crate) struct Hidden;

impl JsonSchema for Hidden {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Hidden".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let place = generator.subschema_for::<Place>();
        json_schema!({"anyOf": [{"type": "string"}, place]})
    }
}

/// A value that was read.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) text: String,
    /// What of it is never shown.
    pub(crate) secret: Option<String>,
}

fn wrong(text: impl Into<String>, help: impl Into<String>) -> Diagnostic {
    Diagnostic::error("E0606", text).with_help(help)
}

/// Reads a value; `None` where the context does not open the end, and the value is hidden.
pub(crate) fn read(
    context: &EndContext<'_>,
    name: &str,
    value: &Value,
) -> Result<Option<Found>, Diagnostics> {
    if let Node::Text(text) = &value.node {
        return Ok(Some(Found { text: text.value.clone(), secret: None }));
    }
    let Place { env, secret_file, prefix } = value.deserialize_into()?;
    let text = match (env, secret_file) {
        (Some(variable), None) if context.opens() => std::env::var(&variable).map_err(|_| {
            wrong(
                format!("the variable `{variable}` of the environment is not set"),
                "set it where this runs, or write `secret_file`",
            )
            .at(value.span.clone())
        })?,
        (None, Some(file)) if context.opens() => {
            Secret::from_file(file).reveal(context.base).map_err(|error| {
                Diagnostic::error("E0609", format!("`{name}`: {error}"))
                    .at(value.span.clone())
                    .with_help("write the path of a file with the value alone, relative to the workflow file")
            })?
        }
        (Some(_), None) | (None, Some(_)) => return Ok(None),
        _ => {
            let text = format!("`{name}` needs either `env` or `secret_file`");
            let help = format!("write `{name}: {{env: VARIABLE}}` or `{name}: {{secret_file: PATH}}`");
            return Err(wrong(text, help).at(value.span.clone()).into());
        }
    };
    Ok(Some(Found { text: prefix + &text, secret: Some(text) }))
}

/// Headers, with the texts among them that are never shown.
#[derive(Clone, Default)]
pub(crate) struct Headers {
    pub(crate) all: Vec<(HeaderName, HeaderValue)>,
    pub(crate) secrets: Vec<String>,
}

impl Headers {
    /// Reads the option `headers`.
    pub(crate) fn of(context: &EndContext<'_>, written: Option<&Value>, errors: &mut Diagnostics) -> Self {
        let mut headers = Self::default();
        let Some(written) = written else { return headers };
        let Node::Map(entries) = &written.node else {
            errors.push(
                wrong(
                    format!("`headers` is {}, expected a map", written.kind()),
                    "write `headers: {X-Name: value}`",
                )
                .at(written.span.clone()),
            );
            return headers;
        };
        for entry in entries {
            if let Err(found) = headers.add(context, entry) {
                errors.append(found);
            }
        }
        headers
    }

    fn add(&mut self, context: &EndContext<'_>, entry: &Entry) -> Result<(), Diagnostics> {
        let key = &entry.key;
        let at = |error: Diagnostic| Diagnostics::from(error.at(key.span.clone()));
        let name = HeaderName::from_bytes(key.value.as_bytes()).map_err(|_| {
            at(wrong(format!("`{key}` is not the name of a header"), "write a name such as `X-Line`"))
        })?;
        if OWN.contains(&name.as_str()) {
            return Err(at(wrong(format!("the header `{key}` has its value already"), "leave it out")));
        }
        let found = read(context, &key.value, &entry.value)?;
        let Some(Found { text, secret }) = found else { return Ok(()) };
        if secret.is_none() && ALWAYS_HIDDEN.contains(&name.as_str()) {
            // The line is not shown: it may have the secret.
            let text = format!("the value of the header `{key}` stands in the workflow");
            let help = format!("write `{key}: {{env: VARIABLE}}` or `{key}: {{secret_file: PATH}}`");
            return Err(wrong(text, help).into());
        }
        let mut value = HeaderValue::from_str(&text).map_err(|_| {
            at(wrong(
                format!("the value of the header `{key}` has characters that no header has"),
                "check it",
            ))
        })?;
        value.set_sensitive(secret.is_some());
        self.secrets.extend(secret);
        self.all.push((name, value));
        Ok(())
    }
}

/// Leaves out a text of others that has a secret.
pub(crate) fn redacted(text: String, secrets: &[String]) -> String {
    let is_in = |secret: &String| {
        let mut parts = secret.split_whitespace().filter(|part| part.len() > 6);
        (!secret.is_empty() && text.contains(secret.as_str())) || parts.any(|part| text.contains(part))
    };
    match secrets.iter().any(is_in) {
        true => "(the text is left out: it has a secret)".to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_operators::kind::Step;
    use tidemill_spec::{span::SourceFile, yaml};

    fn headers(yaml: &str, step: Step) -> Result<Headers, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hunter22\n").unwrap();
        let id = "out".into();
        let context = EndContext { step, ..EndContext::new(&id, folder.path()) };
        let value = yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
        let mut errors = Diagnostics::new();
        let headers = Headers::of(&context, Some(&value), &mut errors);
        errors.into_result(headers).map_err(|errors| errors.to_string())
    }

    #[test]
    fn secrets_come_from_files_and_are_sensitive() {
        let yaml = "Authorization: {secret_file: token, prefix: 'Bearer '}\nX-Line: '4'";
        let found = headers(yaml, Step::Open).unwrap();
        assert_eq!(found.all[0].1, "Bearer hunter22");
        assert!(found.all[0].1.is_sensitive() && !found.all[1].1.is_sensitive());
        assert!(!format!("{:?}", found.all).contains("hunter22"));
        assert_eq!(
            redacted("it was hunter22!".into(), &found.secrets),
            "(the text is left out: it has a secret)"
        );
        assert_eq!(redacted("Bearer of bad news".into(), &found.secrets), "Bearer of bad news");
        assert_eq!(redacted("no".into(), &found.secrets), "no");
        assert_eq!(headers(yaml, Step::Check).unwrap().all.len(), 1, "nothing is read to check");
    }

    #[test]
    fn wrong_headers_are_refused_and_their_secrets_not_shown() {
        for (yaml, message) in [
            (
                "Authorization: Bearer hunter22",
                "the value of the header `Authorization` stands in the workflow",
            ),
            ("X-A: {}", "`X-A` needs either `env` or `secret_file`"),
            (
                "X-A: {env: TIDEMILL_TEST_UNSET}",
                "the variable `TIDEMILL_TEST_UNSET` of the environment is not set",
            ),
            ("X-A: {secret_file: none}", "cannot read the secret file"),
            ("'x a': b", "`x a` is not the name of a header"),
            ("Host: b", "the header `Host` has its value already"),
            ("X-A: \"a\\nb\"", "has characters that no header has"),
            ("[a]", "`headers` is a list, expected a map"),
        ] {
            let error = headers(yaml, Step::Open).err().expect(yaml);
            assert!(error.contains(message), "{yaml}: {error}");
            assert!(!error.contains("hunter22"), "{error}");
        }
    }
}
