//! Lists of labels in a text: a line for each, or a list or dictionary as Python or JSON writes it.
//!
//! ```
//! use tidemill_inference::label_list;
//! assert_eq!(label_list::read("red\ngreen\n").unwrap(), ["red", "green"]);
//! assert_eq!(label_list::read(r"{1: 'green', 0: 'r\xe9d'}").unwrap(), ["réd", "green"]);
//! assert_eq!(label_list::read(r#"{"0": "red"}"#).unwrap(), ["red"]);
//! assert_eq!(label_list::read("['red', 'green']").unwrap(), ["red", "green"]);
//! assert!(label_list::read("{0: 'red', 2: 'green'}").is_err());
//! ```
use crate::alphabet::lines;
use serde_json::Value;
use std::collections::BTreeMap;

/// Error of a text that looks like a list of labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// It starts as a list or dictionary, and is none.
    #[error("it starts as a list or dictionary of texts, but cannot be read after {0:?}")]
    Unreadable(String),
    /// It is one text or number.
    #[error("it is neither a list nor a dictionary of texts")]
    NoList,
    /// A label is no text.
    #[error("the label {0} is {1}, which is no text")]
    NoText(usize, String),
    /// A key is no number.
    #[error("the key {0:?} is no number of a class")]
    NoNumber(String),
    /// A key is missing.
    #[error("it has {labels} labels, but none for class {missing}")]
    Gap {
        /// Number of labels.
        labels: usize,
        /// The first class without one.
        missing: usize,
    },
}

/// Reads the labels in a text, in the order of classes.
///
/// # Errors
/// [`LabelsError`] if it is a list or dictionary of something else, or has no label for a class.
pub fn read(text: &str) -> Result<Vec<String>, LabelsError> {
    listed(text).unwrap_or_else(|| Ok(lines(text).map(str::to_owned).collect()))
}

/// Reads the labels of a list or dictionary; `None` if the text is neither. See [`read`].
///
/// # Errors
/// [`LabelsError`] as [`read`].
pub fn listed(text: &str) -> Option<Result<Vec<String>, LabelsError>> {
    let text = text.trim();
    let is_list = |open, close| text.starts_with(open) && text.ends_with(close);
    if !(is_list('{', '}') || is_list('[', ']')) {
        return None;
    }
    match serde_json::from_str(text) {
        Ok(Value::Array(values)) => return Some(values.into_iter().enumerate().map(json_text).collect()),
        Ok(Value::Object(values)) => return Some(of_json(values)),
        _ => {}
    }
    match python(text) {
        Ok(labels) => Some(labels),
        // Lines such as `[PAD]` are labels themselves.
        Err(_) if text.contains('\n') => None,
        Err(rest) => {
            let read = &text[..text.len() - rest];
            let from = read.char_indices().rev().nth(19).map_or(0, |(at, _)| at);
            Some(Err(LabelsError::Unreadable(read[from..].to_owned())))
        }
    }
}

fn json_text((class, value): (usize, Value)) -> Result<String, LabelsError> {
    match value {
        Value::String(label) => Ok(label),
        other => Err(LabelsError::NoText(class, other.to_string())),
    }
}

fn of_json(values: serde_json::Map<String, Value>) -> Result<Vec<String>, LabelsError> {
    let pairs = values.into_iter().map(|(key, value)| {
        let class = number(&key)?;
        Ok((class, json_text((class, value))?))
    });
    ordered(pairs.collect::<Result<_, _>>()?)
}

fn number(key: &str) -> Result<usize, LabelsError> {
    key.trim().parse().map_err(|_| LabelsError::NoNumber(key.to_owned()))
}

/// Labels by their classes, which count from 0.
fn ordered(labels: BTreeMap<usize, String>) -> Result<Vec<String>, LabelsError> {
    let gap = labels.keys().enumerate().find(|(at, class)| at != *class);
    match gap {
        Some((missing, _)) => Err(LabelsError::Gap { labels: labels.len(), missing }),
        None => Ok(labels.into_values().collect()),
    }
}

/// Reads a list or dictionary as Python prints it. An error is the number of bytes that are left where it cannot be read.
fn python(text: &str) -> Result<Result<Vec<String>, LabelsError>, usize> {
    let mut rest = Rest(&text[1..text.len() - 1]);
    let is_list = text.starts_with('[');
    let mut all = Vec::new();
    while !rest.skip_space().0.is_empty() {
        // The closing bracket is not part of the rest.
        let left = |rest: &Rest<'_>| rest.0.len() + 1;
        let key = match is_list {
            true => all.len().to_string(),
            false => {
                let key = rest.key().ok_or_else(|| left(&rest))?;
                rest.skip_space().mark(':').ok_or_else(|| left(&rest))?;
                key
            }
        };
        rest.skip_space();
        let label = rest.text().ok_or_else(|| left(&rest))?;
        all.push((key, label));
        if rest.skip_space().mark(',').is_none() && !rest.0.is_empty() {
            return Err(left(&rest));
        }
    }
    let pairs = all.into_iter().map(|(key, label)| Ok((number(&key)?, label)));
    Ok(pairs.collect::<Result<_, _>>().and_then(ordered))
}

