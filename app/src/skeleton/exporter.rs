//! Size, classes and task from an exporter's metadata: `imgsz`, `names`, `task` and `stride` of Ultralytics.
use super::yaml;
use tidemill_inference::alphabet;
use tidemill_inference::facts::ModelFacts;

/// The metadata.
#[derive(Debug, Default)]
pub(super) struct Exporter {
    /// Height and width of pictures.
    pub(super) size: Option<(usize, usize)>,
    /// The classes, in order.
    pub(super) labels: Vec<String>,
    pub(super) task: Option<String>,
    /// Whether the file chooses the boxes itself.
    pub(super) is_final: bool,
}

impl Exporter {
    pub(super) fn of(facts: &ModelFacts) -> Self {
        let sizes = facts.metadata.get("imgsz").map(String::as_str).unwrap_or_default();
        let sizes: Vec<usize> =
            sizes.split(|c: char| !c.is_ascii_digit()).filter_map(|size| size.parse().ok()).collect();
        let size = match sizes.as_slice() {
            [side] => Some((*side, *side)),
            [height, width] => Some((*height, *width)),
            _ => None,
        };
        let labels =
            facts.metadata.get("names").and_then(|names| alphabet::dictionary(names)).unwrap_or_default();
        let is_true = |text: &String| text.eq_ignore_ascii_case("true");
        Self {
            size: size.filter(|(height, width)| *height > 0 && *width > 0),
            labels,
            task: facts.metadata.get("task").cloned(),
            is_final: facts.metadata.get("end2end").is_some_and(is_true)
                || facts.metadata.get("args").is_some_and(|args| args.contains("'nms': True")),
        }
    }

    /// Whether the metadata is of Ultralytics, for this task.
    pub(super) fn is_for(&self, task: &str) -> bool {
        self.task.as_deref() == Some(task)
    }

    /// Returns the task and the classes as comments, for steps of an output to be written by hand.
    pub(super) fn comments(&self) -> Vec<String> {
        let task =
            self.task.as_ref().map(|task| format!("the file says: its task is {}", yaml::scalar(task)));
        let labels = (!self.labels.is_empty())
            .then(|| format!("the file says: its classes in order are {}", yaml::list(&self.labels)));
        task.into_iter().chain(labels).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::Case;
    use super::*;

    #[test]
    fn metadata_of_ultralytics_is_read() {
        let facts = Case::new("yolo").metadata("imgsz", "[320, 640]").metadata("task", "detect").facts();
        let exporter = Exporter::of(&facts);
        assert_eq!(exporter.size, Some((320, 640)));
        assert!(exporter.is_for("detect") && exporter.labels.is_empty());
        let facts = Case::new("yolo").metadata("names", "{0: 'red', 1: \"cat's eye\"}").facts();
        assert_eq!(
            Exporter::of(&facts).comments(),
            [r#"the file says: its classes in order are [red, "cat's eye"]"#]
        );
    }
}
