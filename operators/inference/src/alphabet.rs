//! Alphabets and labels stored in the model file, or in a file beside it, instead of the manifest.
use crate::error::{ModelError, Role};
use crate::facts::ModelFacts;
use crate::label_list;
use std::path::Path;
use tidemill_spec::manifest::{Manifest, Postprocess};
use tidemill_spec::span::Located;

/// Largest file of labels, bytes.
const MOST_BYTES: u64 = 16 << 20;

/// Most entries of the file's metadata in a message.
const NAMED: usize = 10;

/// Returns the manifest with the characters of its `ctc_decode` steps read from the file's metadata, one per line, before
/// those that the manifest adds; and with the labels of other steps from the metadata or a file in `folder`.
///
/// # Errors
/// [`ModelError::Steps`] if the file has no such metadata, a line of an alphabet is no single character, or the file of labels
/// cannot be read.
pub(crate) fn filled_in(
    mut manifest: Manifest,
    facts: &ModelFacts,
    folder: &Path,
) -> Result<Manifest, Vec<ModelError>> {
    let mut errors = Vec::new();
    for output in &mut manifest.outputs {
        let name = output.name.to_string();
        for step in &mut output.postprocess {
            let span = step.span.clone();
            let filled = match &mut step.value {
                Postprocess::CtcDecode { alphabet_file: Some(file), classes, .. } => {
                    lines_of(file, folder).map(|all| *classes = all)
                }
                Postprocess::CtcDecode { alphabet, alphabet_metadata: Some(key), .. } => {
                    characters(key, facts).map(|all| alphabet.insert_str(0, &all))
                }
                Postprocess::Argmax { labels, labels_file, labels_metadata }
                | Postprocess::TopK { labels, labels_file, labels_metadata, .. }
                | Postprocess::Entities { labels, labels_file, labels_metadata, .. }
                | Postprocess::Join { labels, labels_file, labels_metadata, .. } => {
                    match (labels_file, labels_metadata) {
                        (None, None) => Ok(()),
                        (Some(file), None) if labels.is_empty() => {
                            lines_of(file, folder).map(|all| *labels = all)
                        }
                        (None, Some(key)) if labels.is_empty() => {
                            labels_of(key, facts).map(|all| *labels = all)
                        }
                        _ => Err("labels come from one place: `labels`, `labels_file` or `labels_metadata`"
                            .to_owned()),
                    }
                }
                _ => Ok(()),
            };
            if let Err(message) = filled {
                errors.push(ModelError::Steps { role: Role::Output, name: name.clone(), message, span });
            }
        }
    }
    if errors.is_empty() { Ok(manifest) } else { Err(errors) }
}

fn lines_of(file: &Located<String>, folder: &Path) -> Result<Vec<String>, String> {
    let path = folder.join(&file.value);
    let failed = |reason: String| format!("cannot read the labels in {}: {reason}", path.display());
    let size = std::fs::metadata(&path).map_err(|error| failed(error.to_string()))?.len();
    if size > MOST_BYTES {
        return Err(failed(format!("it has {size} bytes, at most {MOST_BYTES} are possible")));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
    in_file(&text, &file.value).map_err(failed)
}

/// Reads the labels in the text of a file: a JSON list or dictionary if its name ends with `.json`, otherwise lines.
///
/// # Errors
/// The reason why the JSON cannot be read.
pub fn in_file(text: &str, name: &str) -> Result<Vec<String>, String> {
    // Editors of Windows start files with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if Path::new(name).extension().is_none_or(|ending| ending != "json") {
        return Ok(lines(text).map(str::to_owned).collect());
    }
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        return Err(format!("it is no JSON list of texts: {error}"));
    }
    let read = label_list::listed(text).unwrap_or(Err(label_list::LabelsError::NoList));
    read.map_err(|error| error.to_string())
}

fn labels_of(key: &str, facts: &ModelFacts) -> Result<Vec<String>, String> {
    let text = metadata(key, facts)?;
    label_list::read(text).map_err(|error| format!("cannot read the labels in the metadata `{key}`: {error}"))
}

/// Parses a dictionary or list of labels in metadata; `None` if the text is neither, or has no label for a class.
pub fn dictionary(names: &str) -> Option<Vec<String>> {
    label_list::listed(names)?.ok()
}

fn metadata<'a>(key: &str, facts: &'a ModelFacts) -> Result<&'a str, String> {
    facts.metadata.get(key).map(String::as_str).ok_or_else(|| {
        let names: Vec<String> = facts.metadata.keys().take(NAMED).map(|name| format!("`{name}`")).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        format!("the model file has no metadata `{key}`; it has: {there}")
    })
}

fn characters(key: &str, facts: &ModelFacts) -> Result<String, String> {
    let text = metadata(key, facts)?;
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

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_label() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.txt", "\u{feff}cat\ndog\n"),
            ("a.json", "\u{feff}[\"cat\", \"dog\"]"),
            ("b.json", "{\"1\": \"dog\", \"0\": \"cat\"}"),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
            assert_eq!(lines_of(&Located::from(name.to_owned()), folder.path()).unwrap(), ["cat", "dog"]);
        }
        std::fs::write(folder.path().join("no.json"), "[1, 2]").unwrap();
        let error = lines_of(&Located::from("no.json".to_owned()), folder.path()).unwrap_err();
        assert!(error.ends_with("the label 0 is 1, which is no text"), "{error}");
    }
}
