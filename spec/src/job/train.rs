//! The `train` section of a job: a dataset, a model, and how it is trained.
//!
//! ```
//! use tidemill_spec::job::JobFile;
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
//!     model: {kind: perceptron, hidden: [64]}
//!     steps: 2000
//!     held_out: 20%
//! ";
//! let job = JobFile::parse(text, "job.yaml")?.job;
//! let train = job.train.unwrap();
//! assert_eq!((train.model.hidden.value.0.as_slice(), train.batch.value), (&[64][..], 32));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use super::aggregation::Aggregation;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::{Located, Span};
use crate::units::Percent;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;

/// Weight of the loss that balances experts, where nothing else is said.
const BALANCE: f64 = 0.05;
/// Examples of a batch, at most: the gradients of a step are added up as whole numbers without overflow.
const MOST_BATCH: u32 = 8000;

/// A training: what a job of kind `train` does.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainSpec {
    /// A folder that `sink: dataset` wrote, or a `.csv` file with a header; relative to this file.
    pub dataset: Located<String>,
    /// Columns that are the input.
    pub inputs: Vec<Located<String>>,
    /// Column with the class.
    pub label: Located<String>,
    /// The model.
    pub model: TrainedModel,
    /// A model file whose weights the training starts from. Default: random weights.
    #[serde(default)]
    pub from: Option<Located<String>>,
    /// Steps of the training; or `epochs`.
    #[serde(default)]
    pub steps: Option<Located<u64>>,
    /// Times that all examples are used; or `steps`.
    #[serde(default)]
    pub epochs: Option<Located<u64>>,
    /// Examples of a step. Default: 32.
    #[serde(default = "batch")]
    pub batch: Located<u32>,
    /// Rate of learning. Default: 0.05.
    #[serde(default = "rate")]
    pub rate: Located<f64>,
    /// Part of the last change that is added to each change, from 0 on and below 1. Default: 0.9.
    #[serde(default = "momentum")]
    pub momentum: Located<f64>,
    /// Seed of the first weights, the order of examples and the held-out part. Default: 1.
    #[serde(default = "seed")]
    pub seed: u64,
    /// Part of the examples that is not trained with, and measures the accuracy. Default: 20%.
    #[serde(default = "held_out")]
    pub held_out: Located<Percent>,
    /// Steps between checkpoints; 0: only when the training is asked to end. Default: 250.
    #[serde(default = "checkpoint_every")]
    pub checkpoint_every: u64,
    /// Steps after which experts get new places by their loads, and lost ranks that came back take part; 0: never. Default: 200.
    #[serde(default = "rebalance_every")]
    pub rebalance_every: u64,
    /// Ranks that may be lost while the others continue. Each expert of a mixture has one replica more. Default: 0.
    #[serde(default)]
    pub survive: Located<u32>,
    /// Who adds up the gradients: `ranks`, aggregators that several jobs share (`shared`), or the quicker ones (`auto`). Default: `ranks`.
    #[serde(default)]
    pub aggregation: Located<Aggregation>,
}

/// The model that is trained.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainedModel {
    /// Kind of model.
    pub kind: Located<TrainedKind>,
    /// Values of each hidden layer: a list for a perceptron, one number for the experts of a mixture. Default: 64.
    #[serde(default)]
    pub hidden: Located<Sizes>,
    /// Experts of a mixture.
    #[serde(default)]
    pub experts: Option<Located<u32>>,
    /// Experts that a rank of a mixture holds. Default: as few as hold all replicas.
    #[serde(default)]
    pub slots: Option<Located<u32>>,
    /// Weight of the loss that keeps the loads of experts even. Default: 0.05.
    #[serde(default)]
    pub balance: Option<Located<f64>>,
}

/// Kind of model that is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainedKind {
    /// Linear layers with rectifiers between them. The result is an ONNX file with its model file.
    Perceptron,
    /// A gate that gives each example to one of several experts, which are held by ranks.
    Mixture,
}

/// Sizes of layers. Written `64` or `[64, 32]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes(pub Vec<u32>);

impl Default for Sizes {
    fn default() -> Self {
        Self(vec![64])
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        write!(f, "[{}]", texts.join(", "))
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of;
        impl<'de> Visitor<'de> for Of {
            type Value = Sizes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number such as `64`, or a list such as `[64, 32]`")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Sizes, E> {
                let size = u32::try_from(value);
                size.map(|size| Sizes(vec![size])).map_err(|_| E::custom("write a number below 2^32"))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Sizes, E> {
                let size = u64::try_from(value);
                size.map_err(|_| E::custom("write a number from 0 on")).and_then(|size| self.visit_u64(size))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sizes, A::Error> {
                let mut sizes = Vec::new();
                while let Some(size) = list.next_element()? {
                    sizes.push(size);
                }
                Ok(Sizes(sizes))
            }
        }
        deserializer.deserialize_any(Of)
    }
}

impl JsonSchema for Sizes {
    fn schema_name() -> Cow<'static, str> {
        "Sizes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let size = json_schema!({"type": "integer", "minimum": 1});
        json_schema!({
            "description": "Sizes of layers: `64` or `[64, 32]`.",
            "anyOf": [size, {"type": "array", "items": size}]
        })
    }
}

