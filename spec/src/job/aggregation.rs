//! Who adds up the gradients of a training: its ranks, or aggregators that several jobs share.
//!
//! ```
//! use tidemill_spec::job::JobFile;
//! use tidemill_spec::job::aggregation::By;
//! let text = "
//! version: 1
//! job:
//!   name: finetune
//!   kind: train
//!   gang: 2
//!   train:
//!     dataset: collected/
//!     inputs: [features]
//!     label: answer
//!     model: {kind: perceptron}
//!     steps: 2000
//!     aggregation: {by: shared, at: 'tcp://10.0.0.5:7500', token: {secret_file: token}}
//! ";
//! let train = JobFile::parse(text, "job.yaml")?.job.train.unwrap();
//! assert_eq!(train.aggregation.by, By::Shared);
//! assert_eq!(train.aggregation.latency().as_micros(), 50);
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use super::train::{TrainSpec, TrainedKind};
use crate::deserializer::coded;
use crate::secret::Secret;
use crate::span::{Located, Span};
use crate::units::{Bandwidth, TimeSpan};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// Rate of links, where none is given: 10 Gbit/s.
const BANDWIDTH: u64 = 10_000_000_000;
/// Time of a message, where none is given.
const LATENCY: u64 = 50_000;

/// Who adds up the gradients. Written `shared`, or `{by: shared, at: ADDRESS, token: SECRET}`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Aggregation {
    /// Who does it.
    pub by: By,
    /// The machine of the aggregators, by the address of its transport service; none: this one.
    pub at: Option<Located<String>>,
    /// A secret of the job: programs without it can neither read nor write its tensors.
    pub token: Option<Secret>,
    /// Rate of the links, for the comparison.
    pub bandwidth: Option<Located<Bandwidth>>,
    /// Time of a message in one direction, for the comparison.
    pub latency: Option<Located<TimeSpan>>,
}

/// Who adds up the gradients of a training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The ranks among themselves, by an all-reduce of their group.
    #[default]
    Ranks,
    /// Aggregators, which also keep the parameters: `tidemill agg serve`.
    Shared,
    /// The one of both that is expected to be quicker.
    Auto,
}

/// The long form.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Long {
    /// Who adds up the gradients.
    by: By,
    /// The machine of the aggregators, by the address of its transport service, such as `tcp://10.0.0.5:7500`. Default: this machine.
    #[serde(default)]
    at: Option<Located<String>>,
    /// A secret of the job: programs without it can neither read nor write its tensors. Needed with `at`.
    #[serde(default)]
    token: Option<Secret>,
    /// Rate of the links, for the comparison of both. Default: 10Gbps.
    #[serde(default)]
    bandwidth: Option<Located<Bandwidth>>,
    /// Time of a message in one direction, for the comparison of both. Default: 50us.
    #[serde(default)]
    latency: Option<Located<TimeSpan>>,
}

impl Aggregation {
    /// Rate of the links, in bytes per second.
    pub fn rate(&self) -> f64 {
        self.bandwidth.as_ref().map_or(BANDWIDTH, |given| given.value.0) as f64 / 8.0
    }

    /// Time of a message in one direction.
    pub fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency.as_ref().map_or(LATENCY, |given| given.value.0))
    }
}

impl TrainSpec {
    /// Checks who adds up the gradients.
    pub(super) fn check_aggregation(&self, wrong: &mut impl FnMut(String, &Span, &str)) {
        let Located { value: own, span } = &self.aggregation;
        if own.bandwidth.as_ref().is_some_and(|given| given.value.0 == 0) {
            wrong(
                "links without a rate carry nothing".to_owned(),
                span,
                "write for example `bandwidth: 1Gbps`",
            );
        }
        if own.by == By::Ranks {
            return;
        }
        if self.model.kind.value == TrainedKind::Mixture {
            let text = "aggregators add up the gradients of a perceptron only".to_owned();
            wrong(text, span, "leave `aggregation` out, or write `kind: perceptron`");
        }
        if self.survive.value > 0 {
            let text = "a training with aggregators waits for a lost rank, and does not continue without it";
            let help = "leave `survive` out, or write `aggregation: ranks`";
            wrong(text.to_owned(), &self.survive.span, help);
        }
        let Some(at) = &own.at else { return };
        if !at.value.strip_prefix("tcp://").is_some_and(|rest| rest.contains(':')) {
            let text = format!("`{at}` is no address of a transport service");
            wrong(text, &at.span, "write `at: tcp://HOST:7500`");
        }
        if own.token.is_none() {
            let text = "every program that reaches these aggregators could change the training".to_owned();
            wrong(text, &at.span, "write `token: {secret_file: FILE}` beside it");
        }
    }
}

