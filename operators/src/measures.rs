//! Measures by which the rows of a sink are compared with the truth, beside the share of equal answers.
//!
//! | measure | what it gives | interval |
//! |---|---|---|
//! | [`Measure::Equal`] | share of equal answers | Wilson |
//! | [`Measure::Leading`] | share of rows whose first k answers hold the right one | Wilson |
//! | [`classes`] | share of equal answers; precision, recall and F1 of each class | Wilson, of the share |
//! | [`numbers`] | mean absolute error and root mean square error | none |
//! | [`ranks`] | area under the ROC curve | none |
//! | [`boxes`] | mean average precision of boxes | none |
pub mod boxes;
pub mod classes;
pub mod leading;
pub mod numbers;
pub mod ranks;

use boxes::{BoxMeasures, BoxTally, BoxTruth};
use classes::{ClassMeasures, ClassTally};
use numbers::{NumberMeasures, NumberTally};
use ranks::{RankMeasures, RankTally};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A measure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Measure {
    /// An answer is right or wrong.
    #[default]
    Equal,
    /// A tensor of answers, best first: right if the truth is among the first of this number.
    Leading(usize),
    /// As `Equal`, and measures of each class.
    Classes,
    /// Numbers: how far they are from the true ones.
    Numbers,
    /// Scores of a truth that is true or false.
    Ranks,
    /// Boxes of objects in pictures.
    Boxes(Arc<BoxTruth>),
}

impl Measure {
    /// Whether a row by itself is neither right nor wrong.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Numbers | Self::Ranks | Self::Boxes(_))
    }

    /// The accuracy in words, if it is not the share of answers that equal the truth.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Equal | Self::Classes => None,
            Self::Leading(_) => Some("share of rows with the truth among the first answers"),
            Self::Numbers => Some("mean absolute error"),
            Self::Ranks => Some("area under the ROC curve"),
            Self::Boxes(_) => Some("mean average precision, mean of IoU 0.5 to 0.95"),
        }
    }
}

/// Measures of the rows of a closed sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measures {
    /// Of each class.
    Classes(ClassMeasures),
    /// Of numbers.
    Numbers(NumberMeasures),
    /// Of scores.
    Ranks(RankMeasures),
    /// Of boxes.
    Boxes(BoxMeasures),
}

impl Measures {
    /// The accuracy in percent, if it is one of these measures; it has no interval then.
    pub fn percent(&self) -> Option<f64> {
        match self {
            Self::Classes(_) | Self::Numbers(_) => None,
            Self::Ranks(ranks) => Some(ranks.auc_percent),
            Self::Boxes(boxes) => Some(boxes.map_percent),
        }
    }
}

/// The judged rows so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tally {
    Classes(ClassTally),
    Numbers(NumberTally),
    Ranks(RankTally),
    Boxes(BoxTally),
}

impl Tally {
    /// The tally of a measure that needs one.
    pub(crate) fn of(measure: &Measure) -> Option<Self> {
        match measure {
            Measure::Equal | Measure::Leading(_) => None,
            Measure::Classes => Some(Self::Classes(ClassTally::default())),
            Measure::Numbers => Some(Self::Numbers(NumberTally::default())),
            Measure::Ranks => Some(Self::Ranks(RankTally::default())),
            Measure::Boxes(truth) => Some(Self::Boxes(BoxTally::new(truth))),
        }
    }

    /// Adds the rows of a later tally of the same measure.
    pub(crate) fn add(&mut self, later: Self) {
        match (self, later) {
            (Self::Classes(tally), Self::Classes(later)) => tally.add(later),
            (Self::Numbers(tally), Self::Numbers(later)) => tally.add(&later),
            (Self::Ranks(tally), Self::Ranks(later)) => tally.add(later),
            (Self::Boxes(tally), Self::Boxes(later)) => tally.add(later),
            _ => {} // a sink has one measure
        }
    }

    /// Compares with the truth, once no more rows come; `None`: there was nothing to judge.
    pub(crate) fn measures(&self) -> Option<Measures> {
        match self {
            Self::Classes(tally) => tally.measures().map(Measures::Classes),
            Self::Numbers(tally) => tally.measures().map(Measures::Numbers),
            Self::Ranks(tally) => tally.measures().map(Measures::Ranks),
            Self::Boxes(tally) => tally.measures().map(Measures::Boxes),
        }
    }
}
