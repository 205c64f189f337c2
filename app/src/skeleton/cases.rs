//! Facts of models for the tests, made by hand.
use super::beside::Beside;
use super::exporter::Exporter;
use super::subject::{Subject, Tried};
use std::path::Path;
use tempfile::TempDir;
use tidemill_inference::facts::{Dimension, ModelFacts, Port, PortElement};
use tidemill_spec::types::ElementType;

/// A model with the files beside it.
pub(super) struct Case {
    facts: ModelFacts,
    folder: TempDir,
    tried: Option<Tried>,
}

/// A port of this type, such as `float32 [batch, 3, ?]`.
pub(super) fn port(name: &str, text: &str) -> Port {
    let (element, shape) = text.split_once(' ').unwrap();
    let shape = shape.trim_matches(['[', ']']);
    let sides = shape.split(", ").filter(|side| !side.is_empty());
    let side = |side: &str| match side.parse() {
        Ok(size) => Dimension::Fixed(size),
        Err(_) if side == "?" => Dimension::Free(String::new()),
        Err(_) => Dimension::Free(side.to_owned()),
    };
    let element = if element == "string" { "text" } else { element };
    Port {
        name: name.to_owned(),
        element: PortElement::Known(ElementType::named(element).unwrap()),
        shape: Some(sides.map(side).collect()),
    }
}

impl Case {
    /// A model of this name without ports.
    pub(super) fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("model");
        std::fs::create_dir(&inner).unwrap();
        let facts = ModelFacts::of_bytes(&inner.join(format!("{name}.onnx")), b"");
        Self { facts, folder, tried: None }
    }

    pub(super) fn input(mut self, name: &str, text: &str) -> Self {
        self.facts.inputs.push(port(name, text));
        self
    }

    pub(super) fn output(mut self, name: &str, text: &str) -> Self {
        self.facts.outputs.push(port(name, text));
        self
    }

    /// Adds an output of dictionaries with so many classes.
    pub(super) fn map(mut self, name: &str, classes: usize) -> Self {
        self.facts.maps.push(name.to_owned());
        self.output(name, &format!("float32 [?, {classes}]"))
    }

    pub(super) fn metadata(mut self, key: &str, text: &str) -> Self {
        self.facts.metadata.insert(key.to_owned(), text.to_owned());
        self
    }

    pub(super) fn operator(mut self, name: &str) -> Self {
        self.facts.operators.insert(name.to_owned(), 1);
        self
    }

    pub(super) fn made_by(mut self, output: &str, operator: &str) -> Self {
        self.facts.makers.insert(output.to_owned(), operator.to_owned());
        self
    }

    pub(super) fn classes(mut self, labels: &[&str]) -> Self {
        self.facts.class_labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self
    }

    /// Writes a file beside the model.
    pub(super) fn beside(self, name: &str, text: &str) -> Self {
        let file = self.folder.path().join("model").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        self
    }

    /// Sets the shape of an output that a trial gives.
    pub(super) fn shape(mut self, output: &str, shape: &[usize]) -> Self {
        self.tried.get_or_insert_default().shapes.insert(output.to_owned(), shape.to_vec());
        self
    }

    /// Says that the vectors of an output were probabilities in a trial.
    pub(super) fn gives_probabilities(mut self, output: &str) -> Self {
        self.tried.get_or_insert_default().probabilities.insert(output.to_owned());
        self
    }

    pub(super) fn facts(self) -> ModelFacts {
        self.facts
    }

    fn folder(&self) -> &Path {
        self.facts.path.parent().unwrap()
    }

    /// Calls a test with the model.
    pub(super) fn with<T>(&self, test: impl FnOnce(&Subject<'_>) -> T) -> T {
        let (beside, exporter) = (Beside::of(self.folder()), Exporter::of(&self.facts));
        let tried = self.tried.clone();
        let trial = move |_: &[(ElementType, Vec<usize>)]| tried.clone();
        test(&Subject::new(&self.facts, &beside, &exporter, &trial))
    }

    /// Returns the draft, which is a manifest but for sizes to write, and describes all inputs of the file.
    pub(super) fn draft(&self) -> String {
        let tried = self.tried.clone();
        let text = super::text(&self.facts, &Beside::of(self.folder()), &move |_| tried.clone());
        super::tests::check(&text, &self.facts);
        text
    }
}

/// The draft from the backends on.
pub(super) fn body(text: &str) -> &str {
    text.find("backends:").map_or("", |at| &text[at..])
}
