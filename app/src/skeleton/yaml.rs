//! Names of models and files as YAML.
//!
//! `1234` and `no` are texts here, so they are quoted.

/// Formats a text for YAML: numbers, booleans and the like are quoted.
pub(super) fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
        && text.parse::<f64>().is_err()
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&text.to_ascii_lowercase().as_str());
    // JSON strings are valid YAML.
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// Formats texts as a list in one line.
pub(super) fn list<T: AsRef<str>>(texts: &[T]) -> String {
    let all: Vec<String> = texts.iter().map(|text| scalar(text.as_ref())).collect();
    format!("[{}]", all.join(", "))
}

/// Formats numbers as a list in one line.
pub(super) fn numbers(values: &[f64]) -> String {
    let all: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("[{}]", all.join(", "))
}

/// Converts to the form of ids, which starts with a letter.
pub(super) fn identifier(stem: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let id: String = stem.to_ascii_lowercase().chars().map(fits).collect();
    if id.starts_with(|c: char| c.is_ascii_lowercase()) { id } else { format!("model-{id}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_start_with_a_letter() {
        assert_eq!(identifier("ch_PP-OCRv4_rec.infer"), "ch_pp-ocrv4_rec-infer");
        assert_eq!(identifier("4x"), "model-4x");
    }

    #[test]
    fn names_that_yaml_takes_for_something_else_are_quoted() {
        for name in ["1234", "0", "no", "True", "null", "1e3", "a: b", "", "x#", "nan", "~", "-x"] {
            assert_eq!(scalar(name), format!("\"{name}\""));
        }
        assert_eq!(scalar("softmax_11.tmp_0"), "softmax_11.tmp_0");
        assert_eq!(list(&["a", "cat's eye", "no"]), r#"[a, "cat's eye", "no"]"#);
        assert_eq!(numbers(&[0.485, 1.0]), "[0.485, 1]");
    }
}
