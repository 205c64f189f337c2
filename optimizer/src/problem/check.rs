//! Checks a problem before it is planned.
use super::{AccuracyModel, Problem, Producer, Remote};

/// An error in a problem.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProblemError {
    /// A position out of range.
    #[error("{what} names {index}, but there are only {count}")]
    Position {
        /// The item with the position.
        what: String,
        /// The position.
        index: usize,
        /// Number of entries.
        count: usize,
    },
    /// A list has the wrong length.
    #[error("{what} has {found} entries instead of {expected}")]
    Length {
        /// The list.
        what: String,
        /// Its length.
        found: usize,
        /// The right length.
        expected: usize,
    },
    /// A number is outside its range.
    #[error("{what} is {value}: {range}")]
    Number {
        /// The number.
        what: String,
        /// Its value.
        value: f64,
        /// Its allowed range.
        range: &'static str,
    },
    /// The shape of the workflow is wrong.
    #[error("{0}")]
    Shape(String),
}

impl Problem {
    /// Checks positions, lengths, ranges and the topological order.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), ProblemError> {
        self.check_machines()?;
        self.check_stream()?;
        self.check_by_variants()?;
        self.check_accuracy()?;
        self.check_limits()
    }

    fn check_machines(&self) -> Result<(), ProblemError> {
        let locations = self.locations.len();
        length("routes", self.routes.len(), locations)?;
        for (from, row) in self.routes.iter().enumerate() {
            length(&format!("routes[{from}]"), row.len(), locations)?;
            for route in row.iter().flatten() {
                number("a route's price", route.price, 0.0..=f64::MAX)?;
                number("a route's delay", route.delay, 0.0..=f64::MAX)?;
                if let Some(bandwidth) = route.bandwidth {
                    number("a route's bandwidth", bandwidth, 0.0..=f64::MAX)?;
                }
            }
        }
        for class in &self.worker_classes {
            position(&format!("worker class {}", class.worker_type), class.location, locations)?;
            number("a worker's price", class.price, 0.0..=f64::MAX)?;
            if class.count > i32::MAX as u32 {
                return Err(ProblemError::Number {
                    what: format!("the count of {}", class.worker_type),
                    value: f64::from(class.count),
                    range: "too many",
                });
            }
        }
        Ok(())
    }

    fn check_stream(&self) -> Result<(), ProblemError> {
        for source in &self.sources {
            number(&format!("the rate of {}", source.id), source.rate, 0.0..=f64::MAX)?;
            for (location, share) in &source.locations {
                position(&source.id, *location, self.locations.len())?;
                number("a source's share", *share, 0.0..=1.0)?;
            }
            let sum: f64 = source.locations.iter().map(|(_, share)| share).sum();
            number(&format!("the sum of the shares of {}", source.id), sum, 1.0 - 1e-9..=1.0 + 1e-9)?;
        }
        for (index, operator) in self.operators.iter().enumerate() {
            let id = &operator.id;
            number(&format!("the rate of {id}"), operator.rate, 0.0..=f64::MAX)?;
            if operator.variants.is_empty() {
                return Err(ProblemError::Shape(format!("{id} has no variant")));
            }
            for variant in &operator.variants {
                if operator.weightless {
                    if variant.modes.iter().any(|modes| !modes.is_empty()) {
                        return Err(ProblemError::Shape(format!("{id} is weightless and has modes")));
                    }
                    continue;
                }
                length(
                    &format!("modes of {id}/{}", variant.id),
                    variant.modes.len(),
                    self.worker_classes.len(),
                )?;
                let is_sorted =
                    |modes: &Vec<super::ServiceMode>| modes.is_sorted_by_key(|mode| mode.remote.is_some());
                if !variant.modes.iter().all(is_sorted) {
                    let text = format!("{id}/{} has a mode with a device before one without", variant.id);
                    return Err(ProblemError::Shape(text));
                }
                for mode in variant.modes.iter().flatten() {
                    let what = |of: &str| format!("{of} of {id}/{}", variant.id);
                    number(&what("the seconds per record"), mode.seconds_per_record, 0.0..=f64::MAX)?;
                    number(&what("the seconds of a call"), mode.call_seconds, 0.0..=f64::MAX)?;
                    number(&what("the batching budget"), mode.fill_seconds, 0.0..=f64::MAX)?;
                    number(&what("the mean"), mode.mean_call_seconds, 0.0..=f64::MAX)?;
                    number(&what("the variance"), mode.variance_call_seconds, 0.0..=f64::MAX)?;
                    number(&what("the memory"), mode.memory_bytes, 0.0..=f64::MAX)?;
                    if let Some(remote) = &mode.remote {
                        self.check_remote(remote, mode.batch, &what(""))?;
                    }
                    if mode.batch == 0 {
                        return Err(ProblemError::Shape(what("a batch of 0")));
                    }
                }
            }
            if self.inputs_of(index).is_empty() {
                return Err(ProblemError::Shape(format!("{id} has no input")));
            }
        }
        for edge in &self.edges {
            position("an edge", edge.to, self.operators.len())?;
            let sizes = match edge.from {
                Producer::Source(source) => {
                    position("an edge", source, self.sources.len())?;
                    1
                }
                Producer::Operator(operator) => {
                    position("an edge", operator, self.operators.len())?;
                    if operator >= edge.to {
                        let id = &self.operators[operator].id;
                        return Err(ProblemError::Shape(format!(
                            "the edge from {id} leads to an earlier operator"
                        )));
                    }
                    self.operators[operator].variants.len()
                }
            };
            length("bytes of an edge", edge.bytes.len(), sizes)?;
            number("the rate of an edge", edge.rate, 0.0..=f64::MAX)?;
            for bytes in &edge.bytes {
                number("the bytes of an edge", *bytes, 0.0..=f64::MAX)?;
            }
        }
        Ok(())
    }

    fn check_remote(&self, remote: &Remote, batch: u32, what: &str) -> Result<(), ProblemError> {
        position(&format!("a device{what}"), remote.class, self.worker_classes.len())?;
        let run = &remote.run;
        if run.batch != batch || run.remote.is_some() {
            return Err(ProblemError::Shape(format!(
                "the run on a device{what} has another batch, or a device"
            )));
        }
        let has_modes =
            |variant: &super::Variant| variant.modes.get(remote.class).is_some_and(|modes| !modes.is_empty());
        if self.operators.iter().flat_map(|operator| &operator.variants).any(has_modes) {
            return Err(ProblemError::Shape(format!("the device{what} is a worker")));
        }
        let numbers =
            [run.seconds_per_record, run.call_seconds, run.mean_call_seconds, run.variance_call_seconds];
        let more = [run.memory_bytes, remote.sent_bytes, remote.received_bytes];
        numbers
            .into_iter()
            .chain(more)
            .try_for_each(|value| number(&format!("a figure of a device{what}"), value, 0.0..=f64::MAX))
    }

    fn check_by_variants(&self) -> Result<(), ProblemError> {
        self.rates.as_ref().map_or(Ok(()), |rates| rates.check(self))?;
        let twice = |(at, sizes): (usize, &super::Sizes)| {
            self.sizes[..at].iter().any(|other| other.edge == sizes.edge)
        };
        if self.sizes.iter().enumerate().any(twice) {
            return Err(ProblemError::Shape("an edge has its sizes twice".to_owned()));
        }
        self.sizes.iter().try_for_each(|sizes| sizes.check(self))
    }

    fn check_accuracy(&self) -> Result<(), ProblemError> {
        let operators = self.operators.len();
        match &self.accuracy {
            AccuracyModel::None => {}
            AccuracyModel::Table(rows) => {
                for row in rows {
                    length("variants of an accuracy row", row.variants.len(), operators)?;
                    for (operator, variant) in self.operators.iter().zip(&row.variants) {
                        position(&operator.id, *variant, operator.variants.len())?;
                    }
                }
            }
            AccuracyModel::RowLookup(tables) => {
                length("accuracy responses", tables.len(), operators)?;
                for (index, (operator, table)) in self.operators.iter().zip(tables).enumerate() {
                    length(&format!("responses of {}", operator.id), table.len(), operator.variants.len())?;
                    for row in table.iter().flatten() {
                        length(
                            &format!("inputs of a response of {}", operator.id),
                            row.inputs.len(),
                            self.inputs_of(index).len(),
                        )?;
                    }
                }
            }
            AccuracyModel::Additive { contributions, .. } => {
                length("accuracy contributions", contributions.len(), operators)?;
                for (operator, values) in self.operators.iter().zip(contributions) {
                    length(
                        &format!("contributions of {}", operator.id),
                        values.len(),
                        operator.variants.len(),
                    )?;
                }
            }
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), ProblemError> {
        number("the largest utilization", self.limits.max_utilization, f64::MIN_POSITIVE..=1.0)?;
        number("the tick", self.limits.tick_seconds, 0.0..=f64::MAX)?;
        number("the time until publication", self.limits.publication_seconds, 0.0..=f64::MAX)?;
        for limit in &self.limits.latency {
            number("a latency limit", limit.seconds, 0.0..=f64::MAX)?;
            number("a percentile", limit.percentile, f64::MIN_POSITIVE..=100.0 - 1e-9)?;
            if let Some(sink) = limit.sink {
                position("a latency limit", sink, self.operators.len())?;
            }
        }
        Ok(())
    }
}

fn position(what: &str, index: usize, count: usize) -> Result<(), ProblemError> {
    if index < count { Ok(()) } else { Err(ProblemError::Position { what: what.to_owned(), index, count }) }
}

fn length(what: &str, found: usize, expected: usize) -> Result<(), ProblemError> {
    if found == expected {
        Ok(())
    } else {
        Err(ProblemError::Length { what: what.to_owned(), found, expected })
    }
}

fn number(what: &str, value: f64, range: std::ops::RangeInclusive<f64>) -> Result<(), ProblemError> {
    if value.is_finite() && range.contains(&value) {
        return Ok(());
    }
    let range = if *range.start() == 0.0 && *range.end() == f64::MAX {
        "not a number from 0 on"
    } else {
        "out of range"
    };
    Err(ProblemError::Number { what: what.to_owned(), value, range })
}
