//! Alphabets stored in the model file instead of the manifest.
use crate::error::{ModelError, Role};
use crate::facts::ModelFacts;
use tidemill_spec::manifest::{Manifest, Postprocess};

/// Most entries of the file's metadata in a message.
const NAMED: usize = 10;

/// Returns the manifest with the characters of its `ctc_decode` steps read from the file's metadata, one per line, before
/// those that the manifest adds.
///
/// # Errors
/// [`ModelError::Steps`] if the file has no such metadata, or a line is no single character.
pub(crate) fn filled_in(mut manifest: Manifest, facts: &ModelFacts) -> Result<Manifest, Vec<ModelError>> {
    let mut errors = Vec::new();
    for output in &mut manifest.outputs {
        let name = output.name.to_string();
        for step in &mut output.postprocess {
            let span = step.span.clone();
            let Postprocess::CtcDecode { alphabet, alphabet_metadata: Some(key), .. } = &mut step.value
            else {
                continue;
            };
            match characters(key, facts) {
                Ok(mut all) => {
                    all.push_str(alphabet);
                    *alphabet = all;
                }
                Err(message) => {
                    errors.push(ModelError::Steps { role: Role::Output, name: name.clone(), message, span })
                }
            }
        }
    }
    if errors.is_empty() { Ok(manifest) } else { Err(errors) }
}

fn characters(key: &str, facts: &ModelFacts) -> Result<String, String> {
    let Some(text) = facts.metadata.get(key) else {
        let names: Vec<String> = facts.metadata.keys().take(NAMED).map(|name| format!("`{name}`")).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(format!("the model file has no metadata `{key}`; it has: {there}"));
    };
    let mut all = String::new();
    for (index, line) in lines(text).enumerate() {
        let mut characters = line.chars();
        match (characters.next(), characters.next()) {
            (Some(one), None) => all.push(one),
            _ => {
                return Err(format!(
                    "line {} of the metadata `{key}` is `{line}`; each line must be one character",
                    index + 1
                ));
            }
        }
    }
    Ok(all)
}

/// The lines of a metadata value; a line break at its end starts no further line.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.strip_suffix('\n').unwrap_or(text).split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_character_a_line() {
        assert_eq!(lines("a\nb\r\n \n").collect::<Vec<_>>(), ["a", "b", " "]);
        assert_eq!(lines("\u{3000}\nb").collect::<Vec<_>>(), ["\u{3000}", "b"]);
    }
}
