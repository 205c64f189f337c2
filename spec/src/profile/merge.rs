//! Merging of profiles.
//!
//! Figures are identified by their subject: a service by operator, variant, backend and worker type, a message by its
//! edge and variants. Of two figures with one subject the later counts, but a predicted one never replaces another. So
//! merging is associative and idempotent; it is not commutative.
use super::{Accuracy, How, MessageSize, Profile};
use crate::diagnostic::{Diagnostic, Diagnostics};
use std::collections::BTreeMap;

/// A merged profile with notes for the user.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// The profile.
    pub profile: Profile,
    /// Differences and decisions.
    pub notes: Vec<Note>,
}

/// A difference between two merged profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The workflow changed between the two.
    OtherWorkflow,
    /// A type of machine differs between the two: figures of both now have one name.
    OtherMachine(String),
}

impl Profile {
    /// Merges this profile with a later one.
    ///
    /// # Errors
    /// `E0806` if they are about different workflows or their accuracies are of different metrics or sinks.
    pub fn merge(&self, later: &Profile) -> Result<Merged, Diagnostics> {
        let mut found = Diagnostics::new();
        if self.workflow.name != later.workflow.name {
            let message =
                format!("one profile is of `{}`, the other of `{}`", self.workflow.name, later.workflow.name);
            found.push(
                Diagnostic::error("E0806", message).with_help("merge only profiles of the same workflow"),
            );
        }
        if let (Some(first), Some(second)) = (&self.accuracy, &later.accuracy)
            && (&first.metric, &first.sink) != (&second.metric, &second.sink)
        {
            let message = format!(
                "the accuracies are not of the same kind: `{}` and `{}`",
                first.metric, second.metric
            );
            found.push(
                Diagnostic::error("E0806", message).with_help("remove `accuracy` from one of the two files"),
            );
        }
        found.into_result(())?;
        let mut notes = Vec::new();
        if let (Some(first), Some(second)) = (&self.workflow.digest, &later.workflow.digest)
            && first != second
        {
            notes.push(Note::OtherWorkflow);
        }
        for machine in &self.machines {
            let facts = |m: &super::Machine| (m.cpu.clone(), m.cores, m.memory, m.factor);
            if later.machine(&machine.worker_type).is_some_and(|other| facts(other) != facts(machine)) {
                notes.push(Note::OtherMachine(machine.worker_type.clone()));
            }
        }
        let mut profile = Profile {
            version: 1,
            workflow: later.workflow.clone(),
            machines: keyed(&self.machines, &later.machines, |m| m.worker_type.clone(), |m| m.how),
            services: keyed(
                &self.services,
                &later.services,
                |s| (s.operator.clone(), s.variant.clone(), s.backend.clone(), s.worker_type.clone()),
                |s| s.how,
            ),
            ratios: keyed(
                &self.ratios,
                &later.ratios,
                |r| (r.operator.clone(), r.holds_for()),
                |_| How::Measured,
            ),
            messages: keyed(&self.messages, &later.messages, message_key, |_| How::Measured),
            accuracy: match (&self.accuracy, &later.accuracy) {
                (Some(first), Some(second)) => Some(first.merge(second)),
                (first, second) => second.clone().or_else(|| first.clone()),
            },
        };
        profile.workflow.digest = later.workflow.digest.clone().or_else(|| self.workflow.digest.clone());
        Ok(Merged { profile, notes })
    }
}

impl Accuracy {
    /// Merges accuracies; `later` counts for equal subjects. Sample counts move into the rows if they differ.
    fn merge(&self, later: &Accuracy) -> Accuracy {
        let same = self.samples == later.samples;
        let rows = |accuracy: &Accuracy| {
            let mut rows = accuracy.end_to_end.clone();
            if !same {
                rows.iter_mut().for_each(|row| row.samples = row.samples.or(accuracy.samples));
            }
            rows
        };
        Accuracy {
            metric: later.metric.clone(),
            sink: later.sink.clone(),
            samples: if same { later.samples } else { None },
            // If one of the two was scored on the workflow's own samples, so were some of the rows.
            scored_on: self.scored_on.as_ref().and(later.scored_on.clone()),
            end_to_end: keyed(&rows(self), &rows(later), |row| row.variants.clone(), |_| How::Measured),
            response: keyed(
                &self.response,
                &later.response,
                |row| {
                    let bits = |(id, accuracy): (&String, &crate::units::Percent)| {
                        (id.clone(), accuracy.0.to_bits())
                    };
                    let inputs: BTreeMap<String, u64> = row.inputs.iter().map(bits).collect();
                    (row.operator.clone(), row.variant.clone(), inputs)
                },
                |_| How::Measured,
            ),
            models: keyed(
                &self.models,
                &later.models,
                |metric| (metric.operator.clone(), metric.variant.clone()),
                |_| How::Measured,
            ),
        }
    }
}