fn batch() -> Located<u32> {
    32.into()
}

fn rate() -> Located<f64> {
    0.05.into()
}

fn momentum() -> Located<f64> {
    0.9.into()
}

fn seed() -> u64 {
    1
}

fn held_out() -> Located<Percent> {
    Percent(20.0).into()
}

fn checkpoint_every() -> u64 {
    250
}

fn rebalance_every() -> u64 {
    200
}

impl TrainSpec {
    /// Weight of the loss that balances experts.
    pub fn balance(&self) -> f64 {
        self.model.balance.as_ref().map_or(BALANCE, |balance| balance.value)
    }

    /// Experts that each of so many ranks holds.
    pub fn slots(&self, ranks: u32) -> u32 {
        let experts = self.model.experts.as_ref().map_or(1, |experts| experts.value);
        let replicas = u64::from(experts) * (u64::from(self.survive.value) + 1);
        let fewest = replicas.div_ceil(u64::from(ranks.max(1))).min(u64::from(experts));
        self.model.slots.as_ref().map_or(u32::try_from(fewest).unwrap_or(u32::MAX), |slots| slots.value)
    }

    /// Checks the section for a job with so many ranks.
    pub fn check(&self, ranks: u32) -> Diagnostics {
        let mut found = Diagnostics::new();
        let mut wrong = |text: String, at: &Span, help: &str| {
            found.push(Diagnostic::error("E0761", text).at(at.clone()).with_help(help));
        };
        if self.inputs.is_empty() {
            let text = "a training needs columns as inputs".to_owned();
            wrong(text, &self.dataset.span, "write `inputs: [COLUMN]`");
        }
        if let Some(input) = self.inputs.iter().find(|input| **input == self.label) {
            let text = format!("column `{input}` is both an input and the label");
            wrong(text, &input.span, "name another column for one of them");
        }
        match (&self.steps, &self.epochs) {
            (None, None) => {
                let text = "the training has no end".to_owned();
                wrong(text, &self.dataset.span, "write `steps: 1000` or `epochs: 10`");
            }
            (Some(_), Some(epochs)) => {
                let text = "a training has `steps` or `epochs`, not both".to_owned();
                wrong(text, &epochs.span, "leave one of them out");
            }
            (Some(count), None) | (None, Some(count)) if count.value == 0 => {
                wrong("a training without steps does nothing".to_owned(), &count.span, "write 1 or more");
            }
            _ => {}
        }
        if self.batch.value == 0 || self.batch.value > MOST_BATCH {
            let text = format!("a batch of {} examples is not possible", self.batch);
            wrong(text, &self.batch.span, "write a number from 1 to 8000");
        }
        if !(self.rate.value > 0.0 && self.rate.value.is_finite()) {
            let text = format!("a rate of {} is not possible", self.rate);
            wrong(text, &self.rate.span, "write a number above 0, such as 0.05");
        }
        if !(0.0..1.0).contains(&self.momentum.value) {
            let text = format!("a momentum of {} is not possible", self.momentum);
            wrong(text, &self.momentum.span, "write a number from 0 on and below 1, such as 0.9");
        }
        if self.held_out.value.0 >= 100.0 {
            let text = "nothing is left to train with".to_owned();
            wrong(text, &self.held_out.span, "write a part below 100%, such as `20%`");
        }
        if self.survive.value >= ranks {
            let text = format!("{} of {ranks} ranks cannot be lost", self.survive);
            wrong(text, &self.survive.span, "write a number below that of `gang`, or a larger `gang`");
        }
        self.check_model(ranks, &mut wrong);
        self.check_aggregation(&mut wrong);
        found
    }

