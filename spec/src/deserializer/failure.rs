//! Errors of converting a tree, in the words of the file instead of those of Rust.
use super::NodeId;
use crate::diagnostic::suggestion;
use crate::span::Span;
use crate::units::shown;
use serde::de;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Most possible values to list in addition to the nearest one.
const FEW: usize = 8;

/// An error at one node.
#[derive(Debug)]
pub(super) struct Failure(Box<Details>);

/// Boxed, because results of serde carry it through every level.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) help: Option<String>,
    /// The missing key, if that is the failure.
    pub(super) missing: Option<&'static str>,
    /// The expected type.
    expected: Option<String>,
    /// The innermost failing node.
    pub(super) place: Option<(NodeId, Span)>,
}

impl Deref for Failure {
    type Target = Details;
    fn deref(&self) -> &Details {
        &self.0
    }
}

impl DerefMut for Failure {
    fn deref_mut(&mut self) -> &mut Details {
        &mut self.0
    }
}

impl Failure {
    pub(super) fn new(code: &'static str, message: String, help: Option<String>) -> Self {
        Self(Box::new(Details { code, message, help, missing: None, expected: None, place: None }))
    }

    fn mismatch(expected: String, found: &str, help: String) -> Self {
        let mut failure = Self::new("E0105", format!("expected {expected}, found {found}"), Some(help));
        failure.expected = Some(expected);
        failure
    }

    /// A whole number out of the range of the type, by serde's name.
    fn too_large(unexpected: de::Unexpected<'_>, expected: &str, found: &str) -> Option<Self> {
        let (least, most) = whole_numbers(expected)?;
        let beyond = match unexpected {
            de::Unexpected::Unsigned(number) => i128::from(number) > most,
            de::Unexpected::Signed(number) => least < 0 && i128::from(number) < least,
            // The parser gives whole numbers of more than 64 bits as floats.
            de::Unexpected::Float(number) => {
                number.fract() == 0.0 && (number > most as f64 || least < 0 && number < least as f64)
            }
            _ => false,
        };
        let range = format!("a whole number from {least} to {most}");
        beyond.then(|| Self::mismatch(range.clone(), found, format!("write {range} here")))
    }

    /// Sets the place unless an inner node has set it.
    pub(super) fn at(mut self, node: NodeId, span: &Span) -> Self {
        self.place.get_or_insert_with(|| (node, span.clone()));
        self
    }
}

impl Failure {
    /// Removes the value from the message: a value from the environment may be a credential.
    pub(super) fn without_value(mut self, written: &str) -> Self {
        self.message = match &self.expected {
            Some(expected) => format!("expected {expected}, but `{written}` has another value"),
            None => format!("the value of `{written}` does not fit here"),
        };
        self.help = Some("check the value of the variable".to_string());
        self
    }
}

