//! The kinds of operators, sources and sinks that a workflow can name.
//!
//! A new kind is one file with a type that implements one of the traits of [`crate::kind`], and one line in
//! [`Registry::builtin`]. A program that adds a kind of its own calls [`register_source`], [`register_operator`] or
//! [`register_sink`] before it does anything else.
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
use std::sync::{Arc, PoisonError, RwLock};
use tidemill_spec::kinds::KindTable;

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

    /// All kinds that need no model, and those that the program has registered.
    pub fn builtin() -> Self {
        let mut registry = Self::empty();
        registry.register_source(crate::sources::image_directory::ImageDirectory);
        registry.register_source(crate::sources::wav_directory::WavDirectory);
        registry.register_source(crate::sources::file_directory::FileDirectory);
        registry.register_source(crate::sources::video::Video);
        registry.register_source(crate::sources::csv::Csv);
        registry.register_source(crate::sources::jsonl::Jsonl);
        registry.register_source(crate::sources::parquet::Parquet);
        registry.register_source(crate::sources::tail::Tail);
        registry.register_source(crate::sources::tcp::Tcp);
        registry.register_operator(crate::relational::filter::Filter);
        registry.register_operator(crate::relational::map::Map);
        registry.register_operator(crate::relational::join::Join);
        registry.register_operator(crate::relational::lookup::Lookup);
        registry.register_operator(crate::relational::window::Window);
        registry.register_operator(crate::relational::late::Late);
        registry.register_operator(crate::relational::distinct::Distinct);
        registry.register_operator(crate::vision::crop::Crop);
        registry.register_operator(crate::vision::track::Track);
        registry.register_operator(crate::vision::associate::Associate);
        registry.register_operator(crate::sounds::slices::Slices);
        registry.register_operator(crate::relational::stack::Stack);
        registry.register_sink(crate::sinks::jsonl::Jsonl);
        registry.register_sink(crate::sinks::csv::Csv);
        registry.register_sink(crate::sinks::parquet::Parquet);
        registry.register_sink(crate::sinks::video::Video);
        registry.register_sink(crate::sinks::dataset::Dataset);
        registry.register_sink(crate::sinks::stdout::Stdout);
        let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
        registry.sources.extend(added.sources.clone());
        registry.operators.extend(added.operators.clone());
        registry.sinks.extend(added.sinks.clone());
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

    /// Replaces each kind of source and of sink by what these functions make of it.
    pub fn wrap(
        &mut self,
        source: impl Fn(Arc<dyn SourceKind>) -> Arc<dyn SourceKind>,
        sink: impl Fn(Arc<dyn SinkKind>) -> Arc<dyn SinkKind>,
    ) {
        self.sources.values_mut().for_each(|kind| *kind = source(Arc::clone(kind)));
        self.sinks.values_mut().for_each(|kind| *kind = sink(Arc::clone(kind)));
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

    /// Facts about every kind.
    pub fn facts(&self) -> KindTable {
        let mut table = KindTable::default();
        self.sources.iter().for_each(|(name, kind)| table.add_source(name, kind.facts()));
        for (name, kind) in &self.operators {
            let (of_kind, by_options) = (Arc::clone(kind), Arc::clone(kind));
            table.add_facts_of(name, Arc::new(move |options| by_options.facts_of(options)));
            table.add_operator(name, kind.facts(), Arc::new(move |options| of_kind.spread(options)));
        }
        self.sinks.iter().for_each(|(name, kind)| table.add_sink(name, kind.facts()));
        table
    }

    /// The kinds that take rows which are taken back, as a list in words.
    pub(crate) fn takers_of_corrections(&self) -> String {
        let operators = self.operators.iter().filter(|(_, kind)| kind.accepts_revisions());
        let sinks = self.sinks.iter().filter(|(_, kind)| kind.accepts_revisions());
        let names: Vec<&str> = operators.map(|(name, _)| *name).chain(sinks.map(|(name, _)| *name)).collect();
        names.join(", ")
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

/// Kinds that the program has registered.
static ADDED: RwLock<Registry> =
    RwLock::new(Registry { operators: BTreeMap::new(), sources: BTreeMap::new(), sinks: BTreeMap::new() });

/// Adds a source kind for the whole program: its workflows, plans, runs and deployments. One of the same name is replaced.
pub fn register_source(kind: impl SourceKind + 'static) {
    ADDED.write().unwrap_or_else(PoisonError::into_inner).register_source(kind);
}

/// Adds an operator kind for the whole program, as [`register_source`] adds a source kind.
pub fn register_operator(kind: impl OperatorKind + 'static) {
    ADDED.write().unwrap_or_else(PoisonError::into_inner).register_operator(kind);
}

/// Adds a sink kind for the whole program, as [`register_source`] adds a source kind.
pub fn register_sink(kind: impl SinkKind + 'static) {
    ADDED.write().unwrap_or_else(PoisonError::into_inner).register_sink(kind);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_summary_and_a_schema_without_unknown_keys() {
        let kinds = Registry::builtin().kinds();
        assert_eq!(kinds.len(), 27);
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
            assert_eq!(publication, registry.facts().sink(kind).publication, "{kind}");
        }
    }
}