    fn check_model(&self, ranks: u32, wrong: &mut impl FnMut(String, &Span, &str)) {
        let model = &self.model;
        let is_mixture = model.kind.value == TrainedKind::Mixture;
        if model.hidden.value.0.contains(&0) {
            wrong("a layer has at least one value".to_owned(), &model.hidden.span, "write 1 or more");
        }
        if !is_mixture {
            let only = [
                ("experts", model.experts.as_ref().map(|of| &of.span)),
                ("slots", model.slots.as_ref().map(|of| &of.span)),
                ("balance", model.balance.as_ref().map(|of| &of.span)),
            ];
            for (key, span) in only {
                if let Some(span) = span {
                    let help = "write `kind: mixture`, or leave it out";
                    wrong(format!("a perceptron has no `{key}`"), span, help);
                }
            }
            return;
        }
        if model.hidden.value.0.len() != 1 {
            let text = "each expert of a mixture has one hidden layer".to_owned();
            wrong(text, &model.hidden.span, "write one number, such as `hidden: 32`");
        }
        if let Some(from) = &self.from {
            let help = "leave it out, or write `kind: perceptron`";
            wrong("a mixture starts from random weights".to_owned(), &from.span, help);
        }
        if let Some(balance) = model.balance.as_ref().filter(|of| !(of.value >= 0.0 && of.value.is_finite()))
        {
            wrong(format!("a balance of {balance} is not possible"), &balance.span, "write 0 or more");
        }
        let Some(experts) = &model.experts else {
            wrong("a mixture needs experts".to_owned(), &model.kind.span, "write `experts: 8`");
            return;
        };
        if experts.value == 0 {
            wrong("a mixture has at least one expert".to_owned(), &experts.span, "write 1 or more");
            return;
        }
        let replicas = u64::from(experts.value) * (u64::from(self.survive.value) + 1);
        let slots = self.slots(ranks);
        if u64::from(slots) * u64::from(ranks) < replicas && self.survive.value < ranks {
            let span = model.slots.as_ref().map_or(&experts.span, |slots| &slots.span);
            let fewest = replicas.div_ceil(u64::from(ranks.max(1)));
            let text = format!(
                "{ranks} ranks with {slots} slots hold {} replicas, and {replicas} are needed: {} of each expert",
                u64::from(slots) * u64::from(ranks),
                self.survive.value + 1
            );
            wrong(text, span, &format!("write `slots: {fewest}` or more, or a larger `gang`"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::job::JobFile;

    fn of(gang: u32, train: &str) -> Result<TrainSpec, String> {
        let text = format!(
            "version: 1\njob:\n  name: a\n  kind: train\n  gang: {gang}\n  train:\n    {{dataset: d.csv, inputs: [x], {train}}}\n"
        );
        let parsed = JobFile::parse(&text, "job.yaml").map_err(|errors| errors.to_string())?;
        Ok(parsed.job.train.unwrap())
    }

    #[test]
    fn slots_follow_from_experts_and_losses() {
        let train =
            of(4, "label: y, steps: 1, survive: 2, model: {kind: mixture, experts: 8, hidden: 32}").unwrap();
        assert_eq!((train.slots(4), train.slots(1), train.balance()), (6, 8, BALANCE));
        let train = of(4, "label: y, epochs: 2, model: {kind: mixture, experts: 8, slots: 3}").unwrap();
        assert_eq!((train.slots(4), train.model.hidden.value.0.clone()), (3, vec![64]));
    }

    #[test]
    fn each_mistake_has_its_place_and_its_fix() {
        let perceptron = "model: {kind: perceptron}";
        for (train, words) in [
            (format!("label: x, steps: 1, {perceptron}"), "both an input and the label"),
            (format!("label: y, {perceptron}"), "`steps: 1000` or `epochs: 10`"),
            (format!("label: y, steps: 1, epochs: 1, {perceptron}"), "leave one of them out"),
            (format!("label: y, steps: 0, {perceptron}"), "7:52"),
            (format!("label: y, steps: 1, batch: 9000, {perceptron}"), "from 1 to 8000"),
            (format!("label: y, steps: 1, rate: -1, {perceptron}"), "such as 0.05"),
            (format!("label: y, steps: 1, momentum: 1, {perceptron}"), "below 1, such as 0.9"),
            (format!("label: y, steps: 1, held_out: 100%, {perceptron}"), "below 100%"),
            (format!("label: y, steps: 1, survive: 2, {perceptron}"), "below that of `gang`"),
            ("label: y, steps: 1, model: {kind: perceptron, experts: 2}".into(), "has no `experts`"),
            ("label: y, steps: 1, model: {kind: perceptron, hidden: [0]}".into(), "at least one value"),
            ("label: y, steps: 1, model: {kind: perceptron, hidden: many}".into(), "`[64, 32]`"),
            ("label: y, steps: 1, model: {kind: mixture}".into(), "write `experts: 8`"),
            ("label: y, steps: 1, model: {kind: mixture, experts: 8, hidden: [1, 2]}".into(), "`hidden: 32`"),
            ("label: y, steps: 1, model: {kind: mixture, experts: 8, slots: 2}".into(), "write `slots: 4`"),
            ("label: y, steps: 1, model: {kind: mixture, experts: 8}, from: a.yaml".into(), "random weights"),
        ] {
            let found = of(2, &train).unwrap_err();
            assert!(found.contains(words), "`{words}` is not in\n{found}");
        }
    }
}
