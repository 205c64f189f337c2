//! Checks of a file with tests that need no workflow.
use super::forms::ExpectedFrom;
use super::{Expected, SourceInput, Tolerance, WorkflowTests};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::{Located, Span};
use crate::value::{Node, Value};
use std::collections::BTreeMap;

impl WorkflowTests {
    pub(super) fn check(&self, tree: &Value) -> Diagnostics {
        let mut found = Diagnostics::new();
        if self.tests.is_empty() {
            let place = tree.entry("tests").map_or_else(|| tree.span.clone(), |entry| entry.key.span.clone());
            found.push(
                Diagnostic::error("E0751", "there are no tests in the file")
                    .at(place)
                    .with_help("write at least one: `- {name: ..., sources: {...}, expect: {...}}`"),
            );
        }
        let mut names: BTreeMap<&str, &Span> = BTreeMap::new();
        check_tolerance(self.tolerance, tree.entry("tolerance").map(|entry| &entry.key.span), &mut found);
        for test in &self.tests {
            if let Some(first) = names.insert(&test.name.value, &test.name.span) {
                found.push(
                    Diagnostic::error("E0751", format!("two tests have the name `{}`", test.name))
                        .at(test.name.span.clone())
                        .with_related(first.clone(), "the first one")
                        .with_help("give one of them another name: results are listed by name"),
                );
            }
            if test.expect.is_empty() {
                found.push(
                    Diagnostic::error("E0751", format!("the test `{}` expects nothing", test.name))
                        .at(test.name.span.clone())
                        .with_help(
                            "write the rows of a sink or operator: `expect: {SINK: [{column: value}]}`",
                        ),
                );
            }
            test.sources.iter().for_each(|(id, input)| check_input(id, input, &mut found));
            for (id, options) in test.options.iter() {
                if !matches!(options.node, Node::Map(_)) {
                    found.push(
                        options
                            .error("E0751", format!("options of `{id}` are a map, found {}", options.kind()))
                            .with_help("write `{option: value}`"),
                    );
                }
            }
            test.expect.iter().for_each(|(id, expected)| check_expected(id, expected, &mut found));
        }
        found
    }
}

fn check_input(id: &Located<String>, input: &SourceInput, found: &mut Diagnostics) {
    match input {
        SourceInput::Rows(rows) => check_rows(rows, found),
        SourceInput::File(file) => {
            if !file.ends_with(".jsonl") && !file.ends_with(".csv") {
                found.push(
                    Diagnostic::error("E0751", format!("`{file}` is neither JSONL nor CSV by its name"))
                        .at(file.span.clone())
                        .with_help(
                            "name a file that ends with `.jsonl` or `.csv`, or use `kind` and `options`",
                        ),
                );
            }
        }
        SourceInput::Source { .. } => {}
        SourceInput::Unclear => found.push(
            Diagnostic::error("E0751", format!("the input of source `{id}` is not clear"))
                .at(id.span.clone())
                .with_help("write one of `rows`, `file`, or `kind` with `options`"),
        ),
    }
}

fn check_expected(id: &Located<String>, expected: &Expected, found: &mut Diagnostics) {
    match &expected.from {
        ExpectedFrom::Rows(rows) => check_rows(rows, found),
        ExpectedFrom::File(_) => {}
        ExpectedFrom::Unclear => found.push(
            Diagnostic::error("E0751", format!("the expected rows of `{id}` are not clear"))
                .at(id.span.clone())
                .with_help("write `rows` or `file`, and not both; `rows: []` if none may come"),
        ),
    }
    expected.tolerance.into_iter().for_each(|it| check_tolerance(it, Some(&id.span), found));
    expected.columns.iter().for_each(|(name, it)| check_tolerance(*it, Some(&name.span), found));
}

fn check_rows(rows: &[Value], found: &mut Diagnostics) {
    for row in rows.iter().filter(|row| !matches!(row.node, Node::Map(_))) {
        found.push(
            row.error("E0751", format!("a row is a map of columns, found {}", row.kind()))
                .with_help("write `{column: value}`"),
        );
    }
}

fn check_tolerance(tolerance: Tolerance, place: Option<&Span>, found: &mut Diagnostics) {
    if tolerance.absolute < 0.0 || tolerance.relative < 0.0 {
        found.push(
            Diagnostic::error("E0751", "a tolerance is negative")
                .at(place.cloned().unwrap_or_default())
                .with_help("write a number of 0 or more"),
        );
    }
}