impl Failure {
    /// Shows the number as the file writes it: a float has lost digits and zeros.
    pub(super) fn with_number(mut self, written: Option<&str>) -> Self {
        if let (Some(expected), Some(written)) = (&self.expected, written) {
            self.message = format!("expected {expected}, found the number `{}`", shown(written));
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Returns the text of an error that types of this crate raise through serde: code, message and help in one string.
///
/// ```
/// let text = tidemill_spec::deserializer::coded("E0106", "`40` has no unit", "write `40/s`");
/// assert_eq!(text, "[E0106] `40` has no unit\nhelp: write `40/s`");
/// ```
pub fn coded(code: &'static str, message: impl fmt::Display, help: impl fmt::Display) -> String {
    format!("[{code}] {message}\nhelp: {help}")
}

/// Codes that [`coded`] texts may carry.
const CODES: &[&str] = &[
    "E0105", "E0106", "E0107", "E0115", "E0116", "E0204", "E0215", "E0217", "E0317", "E0501", "E0502",
    "E0503", "E0504",
];

impl de::Error for Failure {
    fn custom<T: fmt::Display>(text: T) -> Self {
        let text = text.to_string();
        let (code, rest) = match CODES.iter().find(|code| text.starts_with(&format!("[{code}] "))) {
            Some(code) => (*code, text[code.len() + 3..].to_string()),
            None => ("E0105", text),
        };
        match rest.split_once("\nhelp: ") {
            Some((message, help)) => Failure::new(code, message.to_string(), Some(help.to_string())),
            None => Failure::new(code, rest, None),
        }
    }

    fn invalid_type(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = in_words(unexpected);
        let expected = expected.to_string();
        if let Some(failure) = Failure::too_large(unexpected, &expected, &found) {
            return failure;
        }
        let help = match unexpected {
            de::Unexpected::Signed(_)
            | de::Unexpected::Unsigned(_)
            | de::Unexpected::Float(_)
            | de::Unexpected::Bool(_)
                if expected.contains("string") =>
            {
                "put it in quotes if text is meant".to_string()
            }
            de::Unexpected::Unit if expected.contains("string") => {
                "write text here, in quotes if it is `null` or `~`".to_string()
            }
            _ => format!("write {} here", plainly(&expected)),
        };
        Failure::mismatch(plainly(&expected), &found, help)
    }

    fn invalid_value(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = in_words(unexpected);
        if let Some(failure) = Failure::too_large(unexpected, &expected.to_string(), &found) {
            return failure;
        }
        let expected = plainly(&expected.to_string());
        let help = format!("write {expected} here");
        Failure::mismatch(expected, &found, help)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let mut help = suggestion(variant, expected.iter().copied(), "possible values");
        // The nearest word may be unrelated to the intended one.
        if help.starts_with("did you mean") && expected.len() <= FEW {
            let all: Vec<String> = expected.iter().map(|value| format!("`{value}`")).collect();
            help = format!("{help} possible values: {}", all.join(", "));
        }
        Failure::new("E0114", format!("unknown value `{variant}`"), Some(help))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let help = suggestion(field, expected.iter().copied(), "possible keys");
        Failure::new("E0103", format!("unknown key `{field}`"), Some(help))
    }

    fn missing_field(field: &'static str) -> Self {
        let mut failure =
            Failure::new("E0104", format!("missing key `{field}`"), Some(format!("add `{field}:`")));
        failure.missing = Some(field);
        failure
    }
}

fn in_words(unexpected: de::Unexpected<'_>) -> String {
    match unexpected {
        de::Unexpected::Unit => "nothing".to_string(),
        de::Unexpected::Map => "a map".to_string(),
        de::Unexpected::Seq => "a list".to_string(),
        de::Unexpected::Str(text) => format!("the text `{text}`"),
        de::Unexpected::Signed(n) => format!("the number `{n}`"),
        de::Unexpected::Unsigned(n) => format!("the number `{n}`"),
        de::Unexpected::Float(n) => format!("the number `{n}`"),
        de::Unexpected::Bool(b) => format!("`{b}`"),
        other => other.to_string(),
    }
}

/// The range of a type of whole numbers, limited to the signed 64 bits that files can write.
fn whole_numbers(expected: &str) -> Option<(i128, i128)> {
    let most = i128::from(i64::MAX);
    Some(match expected {
        "u8" => (0, i128::from(u8::MAX)),
        "u16" => (0, i128::from(u16::MAX)),
        "u32" => (0, i128::from(u32::MAX)),
        "u64" | "usize" => (0, most),
        "i32" => (i128::from(i32::MIN), i128::from(i32::MAX)),
        "i64" => (i128::from(i64::MIN), most),
        _ => return None,
    })
}

/// Translates serde's words for Rust types into those of YAML.
fn plainly(expected: &str) -> String {
    match expected {
        "a string" | "string" => "text".to_string(),
        "a sequence" => "a list".to_string(),
        "a boolean" => "`true` or `false`".to_string(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative".to_string(),
        "i8" | "i16" | "i32" | "i64" => "a whole number".to_string(),
        "f32" | "f64" => "a number".to_string(),
        other if other.starts_with("struct ") => "a map".to_string(),
        other => other.to_string(),
    }
}
