//! Facts about the kinds of sources, operators and sinks: plain data that each kind states once, for all that judge a workflow
//! without running it.
//!
//! The crate that defines a kind declares its facts beside its name. Planner, app, cluster and deployment get them as a
//! [`KindTable`]. A kind that is not known has the facts of [`Default`].
//!
//! ```
//! use tidemill_spec::kinds::{KindTable, SinkFacts};
//! use tidemill_spec::publication::Publication;
//! let mut kinds = KindTable::default();
//! kinds.add_sink("archive", SinkFacts { publication: Publication::AtEnd, ..SinkFacts::default() });
//! assert_eq!(kinds.sink("archive").publication, Publication::AtEnd);
//! assert_eq!(kinds.sink("another").publication, Publication::EachCheckpoint);
//! ```
use crate::publication::Publication;
use crate::value::{Node, Value};
use crate::workflow::Operator;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How an operator computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Computation {
    /// Row by row or batch by batch, without state.
    Stateless,
    /// Epoch by epoch, with a state that checkpoints keep.
    Stateful,
    /// By a model, in batches that the engine puts together.
    Inference,
}

/// How the records of an operator may be spread over several stages so that the result stays the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// Any record may go to any stage.
    Any,
    /// Any record may go to any stage; the operator computes columns or leaves some out, and the class that a record got at its source
    /// says nothing about those.
    Computes(Columns),
    /// By the route key of the sources, which must be the join key: each entry names one column per input, and
    /// the sources behind the inputs must have one of the entries as their `key`.
    RouteKey(Vec<Vec<String>>),
    /// By group, wherever the records come from: rows with the same value in this column must meet. A row goes to the stage of the
    /// route class that a source would give to that value, and the rows of the output have that class.
    Group(GroupColumn),
    /// Not at all: all records must meet in one stage.
    One,
}

impl Spread {
    /// By the first of these columns, which an operator groups by and sends under the same names; without any, all records must meet.
    pub fn by_group<'a>(columns: impl IntoIterator<Item = &'a str>) -> Self {
        let first = columns.into_iter().next();
        first.map_or(Self::One, |name| Self::Group(GroupColumn { input: name.into(), output: name.into() }))
    }

    /// The column of the output of which the value decides the route class of each record, by the columns that decide it in each
    /// sender, in the order of the inputs; none: it is not known.
    pub fn routed_by<'a>(&'a self, mut senders: impl Iterator<Item = Option<&'a str>>) -> Option<&'a str> {
        match self {
            Self::One => None,
            Self::Group(group) => Some(&group.output),
            // A pair has the class of its left record.
            Self::RouteKey(_) => senders.next()?,
            Self::Any | Self::Computes(_) => {
                let column = senders.next()??;
                let is_kept = match self {
                    Self::Computes(columns) => columns.keep(column),
                    _ => true,
                };
                (is_kept && senders.all(|other| other == Some(column))).then_some(column)
            }
        }
    }
}

/// Columns that an operator computes or leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// They get other values than a column of that name has in the input.
    pub computed: Vec<String>,
    /// All that it sends; none: all of the input, and those that it computes.
    pub sent: Option<Vec<String>>,
}

impl Columns {
    /// Whether a column of the input is in the output with its values.
    pub fn keep(&self, column: &str) -> bool {
        let has = |names: &[String]| names.iter().any(|name| name == column);
        !has(&self.computed) && self.sent.as_deref().is_none_or(has)
    }
}

/// A column by which an operator groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupColumn {
    /// Its name in the input.
    pub input: String,
    /// The column of the output that has the value of the group.
    pub output: String,
}

/// Facts about a kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFacts {
    /// Whether it gives records when they come: what is not read in time is gone. Default: no.
    pub is_live: bool,
    /// Options that name files or folders that it reads. Default: `path`.
    pub reads: &'static [&'static str],
    /// Options that name an address, `HOST:PORT`, at which it listens. Default: none.
    pub listens: &'static [&'static str],
    /// Options that name an address, `HOST:PORT`, that it connects to. Default: none.
    pub connects: &'static [&'static str],
    /// The option with the size of its pictures, if it gives the frames of videos that it reads. Default: none.
    pub size_of_frames: Option<&'static str>,
}

