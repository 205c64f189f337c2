//! Credentials: never printed, never logged.
//!
//! Written as `{secret_file: path}`, or as a text with a variable, `${PASSWORD}`.
//!
//! ```
//! use tidemill_spec::{secret::Secret, span::SourceFile, yaml};
//! let value = yaml::parse(&SourceFile::new("a.yaml", "hunter2")).unwrap();
//! let secret: Secret = value.deserialize_into().unwrap();
//! assert_eq!(format!("{secret} {secret:?}"), "[redacted] [redacted]");
//! assert_eq!(secret.reveal(std::path::Path::new(".")).unwrap(), "hunter2");
//! ```
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest secret file, in bytes.
const LARGEST: u64 = 64 << 10;

/// A credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Kept);

#[derive(Clone, PartialEq, Eq)]
enum Kept {
    Text(String),
    File(PathBuf),
}

/// Why a secret is not available.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret file `{path}`: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The file is larger than any credential (64 KiB).
    #[error("the secret file `{path}` is larger than 64 KiB")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

impl Secret {
    /// Creates a secret from this text.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(Kept::Text(text.into()))
    }

    /// Creates a secret from the content of a file.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self(Kept::File(path.into()))
    }

    /// Returns the file that has it; none: it is a text.
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            Kept::Text(_) => None,
            Kept::File(path) => Some(path),
        }
    }

    /// Returns the credential itself, without a line break at the end; a relative file is looked up in `directory`.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8 or is larger than 64 KiB.
    pub fn reveal(&self, directory: &Path) -> Result<String, SecretError> {
        let path = match &self.0 {
            Kept::Text(text) => return Ok(text.clone()),
            Kept::File(path) => directory.join(path),
        };
        let mut text = String::new();
        let read =
            std::fs::File::open(&path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
        match read {
            Err(cause) => Err(SecretError::Unreadable { path, cause }),
            Ok(size) if size as u64 > LARGEST => Err(SecretError::TooLarge { path }),
            Ok(_) => Ok(text.trim_end_matches(['\r', '\n']).to_string()),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kept::Text(_) => f.write_str("[redacted]"),
            Kept::File(path) => write!(f, "[secret in {}]", path.display()),
        }
    }
}

/// The path of a secret file is kept; a text is redacted.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Kept::Text(_) => serializer.serialize_str("[redacted]"),
            Kept::File(path) => serializer.collect_map([("secret_file", path)]),
        }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SecretVisitor;
        impl<'de> Visitor<'de> for SecretVisitor {
            type Value = Secret;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`{secret_file: path}` or a text such as `${PASSWORD}`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Secret, E> {
                Ok(Secret::from_text(text))
            }
            // Numbers get their own error: the standard one would show the value.
            fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Secret, E> {
                Err(E::custom(quotes()))
            }
            fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Secret, E> {
                Err(E::custom(quotes()))
            }
            fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Secret, E> {
                Err(E::custom(quotes()))
            }
            fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Secret, E> {
                Err(E::custom(quotes()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Secret, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct InFile {
                    secret_file: PathBuf,
                }
                let file = InFile::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Secret::from_file(file.secret_file))
            }
        }
        deserializer.deserialize_any(SecretVisitor)
    }
}

fn quotes() -> String {
    crate::deserializer::coded("E0116", "this secret is not text", "put it in a file: `{secret_file: path}`")
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A credential: in a file, or a text with a variable.",
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"secret_file": {"type": "string"}},
                    "required": ["secret_file"],
                    "additionalProperties": false
                }
            ]
        })
    }
}
