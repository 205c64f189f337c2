//! The kinds of operators, sources and sinks that a workflow can name.
//!
//! A new kind is one file with a type that implements one of the traits of [`crate::kind`], and one line in
//! [`Registry::builtin`] (or a call of `register_operator` where the registry is made).
//!
//! ```
//! use tidemill_operators::registry::Registry;
//! let registry = Registry::builtin();
//! assert!(registry.operator("filter").is_some());
//! assert!(registry.source("csv").is_some());
//! for kind in registry.kinds() {
//!     println!("{} {}: {}", kind.role, kind.kind, kind.summary);
//! }
//! ```
use crate::kind::{OperatorKind, SinkKind, SourceKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Role of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A source of records.
    Source,
    /// An operator.
    Operator,
    /// A sink of results.
    Sink,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Source => "source",
            Role::Operator => "operator",
            Role::Sink => "sink",
        })
    }
}

/// One entry of [`Registry::kinds`].
#[derive(Debug, Clone, serde::Serialize)]
pub struct KindInfo {
    /// Source, operator or sink.
    pub role: Role,
    /// Name in workflow files.
    pub kind: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// JSON schema of the options.
    pub options: schemars::Schema,
}

/// The known kinds.
#[derive(Clone, Default)]
pub struct Registry {
    operators: BTreeMap<&'static str, Arc<dyn OperatorKind>>,
    sources: BTreeMap<&'static str, Arc<dyn SourceKind>>,
    sinks: BTreeMap<&'static str, Arc<dyn SinkKind>>,
}

impl Registry {
    /// A registry without any kind.
    pub fn empty() -> Self {
        Self::default()
    }

    /// All kinds that need no model.
    pub fn builtin() -> Self {
        let mut registry = Self::empty();
        registry.register_source(crate::sources::image_directory::ImageDirectory);
        registry.register_source(crate::sources::wav_directory::WavDirectory);
        registry.register_source(crate::sources::video::Video);
        registry.register_source(crate::sources::csv::Csv);
        registry.register_source(crate::sources::jsonl::Jsonl);
        registry.register_source(crate::sources::tcp::Tcp);
        registry.register_operator(crate::relational::filter::Filter);
        registry.register_operator(crate::relational::map::Map);
        registry.register_operator(crate::relational::join::Join);
        registry.register_operator(crate::relational::window::Window);
        registry.register_operator(crate::relational::distinct::Distinct);
        registry.register_operator(crate::vision::crop::Crop);
        registry.register_operator(crate::vision::track::Track);
        registry.register_operator(crate::vision::associate::Associate);
        registry.register_sink(crate::sinks::jsonl::Jsonl);
        registry.register_sink(crate::sinks::csv::Csv);
        registry.register_sink(crate::sinks::parquet::Parquet);
        registry.register_sink(crate::sinks::video::Video);
        registry.register_sink(crate::sinks::stdout::Stdout);
        registry
    }

    /// Adds an operator kind; replaces one with its name.
    pub fn register_operator(&mut self, kind: impl OperatorKind + 'static) {
        self.operators.insert(kind.kind(), Arc::new(kind));
    }

    /// Adds a source kind; replaces one with its name.
    pub fn register_source(&mut self, kind: impl SourceKind + 'static) {
        self.sources.insert(kind.kind(), Arc::new(kind));
    }

    /// Adds a sink kind; replaces one with its name.
    pub fn register_sink(&mut self, kind: impl SinkKind + 'static) {
        self.sinks.insert(kind.kind(), Arc::new(kind));
    }

    /// The operator kind of that name.
    pub fn operator(&self, kind: &str) -> Option<&dyn OperatorKind> {
        self.operators.get(kind).map(AsRef::as_ref)
    }

    /// The source kind of that name.
    pub fn source(&self, kind: &str) -> Option<&dyn SourceKind> {
        self.sources.get(kind).map(AsRef::as_ref)
    }

    /// The sink kind of that name.
    pub fn sink(&self, kind: &str) -> Option<&dyn SinkKind> {
        self.sinks.get(kind).map(AsRef::as_ref)
    }

    /// Every kind with its summary and the schema of its options: sources, operators, sinks, each by name.
    pub fn kinds(&self) -> Vec<KindInfo> {
        let sources = self.sources.values().map(|k| KindInfo {
            role: Role::Source,
            kind: k.kind(),
            summary: k.summary(),
            options: k.options_schema(),
        });
        let operators = self.operators.values().map(|k| KindInfo {
            role: Role::Operator,
            kind: k.kind(),
            summary: k.summary(),
            options: k.options_schema(),
        });
        let sinks = self.sinks.values().map(|k| KindInfo {
            role: Role::Sink,
            kind: k.kind(),
            summary: k.summary(),
            options: k.options_schema(),
        });
        sources.chain(operators).chain(sinks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_summary_and_a_schema_without_unknown_keys() {
        let kinds = Registry::builtin().kinds();
        assert_eq!(kinds.len(), 19);
        for kind in kinds {
            assert!(kind.summary.ends_with('.'), "{}", kind.kind);
            let schema = kind.options.as_value();
            assert_eq!(schema["additionalProperties"], false, "{} {schema}", kind.kind);
            for (name, property) in schema["properties"].as_object().unwrap() {
                assert!(property["description"].is_string(), "{} {name}", kind.kind);
            }
        }
    }

    /// Plans use the kind of a sink, runs use the sink itself.
    #[test]
    fn sinks_publish_as_their_kind_says() {
        let folder = tempfile::tempdir().unwrap();
        for (kind, options) in
            [("jsonl", "path: a"), ("csv", "path: b"), ("parquet", "path: c"), ("stdout", "format: table")]
        {
            let registry = Registry::builtin();
            let sink =
                crate::sinks::test::bind(registry.sink(kind).unwrap(), folder.path(), options).unwrap();
            let publication = (sink.make)().unwrap().publication();
            assert_eq!(publication, tidemill_spec::publication::Publication::of_kind(kind), "{kind}");
        }
    }
}