impl SourceFacts {
    /// Facts about a source of one file or folder.
    pub const DEFAULT: Self =
        Self { is_live: false, reads: &["path"], listens: &[], connects: &[], size_of_frames: None };
}

impl Default for SourceFacts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Facts about a kind of operator that do not depend on its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorFacts {
    /// How it computes. Default: without state.
    pub computation: Computation,
    /// Whether it gives records before their epoch is complete although it keeps a state. Default: no.
    pub gives_at_once: bool,
    /// Whether it makes one record of one of each input. Default: no, the records of all inputs come one after the other.
    pub joins: bool,
    /// Whether a record that it gives is computed from many, when a window of event time closes. Default: no.
    pub has_windows: bool,
    /// Whether records wait in it until the watermark has passed them. Default: no.
    pub follows_event_time: bool,
    /// Options that name files or folders that it reads, beside the models of `variants`. Default: none.
    pub reads: &'static [&'static str],
    /// Whether it loads one of `variants`, also where it keeps a state. Default: no.
    pub loads_models: bool,
    /// Whether a device can prepare its records: it takes their rows in place of a model's tensors. Default: no.
    pub device_prepares: bool,
}

impl OperatorFacts {
    /// Facts about an operator that treats each record by itself.
    pub const DEFAULT: Self = Self {
        computation: Computation::Stateless,
        gives_at_once: false,
        joins: false,
        has_windows: false,
        follows_event_time: false,
        reads: &[],
        loads_models: false,
        device_prepares: false,
    };

    /// Whether the kind keeps state.
    pub fn is_stateful(&self) -> bool {
        self.computation == Computation::Stateful
    }

    /// Whether its records leave when an epoch is complete.
    pub fn gives_by_epoch(&self) -> bool {
        self.is_stateful() && !self.gives_at_once
    }
}

impl Default for OperatorFacts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Form of the files of a sink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// Text with a JSON object a line.
    JsonLines,
    /// Text with a line of names, then a line a row.
    Csv,
    /// Videos.
    Videos,
    /// Any other, or no file.
    #[default]
    Other,
}

impl Form {
    /// Whether a file is text that can be cut back to a length.
    pub fn is_text(self) -> bool {
        matches!(self, Self::JsonLines | Self::Csv)
    }
}

/// Facts about a kind of sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkFacts {
    /// When readers see rows. Default: with the next checkpoint.
    pub publication: Publication,
    /// Options that name files that it writes. Default: `path`.
    pub writes: &'static [&'static str],
    /// Options that name files or folders that it reads. Default: none.
    pub reads: &'static [&'static str],
    /// Form of its files. Default: other.
    pub form: Form,
    /// Options that may change while a run continues the file of an earlier one. Default: `overwrite` and `mode`.
    pub free: &'static [&'static str],
}

impl SinkFacts {
    /// Facts about a sink of one file of which nothing else is known.
    pub const DEFAULT: Self = Self {
        publication: Publication::EachCheckpoint,
        writes: &["path"],
        reads: &[],
        form: Form::Other,
        free: &["overwrite", "mode"],
    };
}

impl Default for SinkFacts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// All texts in these options, those in lists and maps too; `-`, standard input or output, is none.
pub fn texts<'a>(options: &'a Value, names: &[&str]) -> Vec<&'a str> {
    fn collect<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
        match &value.node {
            Node::Text(text) if text.value != "-" => into.push(&text.value),
            Node::List(items) => items.iter().for_each(|item| collect(item, into)),
            Node::Map(entries) => entries.iter().for_each(|entry| collect(&entry.value, into)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    names.iter().filter_map(|name| options.get(name)).for_each(|value| collect(value, &mut found));
    found
}

/// Says how an operator with these options may be spread.
pub type SpreadOf = Arc<dyn Fn(&Value) -> Spread + Send + Sync>;

/// Gives the facts about an operator with these options.
pub type FactsOf = Arc<dyn Fn(&Value) -> OperatorFacts + Send + Sync>;

/// Facts by kind.
#[derive(Clone, Default)]
pub struct KindTable {
    by_options: BTreeMap<&'static str, FactsOf>,
    sources: BTreeMap<&'static str, SourceFacts>,
    operators: BTreeMap<&'static str, (OperatorFacts, SpreadOf)>,
    sinks: BTreeMap<&'static str, SinkFacts>,
}

impl std::fmt::Debug for KindTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let operators: Vec<_> = self.operators.keys().collect();
        let mut all = f.debug_struct("KindTable");
        all.field("sources", &self.sources)
            .field("operators", &operators)
            .field("sinks", &self.sinks)
            .finish()
    }
}