/// What is still to be read.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    fn skip_space(&mut self) -> &mut Self {
        self.0 = self.0.trim_start();
        self
    }

    fn mark(&mut self, mark: char) -> Option<()> {
        self.0 = self.0.strip_prefix(mark)?;
        Some(())
    }

    /// A number or text before a colon.
    fn key(&mut self) -> Option<String> {
        if self.0.starts_with(['"', '\'']) {
            return self.text();
        }
        let (key, _) = self.0.split_once(':').filter(|(key, _)| !key.contains(['"', '\'', '\n']))?;
        self.0 = &self.0[key.len()..];
        Some(key.to_owned())
    }

    /// A text in quotes. Nothing is taken if it is none.
    fn text(&mut self) -> Option<String> {
        let mut characters = self.0.chars();
        let quote = characters.next().filter(|quote| matches!(quote, '"' | '\''))?;
        let mut text = String::new();
        loop {
            match characters.next()? {
                '\\' => escaped(&mut characters, &mut text)?,
                c if c == quote => break,
                c => text.push(c),
            }
        }
        self.0 = characters.as_str();
        Some(text)
    }
}

/// Appends the character after a backslash, by the rules of Python.
fn escaped(characters: &mut std::str::Chars<'_>, text: &mut String) -> Option<()> {
    let digits = match characters.next()? {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        other => {
            match other {
                'a' => text.push('\u{7}'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                'n' => text.push('\n'),
                'r' => text.push('\r'),
                't' => text.push('\t'),
                'v' => text.push('\u{b}'),
                '0' => text.push('\0'),
                '\\' | '\'' | '"' => text.push(other),
                // Python keeps the backslash before other characters.
                _ => text.extend(['\\', other]),
            }
            return Some(());
        }
    };
    let code = characters.as_str().get(..digits)?;
    let code = u32::from_str_radix(code, 16).ok()?;
    characters.nth(digits - 1)?;
    // Half of a surrogate pair is no character.
    text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_read_by_their_keys() {
        let labels = read("{0: 'red', 1: \"cat's eye\", 2: 'no'}").unwrap();
        assert_eq!(labels, ["red", "cat's eye", "no"]);
        assert_eq!(read("{2: 'c', 0: 'a', '1': 'b',}").unwrap(), ["a", "b", "c"]);
        assert_eq!(read("{\"1\": \"b\",\n \"0\": \"a\"}").unwrap(), ["a", "b"]);
        assert_eq!(read("{}").unwrap(), Vec::<String>::new());
        assert_eq!(read("{1: 'x'}").unwrap_err().to_string(), "it has 1 labels, but none for class 0");
        assert_eq!(read("{\"0\": \"a\", \"5\": \"x\"}"), Err(LabelsError::Gap { labels: 2, missing: 1 }));
        assert_eq!(read("{'cat': '0'}").unwrap_err().to_string(), "the key \"cat\" is no number of a class");
        assert_eq!(read("{\"0\": 3}").unwrap_err().to_string(), "the label 0 is 3, which is no text");
    }

    #[test]
    fn lists_are_read_in_their_order() {
        assert_eq!(read("['a', \"b\"]").unwrap(), ["a", "b"]);
        assert_eq!(read("[\"a\", \"b\"]").unwrap(), ["a", "b"]);
        assert_eq!(
            read("['a' 'b']").unwrap_err().to_string(),
            "it starts as a list or dictionary of texts, but cannot be read after \"['a' \""
        );
        assert_eq!(read("['ä', b]"), Err(LabelsError::Unreadable("['ä', ".to_owned())));
        assert!(matches!(read("{0: 'a"), Ok(lines) if lines == ["{0: 'a"]), "no end: a line");
    }

    #[test]
    fn python_escapes_are_characters() {
        let text =
            r"{0: 'non\xa0break', 1: 'tab\there', 2: '\u3042\U0001f600', 3: 'it\'s \\ \d', 4: '\ud83d'}";
        let expected = ["non\u{a0}break", "tab\there", "あ😀", "it's \\ \\d", "\u{fffd}"];
        assert_eq!(read(text).unwrap(), expected);
        assert!(matches!(read(r"{0: '\xé'}"), Err(LabelsError::Unreadable(_))));
    }

    #[test]
    fn lines_in_brackets_are_lines() {
        assert_eq!(read("[PAD]\n[UNK]\n").unwrap(), ["[PAD]", "[UNK]"]);
        assert_eq!(read("{\nb\n}").unwrap(), ["{", "b", "}"]);
        assert_eq!(read("[x").unwrap(), ["[x"]);
    }
}
