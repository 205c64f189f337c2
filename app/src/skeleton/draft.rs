//! The inputs and outputs of a manifest, with comments, before they are text.
use super::ports::Side;
use super::yaml;
use std::fmt::Write;

/// The part of a manifest that a family drafts.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Comments before the inputs.
    pub(super) remarks: Vec<String>,
    pub(super) inputs: Vec<Entry>,
    pub(super) constants: Vec<Constant>,
    pub(super) states: Vec<State>,
    pub(super) outputs: Vec<Entry>,
    /// Further sections, as text.
    pub(super) sections: String,
}

/// An input of a fixed value.
#[derive(Debug, Clone)]
pub(super) struct Constant {
    pub(super) name: String,
    pub(super) value: String,
    /// Reason of the value, if it is a guess.
    pub(super) guess: String,
}

/// A tensor that is kept from record to record.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) input: String,
    pub(super) output: String,
    pub(super) shape: Vec<Side>,
}

/// An input or output.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    name: String,
    columns: Columns,
    kind: &'static str,
    dtype: String,
    shape: Vec<Side>,
    notes: Vec<String>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Columns {
    One(String),
    Many(Vec<String>),
}

/// A step of an input or output.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    text: String,
    guess: Option<String>,
}

impl Step {
    /// A step that the file or one beside it decides.
    pub(super) fn known(text: impl Into<String>) -> Self {
        Self { text: text.into(), guess: None }
    }

    /// A step that the file does not show, with the reason or the alternative.
    pub(super) fn guessed(text: impl Into<String>, guess: impl Into<String>) -> Self {
        Self { text: text.into(), guess: Some(guess.into()) }
    }
}

impl Entry {
    /// An entry of this name, column and type.
    pub(super) fn new(
        name: &str,
        column: &str,
        kind: &'static str,
        dtype: impl Into<String>,
        shape: Vec<Side>,
    ) -> Self {
        let columns = Columns::One(column.to_owned());
        Self {
            name: name.to_owned(),
            columns,
            kind,
            dtype: dtype.into(),
            shape,
            notes: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// An entry that reads several columns.
    pub(super) fn features(
        name: &str,
        columns: Vec<String>,
        dtype: impl Into<String>,
        shape: Vec<Side>,
    ) -> Self {
        Self { columns: Columns::Many(columns), ..Self::new(name, "", "features", dtype, shape) }
    }

    /// Adds a comment.
    #[must_use]
    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a comment about a guess.
    #[must_use]
    pub(super) fn guess(self, guess: &str) -> Self {
        self.note(format!("guessed: {guess}"))
    }

    /// Adds a step.
    #[must_use]
    pub(super) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds steps.
    #[must_use]
    pub(super) fn steps(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps.extend(steps);
        self
    }

    fn write(&self, text: &mut String, key: &str) {
        let columns = match &self.columns {
            Columns::One(column) => format!("column: {}\n    type: {}", yaml::scalar(column), self.kind),
            Columns::Many(columns) => format!("type: {}\n    columns: {}", self.kind, yaml::list(columns)),
        };
        let _ = writeln!(
            text,
            "  - name: {}\n    {columns}\n    dtype: {}\n    shape: {}",
            yaml::scalar(&self.name),
            self.dtype,
            Side::list(&self.shape),
        );
        if self.shape.iter().any(|side| matches!(side, Side::Open(_))) {
            text.push_str("    # the file leaves sizes open: write those of your records\n");
        }
        for note in &self.notes {
            let _ = writeln!(text, "    # {note}");
        }
        if !self.steps.is_empty() {
            let _ = writeln!(text, "    {key}:");
        }
        for step in &self.steps {
            let guess = step.guess.as_ref().map(|guess| format!(" # guessed: {guess}"));
            let _ = writeln!(text, "      - {}{}", step.text, guess.unwrap_or_default());
        }
    }
}

impl Draft {
    /// Returns the text of the inputs, constants, states, outputs and further sections.
    pub(super) fn to_yaml(&self) -> String {
        let mut text = String::new();
        for remark in &self.remarks {
            let _ = writeln!(text, "# {remark}");
        }
        text.push_str(if self.inputs.is_empty() { "inputs: []\n" } else { "inputs:\n" });
        self.inputs.iter().for_each(|input| input.write(&mut text, "preprocess"));
        if !self.constants.is_empty() {
            text.push_str("constants:\n");
        }
        for Constant { name, value, guess } in &self.constants {
            let _ = writeln!(text, "  - {{name: {}, value: {value}}} # guessed: {guess}", yaml::scalar(name));
        }
        if !self.states.is_empty() {
            text.push_str("states: # guessed from names and shapes\n");
        }
        for State { input, output, shape } in &self.states {
            let (input, output) = (yaml::scalar(input), yaml::scalar(output));
            let shape = Side::list(shape);
            let _ = writeln!(text, "  - {{input: {input}, output: {output}, shape: {shape}}}");
        }
        text.push_str(if self.outputs.is_empty() { "outputs: []\n" } else { "outputs:\n" });
        self.outputs.iter().for_each(|output| output.write(&mut text, "postprocess"));
        text + &self.sections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_stand_where_they_belong() {
        let entry = Entry::new("x", "image", "image", "float32", vec![Side::Batch, Side::Size(3)])
            .guess("of one file")
            .step(Step::guessed("bgr: {}", "remove it"))
            .step(Step::known("normalize: {divide_by: 1}"));
        let draft = Draft { inputs: vec![entry], ..Draft::default() };
        assert_eq!(
            draft.to_yaml(),
            "\
inputs:
  - name: x
    column: image
    type: image
    dtype: float32
    shape: [batch, 3]
    # guessed: of one file
    preprocess:
      - bgr: {} # guessed: remove it
      - normalize: {divide_by: 1}
outputs: []
"
        );
    }
}
