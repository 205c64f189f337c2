//! Checks of a manifest beyond its syntax.
use super::{BoxDecoding, BoxScores, GridForm, Postprocess, Preprocess, TextDecoding, TopValues};
use super::{Dimension, InputType, Manifest, ModelInput, ModelOutput, Origin, OriginKind, OutputType};
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH};
use crate::identifier;
use crate::span::{Located, Span};
use crate::types::ElementType;
use crate::value::Step::Key;
use crate::yaml;
use std::collections::HashMap;

mod heads;
mod steps;

/// Placeholder of `tidemill models inspect --manifest` for the description, which only the maker of a model knows.
pub const BLANK_DESCRIPTION: &str = "WHAT IT DOES IN ONE SENTENCE";
/// Placeholder for the licence.
pub const BLANK_LICENCE: &str = "SPDX-IDENTIFIER";
/// Placeholder for the origin.
pub const BLANK_ORIGIN: &str = "FROM WHERE";
/// Start of placeholders for names of columns.
pub const BLANK_COLUMN: &str = "COLUMN";

/// Whether a column is still a placeholder: `COLUMN`, or `COLUMN-` and the model's name.
fn is_blank(column: &str) -> bool {
    column.strip_prefix(BLANK_COLUMN).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

impl Manifest {
    /// Returns all findings; no errors after [`Manifest::load`].
    pub fn check(&self) -> Diagnostics {
        let mut found = Diagnostics::new();
        found.extend(identifier::check(&self.id, "."));
        // A model without a file has nothing to name.
        let is_here = self.origin.kind != OriginKind::Published;
        let needs_file = is_here
            && (self.artifacts.is_empty()
                || !self.file.is_empty()
                || self.backends.iter().any(|backend| self.artifact(&backend.0).is_none()));
        for (key, text) in [("file", &self.file), ("sha256", &self.sha256)] {
            if text.is_empty() && needs_file {
                found.push(
                    Diagnostic::error("E0104", format!("missing key `{key}`"))
                        .at(self.id.span.clone())
                        .with_help(format!("add `{key}: ...`")),
                );
            }
        }
        if !self.sha256.is_empty() {
            digest(&self.sha256, &mut found);
        }
        if self.backends.is_empty() && is_here {
            found.push(
                Diagnostic::error("E0506", "no backend runs this model")
                    .at(self.backends.span.clone())
                    .with_help("name at least one: `backends: [rten, ort]`"),
            );
        }
        self.check_artifacts(&mut found);
        self.origin.check(&self.origin.span, &mut found);
        self.check_names(&mut found);
        let shapes = self.inputs.iter().map(|input| &input.shape);
        for shape in shapes.chain(self.outputs.iter().map(|output| &output.shape)) {
            is_countable(shape, &mut found);
        }
        self.states.iter().for_each(|state| is_countable(&state.shape, &mut found));
        if is_here {
            self.inputs.iter().for_each(|input| steps::check_input(input, &mut found));
            self.outputs.iter().for_each(|output| steps::check_output(output, &mut found));
            self.check_decoder(&mut found);
            self.check_texts(&mut found);
            self.check_generate(&mut found);
        }
        self.check_loop(&mut found);
        self.check_metric(&mut found);
        found
    }

    /// Checks that outputs with values for the parts of a text belong to a model that reads one in parts.
    fn check_texts(&self, found: &mut Diagnostics) {
        let reads = |wanted: fn(&Preprocess) -> bool| {
            let mut steps = self.inputs.iter().flat_map(|input| &input.preprocess);
            steps.any(|step| wanted(&step.value))
        };
        for step in self.outputs.iter().flat_map(|output| &output.postprocess) {
            let (name, needed, is_there) = match &step.value {
                Postprocess::Entities { .. } => {
                    ("entities", "tokenize", reads(|step| matches!(step, Preprocess::Tokenize { .. })))
                }
                Postprocess::Join { .. } => {
                    ("join", "characters", reads(|step| matches!(step, Preprocess::Characters { .. })))
                }
                _ => continue,
            };
            if !is_there {
                let message = format!("`{name}` needs an input with the step `{needed}`");
                let help =
                    format!("an output has a value for each part of a text only where `{needed}` splits it");
                found.push(Diagnostic::error("E0504", message).at(step.span.clone()).with_help(help));
            }
        }
    }

    /// Returns an error for each placeholder of `tidemill models inspect --manifest` that is not filled in.
    pub fn blanks(&self) -> Diagnostics {
        let mut found = Diagnostics::new();
        let mut blank = |text: &str, span: &Span, key: &str, what: &str| {
            found.push(
                Diagnostic::error("E0105", format!("`{text}` is a placeholder"))
                    .at(span.clone())
                    .with_help(format!("write {what} as `{key}`")),
            );
        };
        // These two have no position, so it is looked up in the source text.
        let tree = self.id.span.source().and_then(|source| yaml::parse(source).ok());
        let place =
            |key: &str| tree.as_ref().map_or_else(|| self.id.span.clone(), |tree| tree.span_at(&[Key(key)]));
        if self.description == BLANK_DESCRIPTION {
            let span = place("description");
            blank(BLANK_DESCRIPTION, &span, "description", "the purpose of the model, in one sentence,");
        }
        if self.licence == BLANK_LICENCE {
            blank(
                BLANK_LICENCE,
                &place("licence"),
                "licence",
                "the SPDX identifier of its licence, such as Apache-2.0,",
            );
        }
        if self.origin.note.as_deref() == Some(BLANK_ORIGIN) {
            blank(BLANK_ORIGIN, &self.origin.span, "note", "the origin of the model");
        }
        let named = self.inputs.iter().filter(|input| !input.column.is_empty());
        let columns = named.map(|input| (&input.column, "the column of your records that it reads"));
        let columns = columns
            .chain(self.outputs.iter().map(|output| (&output.column, "the name of its output column")));
        for (column, what) in columns.filter(|(column, _)| is_blank(column)) {
            blank(column, &column.span, "column", what);
        }
        for input in &self.inputs {
            // One of them stands for all, which may be hundreds.
            if let Some(feature) = input.columns.iter().find(|feature| is_blank(&feature.column)) {
                let what = "the names of your columns, in the order of the training,";
                blank(&feature.column, &feature.span, "columns", what);
            }
        }
        found
    }

    /// Whether a loop, decoder or generation outputs a text.
    fn gives_text(&self) -> bool {
        self.repeat.is_some() || self.decoder.is_some() || self.generate.is_some()
    }

    fn check_names(&self, found: &mut Diagnostics) {
        for constant in &self.constants {
            if constant.value.values().iter().any(|value| !value.is_finite()) {
                found.push(
                    Diagnostic::error("E0509", format!("the value of `{}` is not finite", constant.name))
                        .at(constant.value.span.clone())
                        .with_help("write a number"),
                );
            }
        }
        if self.inputs.is_empty() || self.outputs.is_empty() && !self.gives_text() {
            let what = if self.inputs.is_empty() { "inputs" } else { "outputs" };
            found.push(
                Diagnostic::error("E0507", format!("the model has no {what}"))
                    .at(self.id.span.clone())
                    .with_help(format!("describe them under `{what}:`")),
            );
        }
        let constants = self.constants.iter().map(|constant| &constant.name);
        let constants = constants.chain(self.states.iter().map(|state| &state.input));
        let filled = self.generate.iter().flat_map(|generate| [&generate.mask, &generate.positions]);
        let constants = constants.chain(filled.flatten());
        unique("input", self.inputs.iter().map(|input| &input.name).chain(constants), found);
        unique("state", self.states.iter().map(|state| &state.output), found);
        for state in self.states.iter().filter(|state| state.shape.contains(&Dimension::Any)) {
            let message = format!("the state `{}` has no fixed size", state.input);
            let help = "write `batch` where the file counts records, and numbers for the rest";
            found.push(Diagnostic::error("E0502", message).at(state.shape.span.clone()).with_help(help));
        }
        if let Some(state) = self.states.first()
            && self.gives_text()
        {
            let message = "a model with a loop, decoder or generation keeps nothing from record to record";
            let help = "remove `states`, or list them under `loop`";
            found.push(Diagnostic::error("E0507", message).at(state.input.span.clone()).with_help(help));
        }
        let collected = self.repeat.iter().map(|repeat| &repeat.collect.column);
        let collected = collected.chain(self.decoder.iter().map(|decoder| &decoder.column));
        let collected = collected.chain(self.generate.iter().map(|generate| &generate.column));
        unique("output column", self.outputs.iter().map(|output| &output.column).chain(collected), found);
        let columns = self.inputs.iter().map(|input| &input.column).filter(|column| !column.is_empty());
        let columns = columns.chain(self.outputs.iter().map(|output| &output.column));
        let columns = columns.chain(self.decoder.iter().map(|decoder| &decoder.column));
        let columns = columns.chain(self.generate.iter().map(|generate| &generate.column));
        for column in columns.take(ENOUGH) {
            if column.is_empty() || column.starts_with('_') {
                found.push(
                    Diagnostic::error("E0508", format!("`{column}` cannot be the name of a column"))
                        .at(column.span.clone())
                        .with_help("names that start with `_` belong to the engine"),
                );
            }
        }
    }

    /// A loop may feed tensors that are described nowhere else, so only clashing names are wrong.
    fn check_loop(&self, found: &mut Diagnostics) {
        let Some(repeat) = &self.repeat else { return };
        if repeat.max_steps.value == 0 {
            found.push(
                Diagnostic::error("E0509", "a loop of 0 steps")
                    .at(repeat.max_steps.span.clone())
                    .with_help("write the largest number of steps, 1 or more"),
            );
        }
        let states = repeat.states.iter().map(|state| &state.input);
        unique(
            "input",
            self.inputs.iter().map(|input| &input.name).chain(states).chain([&repeat.feed.input]),
            &mut *found,
        );
        let tokens = u32::try_from(repeat.collect.labels.len()).unwrap_or(u32::MAX);
        for (what, token) in [("start", Some(repeat.feed.start)), ("end", repeat.end)] {
            if let Some(token) = token.filter(|token| *token >= tokens) {
                found.push(
                    Diagnostic::error("E0509", format!("the {what} token {token} has no label"))
                        .at(repeat.collect.column.span.clone())
                        .with_help(format!("there are {tokens} labels; tokens count from 0")),
                );
            }
        }
    }

    fn check_metric(&self, found: &mut Diagnostics) {
        let Some(metric) = &self.metric else { return };
        let (low, high) = metric.interval.value;
        if !(low <= metric.value.value && metric.value.value <= high) {
            found.push(
                Diagnostic::error("E0510", format!("the value {} is not in its interval", metric.value))
                    .at(metric.interval.span.clone())
                    .with_help("write `[low, high]` around the value"),
            );
        }
    }
}

/// Checks the digest of a file.
pub(super) fn digest(text: &Located<String>, found: &mut Diagnostics) {
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if text.len() != 64 || !text.chars().all(hex) {
        found.push(
            Diagnostic::error("E0501", "this is not a sha256")
                .at(text.span.clone())
                .with_help("write the 64 lower-case hexadecimal digits that `sha256sum` prints for the file"),
        );
    }
}

impl Origin {
    fn check(&self, span: &Span, found: &mut Diagnostics) {
        let needed: &[(&str, bool)] = match self.kind {
            OriginKind::Trained | OriginKind::Exported => {
                &[("script", self.script.is_some()), ("seed", self.seed.is_some())]
            }
            OriginKind::Fetched => {
                &[("package", self.package.is_some()), ("package_version", self.package_version.is_some())]
            }
            OriginKind::External | OriginKind::Published => &[("note", self.note.is_some())],
        };
        for sha256 in self.package_sha256.iter().chain(self.files.iter().map(|file| &file.sha256)) {
            digest(sha256, found);
        }
        for (key, _) in needed.iter().filter(|(_, there)| !there) {
            found.push(
                Diagnostic::error("E0505", format!("an origin of this kind needs `{key}`"))
                    .at(span.clone())
                    .with_help(
                        "`trained`, `exported`: script, seed; `fetched`: package, package_version; `external`, `published`: note",
                    ),
            );
        }
    }
}

/// Checks that the values of a record can be counted with 32 bits.
fn is_countable(shape: &Located<Vec<Dimension>>, found: &mut Diagnostics) {
    let sizes = shape.iter().map(|dimension| match dimension {
        Dimension::Fixed(size) => *size,
        Dimension::Batch | Dimension::Any => 1,
    });
    let values = sizes.fold(1u64, |values, size| values.saturating_mul(u64::from(size)));
    if values > i32::MAX as u64 {
        found.push(
            Diagnostic::error(
                "E0502",
                format!("a value would have {values} numbers, at most {} are possible", i32::MAX),
            )
            .at(shape.span.clone())
            .with_help("write the shape that the model's file has"),
        );
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a Located<String>>, found: &mut Diagnostics) {
    let mut firsts = HashMap::new();
    for name in names {
        if found.len() >= ENOUGH {
            return;
        }
        if let Some(first) = firsts.insert(name.as_str(), name) {
            // The pair is found again when the loop's names are checked together with the others.
            let diagnostic = Diagnostic::error("E0508", format!("{what} `{name}` is given twice"))
                .at(name.span.clone())
                .with_related(first.span.clone(), "the first one")
                .with_help("give it another name");
            if !found.iter().any(|other| other.message == diagnostic.message) {
                found.push(diagnostic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_column_of_a_table_stands_for_all() {
        let text = format!(
            "version: 1\nid: x\ndescription: x\nfile: x.onnx\nsha256: {}\nlicence: MIT\norigin: {{kind: external, note: x}}\n\
             backends: [ort]\n\
             inputs: [{{name: x, type: features, columns: [age, {BLANK_COLUMN}-2, {BLANK_COLUMN}-3], dtype: float32, shape: [batch, 3]}}]\n\
             outputs: [{{name: y, column: z, type: float64, dtype: float32, shape: [batch, 1]}}]\n",
            "a".repeat(64)
        );
        let blanks = Manifest::parse(&text, "m.yaml").expect("a manifest with blanks").blanks();
        let messages: Vec<&str> = blanks.iter().map(|blank| blank.message.as_str()).collect();
        assert_eq!(messages, ["`COLUMN-2` is a placeholder"]);
    }

    #[test]
    fn a_column_without_categories_has_no_unknown_ones() {
        let text = format!(
            "version: 1\nid: x\ndescription: x\nfile: x.onnx\nsha256: {}\nlicence: MIT\norigin: {{kind: external, note: x}}\n\
             backends: [ort]\n\
             inputs: [{{name: x, type: features, columns: [{{column: age, unknown: 3}}], dtype: float32, shape: [batch, 1]}}]\n\
             outputs: [{{name: y, column: z, type: float64, dtype: float32, shape: [batch, 1]}}]\n",
            "a".repeat(64)
        );
        let found = Manifest::parse(&text, "m.yaml").expect_err("a value that is never used");
        let messages: Vec<&str> = found.iter().map(|error| error.message.as_str()).collect();
        assert_eq!(messages, ["`age` has no categories, so none is unknown"]);
        let known = text.replace("unknown: 3", "unknown: 3, categories: [\"1\"]");
        assert!(Manifest::parse(&known, "m.yaml").is_ok());
    }

    #[test]
    fn what_is_to_be_filled_in_is_shown_where_it_stands() {
        let text = include_str!("../../tests/golden/model.yaml")
            .replace("reads an image, a sound and a text, gives features and two texts", BLANK_DESCRIPTION)
            .replace("licence: Apache-2.0", &format!("licence: {BLANK_LICENCE}"))
            .replace("note: for the tests", &format!("note: {BLANK_ORIGIN}"));
        let manifest = Manifest::parse(&text, "m.yaml").expect("the golden one, with blanks");
        let line = |key: &str| text.lines().position(|line| line.starts_with(key)).map(|at| at + 1);
        let blanks = manifest.blanks();
        let lines: Vec<Option<usize>> = blanks.iter().map(Diagnostic::line).collect();
        assert_eq!(lines, [line("description:"), line("licence:"), line("origin:")]);
        let found: Vec<Option<&str>> = blanks.iter().map(|blank| blank.span.text()).collect();
        assert_eq!(found[..2], [Some(BLANK_DESCRIPTION), Some(BLANK_LICENCE)]);
    }
}
