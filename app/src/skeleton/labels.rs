//! Labels of classes: in the model file, in `config.json`, or in a list beside the model.
use super::subject::Subject;
use super::yaml;
use serde_json::Value;
use tidemill_inference::{alphabet, label_list};

/// Names of files with a label in each line, or a JSON list.
const FILES: [&str; 7] = [
    "labels.txt",
    "labels.json",
    "classes.txt",
    "class_names.txt",
    "imagenet_classes.txt",
    "synset.txt",
    "obj.names",
];

/// Labels of a number of classes, as a key of the steps that take them, with their origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Labels {
    /// Such as `labels: [red, blue]`.
    pub(super) key: String,
    pub(super) origin: Option<String>,
}

/// Returns the labels of this number of classes.
pub(super) fn of(subject: &Subject<'_>, classes: usize) -> Option<Labels> {
    of_metadata(subject, classes)
        .or_else(|| of_config(subject, classes))
        .or_else(|| of_file(subject, classes))
}

/// Labels in an entry of the file's metadata.
fn of_metadata(subject: &Subject<'_>, classes: usize) -> Option<Labels> {
    let fits = |text: &str| match label_list::listed(text) {
        Some(labels) => labels.is_ok_and(|labels| labels.len() == classes),
        None => classes > 1 && alphabet::lines(text).count() == classes,
    };
    let (key, _) = subject.facts.metadata.iter().find(|(_, text)| fits(text))?;
    let origin = (key != "names").then(|| "this metadata has as many labels as there are classes".to_owned());
    Some(Labels { key: format!("labels_metadata: {}", yaml::scalar(key)), origin })
}

/// Labels of `id2label` or `label_names` in `config.json`.
fn of_config(subject: &Subject<'_>, classes: usize) -> Option<Labels> {
    let all = names(&subject.beside.json("config.json")?)?;
    (all.len() == classes).then(|| Labels { key: format!("labels: {}", yaml::list(&all)), origin: None })
}

/// Returns the labels of a `config.json` in order.
pub(super) fn names(config: &Value) -> Option<Vec<String>> {
    if let Some(Value::Object(names)) = config.get("id2label") {
        let label = |at: usize| names.get(&at.to_string())?.as_str().map(str::to_owned);
        return (0..names.len()).map(label).collect();
    }
    let names = config.get("label_names")?.as_array()?;
    names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
}

fn of_file(subject: &Subject<'_>, classes: usize) -> Option<Labels> {
    FILES.iter().find_map(|name| {
        let (path, text) = subject.beside.text(name)?;
        let count = alphabet::in_file(&text, name).ok()?.len();
        let origin = format!("`{path}` has as many labels as there are classes");
        (count == classes)
            .then(|| Labels { key: format!("labels_file: {}", yaml::scalar(&path)), origin: Some(origin) })
    })
}

#[cfg(test)]
mod tests {
    use super::super::cases::Case;
    use super::*;

    #[test]
    fn labels_come_from_metadata_a_configuration_or_a_list() {
        let case = Case::new("x").metadata("names", "{0: 'a', 1: 'b'}").metadata("character", "0\n90\n180");
        case.with(|subject| {
            assert_eq!(of(subject, 2).unwrap().key, "labels_metadata: names");
            assert_eq!(of(subject, 3).unwrap().key, "labels_metadata: character");
            assert_eq!(of(subject, 4), None);
        });
        let config = r#"{"id2label": {"1": "dog", "0": "cat"}}"#;
        let case = Case::new("x").metadata("names", "['a', 'b']").metadata("size", "[64,\n64,\n1]");
        case.with(|subject| {
            assert_eq!(of(subject, 2).unwrap().key, "labels_metadata: names");
            assert_eq!(of(subject, 3), None, "a list of numbers");
        });
        let case = Case::new("x").beside("config.json", config).beside("classes.txt", "a\nb\nc\n");
        case.with(|subject| {
            assert_eq!(of(subject, 2).unwrap().key, "labels: [cat, dog]");
            assert_eq!(of(subject, 3).unwrap().key, "labels_file: classes.txt");
        });
    }
}