impl<'de> Deserialize<'de> for Aggregation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of;
        impl<'de> Visitor<'de> for Of {
            type Value = Aggregation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`ranks`, `shared`, `auto`, or a map such as `{by: shared, at: tcp://HOST:7500}`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Aggregation, E> {
                let by = match text {
                    "ranks" => By::Ranks,
                    "shared" => By::Shared,
                    "auto" => By::Auto,
                    other => {
                        let text = format!("`{other}` does not add up gradients");
                        return Err(E::custom(coded("E0761", text, "write `ranks`, `shared` or `auto`")));
                    }
                };
                Ok(Aggregation { by, ..Aggregation::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Aggregation, A::Error> {
                let Long { by, at, token, bandwidth, latency } =
                    Long::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Aggregation { by, at, token, bandwidth, latency })
            }
        }
        deserializer.deserialize_any(Of)
    }
}

impl JsonSchema for Aggregation {
    fn schema_name() -> Cow<'static, str> {
        "Aggregation".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (by, long) = (generator.subschema_for::<By>(), generator.subschema_for::<Long>());
        json_schema!({
            "description": "Who adds up the gradients: `ranks`, `shared`, `auto`, or a map with the address of the aggregators.",
            "anyOf": [by, long]
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::job::JobFile;

    fn of(more: &str) -> Result<Aggregation, String> {
        let text = format!(
            "version: 1\njob:\n  name: a\n  kind: train\n  gang: 2\n  train:\n    {{dataset: d.csv, inputs: [x], label: y, steps: 1, {more}}}\n"
        );
        let parsed = JobFile::parse(&text, "job.yaml").map_err(|errors| errors.to_string())?;
        Ok(parsed.job.train.unwrap().aggregation.value)
    }

    #[test]
    fn a_word_or_a_map_says_who_adds_up() {
        let model = "model: {kind: perceptron}";
        assert_eq!(of(model).unwrap(), Aggregation::default());
        assert_eq!(of(&format!("{model}, aggregation: auto")).unwrap().by, By::Auto);
        let long = "{by: shared, token: a, bandwidth: 1Gbps, latency: 1ms}";
        let long = of(&format!("{model}, aggregation: {long}")).unwrap();
        assert_eq!((long.by, long.rate(), long.latency()), (By::Shared, 125e6, Duration::from_millis(1)));
        assert!(!format!("{long:?}").contains("\"a\""), "the token is printed");
    }

    #[test]
    fn each_mistake_has_its_place_and_its_fix() {
        for (more, words) in [
            ("aggregation: both", "write `ranks`, `shared` or `auto`"),
            ("aggregation: {by: both}", "shared"),
            ("aggregation: {at: 'tcp://a:1'}", "by"),
            ("aggregation: {by: shared, tokens: a}", "did you mean `token`?"),
            ("aggregation: {by: auto, bandwidth: 0bps}", "`bandwidth: 1Gbps`"),
            ("aggregation: {by: shared, at: 10.0.0.5, token: a}", "write `at: tcp://HOST:7500`"),
            ("aggregation: {by: shared, at: 'tcp://a:1'}", "write `token: {secret_file: FILE}`"),
            ("aggregation: shared, survive: 1", "leave `survive` out"),
        ] {
            let found = of(&format!("model: {{kind: perceptron}}, {more}")).unwrap_err();
            assert!(found.contains(words) && found.contains("7:"), "`{words}` is not in\n{found}");
        }
        let mixture = of("model: {kind: mixture, experts: 2}, aggregation: shared").unwrap_err();
        assert!(mixture.contains("write `kind: perceptron`") && mixture.contains("7:"), "{mixture}");
    }
}