/// Key of a message.
pub(super) fn message_key(message: &MessageSize) -> (String, String, u32, BTreeMap<String, String>) {
    (message.from.clone(), message.to.clone(), message.input, message.variants.clone())
}

/// Entries of both by key, in the order of their first appearance; of two with equal keys the later counts, unless it
/// is predicted and the other is not.
fn keyed<T: Clone, K: Ord>(
    first: &[T],
    second: &[T],
    key: impl Fn(&T) -> K,
    how: impl Fn(&T) -> How,
) -> Vec<T> {
    let mut places: BTreeMap<K, usize> = BTreeMap::new();
    let mut out: Vec<T> = Vec::new();
    for entry in first.iter().chain(second) {
        match places.get(&key(entry)) {
            None => {
                places.insert(key(entry), out.len());
                out.push(entry.clone());
            }
            Some(&place) => {
                if how(entry) != How::Predicted || how(&out[place]) == How::Predicted {
                    out[place] = entry.clone();
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{AccuracyRow, BatchTime, Machine, ModelMetric, Ratio, ResponseRow, Service};
    use crate::units::{Bytes, Percent, TimeSpan};
    use proptest::prelude::*;

    fn how() -> impl Strategy<Value = How> {
        prop::sample::select(vec![How::Measured, How::Limited, How::Published, How::Predicted])
    }

    /// Few names, so that entries often collide.
    fn name() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["a".to_string(), "b".to_string()])
    }

    fn service() -> impl Strategy<Value = Service> {
        (name(), prop::option::of(name()), name(), how(), 1..9u64).prop_map(
            |(operator, variant, worker_type, how, n)| Service {
                operator,
                variant,
                backend: None,
                worker_type,
                how,
                model: None,
                load_time: None,
                peak_memory: Some(Bytes(n)),
                model_part: None,
                within: None,
                after_pause: None,
                batches: vec![BatchTime {
                    batch: 1,
                    samples: Some(n),
                    mean: Some(TimeSpan(n)),
                    deviation: None,
                    p50: None,
                    p75: None,
                    p90: None,
                    p99: None,
                    points: Vec::new(),
                }],
            },
        )
    }

    fn machine() -> impl Strategy<Value = Machine> {
        (name(), how(), prop::option::of(1..3u8)).prop_map(|(worker_type, how, cores)| Machine {
            worker_type,
            how,
            cpu: None,
            cores: cores.map(f64::from),
            memory: None,
            factor: None,
            source: None,
            overheads: None,
        })
    }

    fn accuracy() -> impl Strategy<Value = Accuracy> {
        let row = (name(), 0..9u8, prop::option::of(1..9u64));
        (prop::collection::vec(row, 0..3), prop::option::of(1..9u64)).prop_map(|(rows, samples)| Accuracy {
            metric: "m".to_string(),
            sink: None,
            samples,
            scored_on: None,
            end_to_end: rows
                .iter()
                .map(|(variant, accuracy, samples)| AccuracyRow {
                    variants: BTreeMap::from([("o".to_string(), variant.clone())]),
                    accuracy: Percent(f64::from(*accuracy)),
                    interval: None,
                    samples: *samples,
                })
                .collect(),
            response: rows
                .iter()
                .map(|(variant, accuracy, _)| ResponseRow {
                    operator: "o".to_string(),
                    variant: Some(variant.clone()),
                    inputs: BTreeMap::from([("i".to_string(), Percent(f64::from(*accuracy % 2)))]),
                    output: Percent(f64::from(*accuracy)),
                })
                .collect(),
            models: rows
                .iter()
                .map(|(variant, accuracy, samples)| ModelMetric {
                    operator: "o".to_string(),
                    variant: variant.clone(),
                    name: "n".to_string(),
                    value: f64::from(*accuracy),
                    interval: None,
                    samples: *samples,
                    higher_is_better: true,
                    accuracy: None,
                })
                .collect(),
        })
    }

    prop_compose! {
        fn profile()(services in prop::collection::vec(service(), 0..4), machines in prop::collection::vec(machine(), 0..3),
                     ratios in prop::collection::vec((name(), 0..4u8), 0..3), messages in prop::collection::vec((name(), name(), 1..9u64), 0..3),
                     accuracy in prop::option::of(accuracy()), digest in prop::option::of(name())) -> Profile {
            let ratio = |(operator, n): (String, u8)| Ratio { operator, variant: None, variants: BTreeMap::new(), output_per_input: n.into(), samples: None };
            let message = |(from, to, n)| MessageSize {
                from, to, input: 0, variants: BTreeMap::new(), bytes_per_record: Bytes(n), samples: None,
            };
            let mut profile = Profile {
                services, machines, accuracy,
                ratios: ratios.into_iter().map(ratio).collect(),
                messages: messages.into_iter().map(message).collect(),
                ..Profile::empty("w")
            };
            profile.workflow.digest = digest;
            // Duplicates inside one file are rejected when it is read.
            profile.accuracy = profile.accuracy.map(|accuracy| accuracy.merge(&accuracy));
            merged(&Profile::empty("w"), &profile)
        }
    }

    fn merged(first: &Profile, second: &Profile) -> Profile {
        first.merge(second).expect("of the same workflow").profile
    }

    proptest! {
        #[test]
        fn merging_is_associative(a in profile(), b in profile(), c in profile()) {
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        }

        #[test]
        fn merging_is_idempotent(a in profile(), b in profile()) {
            let once = merged(&a, &b);
            prop_assert_eq!(&merged(&once, &b), &once);
            prop_assert_eq!(&merged(&once, &once), &once);
        }

        #[test]
        fn nothing_is_neutral(a in profile()) {
            prop_assert_eq!(&merged(&a, &Profile::empty("w")), &a);
            prop_assert_eq!(&merged(&Profile::empty("w"), &a), &a);
        }

        #[test]
        fn measured_figures_survive_predicted_ones(a in profile(), b in profile()) {
            let both = merged(&a, &b);
            for service in a.services.iter().filter(|service| service.how != How::Predicted) {
                let same = |s: &&Service| (&s.operator, &s.variant, &s.worker_type) == (&service.operator, &service.variant, &service.worker_type);
                prop_assert!(both.services.iter().find(same).is_some_and(|s| s.how != How::Predicted));
            }
        }
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let (one, other) = (Profile::empty("one"), Profile::empty("other"));
        let refused = one.merge(&other).expect_err("two workflows");
        assert!(refused.iter().all(|finding| finding.code == "E0806"), "{refused}");
        let with = |metric: &str| Profile {
            accuracy: Some(Accuracy {
                metric: metric.to_string(),
                sink: None,
                samples: None,
                scored_on: None,
                end_to_end: Vec::new(),
                response: Vec::new(),
                models: Vec::new(),
            }),
            ..Profile::empty("w")
        };
        assert!(with("a").merge(&with("b")).is_err());
        assert!(with("a").merge(&with("a")).is_ok());
    }

    #[test]
    fn differences_are_noted() {
        let with = |cores: f64, digest: &str| {
            let mut profile = Profile::empty("w");
            profile.workflow.digest = Some(digest.to_string());
            profile.machines.push(Machine {
                worker_type: "m".to_string(),
                how: How::Measured,
                cpu: None,
                cores: Some(cores),
                memory: None,
                factor: None,
                source: None,
                overheads: None,
            });
            profile
        };
        let notes = with(1.0, "a").merge(&with(2.0, "b")).expect("fits").notes;
        assert_eq!(notes, [Note::OtherWorkflow, Note::OtherMachine("m".to_string())]);
        assert!(with(1.0, "a").merge(&with(1.0, "a")).expect("fits").notes.is_empty());
    }
}