impl KindTable {
    /// Adds a kind of source, or replaces it.
    pub fn add_source(&mut self, kind: &'static str, facts: SourceFacts) {
        self.sources.insert(kind, facts);
    }

    /// Adds a kind of operator, or replaces it.
    pub fn add_operator(&mut self, kind: &'static str, facts: OperatorFacts, spread: SpreadOf) {
        self.operators.insert(kind, (facts, spread));
    }

    /// Adds the facts that depend on the options of a kind of operator: a kind that runs code of the user, for instance, keeps a state or
    /// not.
    pub fn add_facts_of(&mut self, kind: &'static str, facts: FactsOf) {
        self.by_options.insert(kind, facts);
    }

    /// Adds a kind of sink, or replaces it.
    pub fn add_sink(&mut self, kind: &'static str, facts: SinkFacts) {
        self.sinks.insert(kind, facts);
    }

    /// Facts about a kind of source.
    pub fn source(&self, kind: &str) -> SourceFacts {
        self.sources.get(kind).copied().unwrap_or_default()
    }

    /// Facts about a kind of operator.
    pub fn operator(&self, kind: &str) -> OperatorFacts {
        self.operators.get(kind).map(|(facts, _)| *facts).unwrap_or_default()
    }

    /// Facts about an operator with its options.
    pub fn operator_of(&self, operator: &Operator) -> OperatorFacts {
        let by_options = self.by_options.get(operator.kind.as_str());
        by_options.map_or_else(|| self.operator(&operator.kind), |facts| facts(&operator.options))
    }

    /// How an operator may be spread.
    pub fn spread(&self, operator: &Operator) -> Spread {
        let kind = self.operators.get(operator.kind.as_str());
        kind.map_or(Spread::Any, |(_, spread)| spread(&operator.options))
    }

    /// Facts about a kind of sink.
    pub fn sink(&self, kind: &str) -> SinkFacts {
        self.sinks.get(kind).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn columns_that_are_computed_or_left_out_decide_nothing() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let computes = |computed: &[&str], sent: Option<&[&str]>| {
            Spread::Computes(Columns { computed: names(computed), sent: sent.map(names) })
        };
        let by = |spread: &Spread, senders: &[Option<&str>]| {
            spread.routed_by(senders.iter().copied()).map(str::to_owned)
        };
        let site = Some("site".to_owned());
        assert_eq!(by(&Spread::Any, &[Some("site"), Some("site")]), site);
        assert_eq!(by(&Spread::Any, &[Some("site"), Some("lane")]), None);
        assert_eq!(by(&computes(&["lane"], None), &[Some("site")]), site);
        assert_eq!(by(&computes(&["site"], None), &[Some("site")]), None);
        assert_eq!(by(&computes(&[], Some(&["lane"])), &[Some("site")]), None);
        assert_eq!(by(&Spread::by_group(["site"]), &[None]), site);
        assert_eq!(by(&Spread::RouteKey(Vec::new()), &[Some("site"), None]), site);
        assert_eq!(by(&Spread::One, &[Some("site")]), None);
    }

    #[test]
    fn texts_are_those_of_the_options_that_are_named() {
        let text = "{path: a.csv, over: [b.mp4, {c: d.mp4}], other: e, in: '-'}";
        let options = crate::yaml::parse(&crate::span::SourceFile::new("w.yaml", text)).unwrap();
        assert_eq!(texts(&options, &["path", "over", "in", "not_there"]), ["a.csv", "b.mp4", "d.mp4"]);
    }
}
