//! Tests of a workflow, `NAME.test.yaml` version 1: inputs in place of its sources, and the rows that must come out.
//!
//! ```
//! use tidemill_spec::workflow_test::{Expected, WorkflowTests};
//! let text = "
//! version: 1
//! workflow: workflow.yaml
//! tests:
//!   - name: cold readings are left out
//!     sources: {readings: [{temperature: 25.0}, {temperature: 15.0}]}
//!     expect: {out: [{temperature: 25.0}]}
//! ";
//! let tests = WorkflowTests::parse(text, "workflow.test.yaml")?;
//! let (id, expected) = tests.tests[0].expect.iter().next().unwrap();
//! assert_eq!((id.as_str(), expected.rows().map(<[_]>::len)), ("out", Some(1)));
//!
//! let errors = WorkflowTests::parse(&text.replace("expect", "expects"), "workflow.test.yaml").unwrap_err();
//! assert!(errors.to_string().contains("did you mean `expect`?"), "{errors}");
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
mod check;
mod forms;

use crate::diagnostic::Diagnostics;
use crate::document;
use crate::span::{Located, SourceFile};
use crate::units::TimeSpan;
use crate::value::Value;
use crate::variables::{self, Lookup};
use crate::yaml;
pub use forms::{Expected, ExpectedFrom, Named, SourceInput};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// End of the names of files with tests.
pub const FILE_END: &str = ".test.yaml";

/// Tests of one workflow.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowTests {
    /// Format version; 1.
    pub version: Located<u32>,
    /// The workflow, relative to this file.
    pub workflow: Located<String>,
    /// Difference between numbers that does not count, in all tests. Default: none, numbers are equal.
    #[serde(default)]
    pub tolerance: Tolerance,
    /// The tests.
    pub tests: Vec<WorkflowTest>,
}

/// One test: one run of the workflow.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowTest {
    /// Name, unique in the file.
    pub name: Located<String>,
    /// Inputs by source, in place of the source of the workflow. Others are read as the workflow says.
    #[serde(default)]
    pub sources: Named<SourceInput>,
    /// Options by source or operator. Each replaces the one of the workflow or is added to them.
    #[serde(default)]
    pub options: Named<Value>,
    /// Models by operator, by id or manifest. Default: as the workflow runs without a plan.
    #[serde(default)]
    pub models: Named<Located<String>>,
    /// Length of an epoch. Default: that of the workflow.
    #[serde(default)]
    pub tick: Option<Located<TimeSpan>>,
    /// Expected rows by sink or operator.
    pub expect: Named<Expected>,
    /// Expected dead letters by source or operator: their number by reason. Default: none.
    #[serde(default)]
    pub dead_letters: Named<Counts>,
    /// Expected drops by operator: their number by reason. Those of other operators may be any.
    #[serde(default)]
    pub drops: Named<Counts>,
}

/// Numbers of records by reason.
pub type Counts = Named<u64>;

/// Difference between an expected and a found number that does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// The difference itself. Default: 0.
    #[serde(default)]
    pub absolute: f64,
    /// The difference as a share of the expected number, such as 0.01. Default: 0.
    #[serde(default)]
    pub relative: f64,
}

impl Tolerance {
    /// Whether a found number is near enough to the expected one: within the larger of both differences.
    pub fn permits(&self, expected: f64, found: f64) -> bool {
        expected == found || (expected - found).abs() <= self.absolute.max(self.relative * expected.abs())
    }
}

impl WorkflowTests {
    /// Reads and checks a file with tests.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E075x`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::from_source(&yaml::read(path.as_ref())?, &variables::environment)
    }

    /// Parses and checks a text with tests; `file_name` is shown in errors.
    ///
    /// # Errors
    /// As [`WorkflowTests::load`].
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text), &variables::environment)
    }

    fn from_source(source: &Arc<SourceFile>, lookup: Lookup<'_>) -> Result<Self, Diagnostics> {
        let mut tree = document::tree(source, "test file")?;
        variables::fill_in(&mut tree, lookup)?;
        document::convert(&tree, |tests: &Self| tests.check(&tree))
    }
}
