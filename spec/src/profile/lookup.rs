//! Look-up of figures in a profile.
use super::{AccuracyRow, BatchTime, How, Machine, MessageSize, Profile, Service};
use crate::units::{Bytes, Percentile, TimeSpan};
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl Profile {
    /// Returns the machine of this type.
    pub fn machine(&self, worker_type: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.worker_type == worker_type)
    }

    /// Returns the service times of an operator on a type of worker. Without a backend: of any one, the first in the
    /// file; with one: its own, else those of an unknown backend.
    pub fn service(
        &self,
        operator: &str,
        variant: Option<&str>,
        backend: Option<&str>,
        worker_type: &str,
    ) -> Option<&Service> {
        let fits = |service: &&Service| {
            service.operator == operator
                && service.variant.as_deref() == variant
                && service.worker_type == worker_type
        };
        let mut all = self.services.iter().filter(fits);
        match backend {
            None => all.next(),
            Some(_) => {
                let all: Vec<&Service> = all.collect();
                let named = all.iter().find(|service| service.backend.as_deref() == backend);
                named.or_else(|| all.iter().find(|service| service.backend.is_none())).copied()
            }
        }
    }

    /// For a type of worker with a share of a processor, returns the share, and the type with whole processors of that
    /// machine. A call takes as long as there, while its quota lasts.
    pub fn whole_of(&self, worker_type: &str) -> Option<(f64, &Machine)> {
        let figures = |machine: &Machine| {
            // Measured on one processor, or corrected together for another one.
            let known = match machine.how {
                How::Measured | How::Limited => machine.cpu.is_some(),
                How::Predicted => true,
                How::Published => false,
            };
            known && machine.factor.is_none_or(|factor| factor == 1.0)
        };
        let machine = self.machine(worker_type).filter(|machine| figures(machine))?;
        let share = machine.cores.filter(|cores| *cores < 1.0)?;
        let same = |other: &&Machine| {
            figures(other)
                && other.cpu == machine.cpu
                && (other.how == How::Predicted) == (machine.how == How::Predicted)
                && other.cores.is_some_and(|cores| cores >= 1.0)
        };
        let whole = self.machines.iter().filter(same);
        Some((share, whole.max_by_key(|other| other.how == How::Measured)?))
    }

    /// Returns the additional nanoseconds of a call of any size after a pause; on a share of a processor, those on a
    /// whole one divided by the share. `figure` selects the time of one record to compare. 0 where unknown or negative.
    pub fn longer_after_pause(
        &self,
        service: &Service,
        figure: impl Fn(&BatchTime) -> Option<TimeSpan>,
    ) -> f64 {
        let longer = |service: &Service| {
            let after = figure(&service.after_pause.as_ref()?.times)?;
            Some((after.0 as f64 - figure(service.batch(1)?)?.0 as f64).max(0.0))
        };
        let on_whole = || {
            let (share, whole) = self.whole_of(&service.worker_type)?;
            let (variant, backend) = (service.variant.as_deref(), service.backend.as_deref());
            Some(longer(self.service(&service.operator, variant, backend, &whole.worker_type)?)? / share)
        };
        longer(service).or_else(on_whole).unwrap_or(0.0)
    }

    /// Returns the output records per input record of an operator with these variants (by operator): of the entries
    /// that hold, the one that names most variants, and of several the last. Without any: 1.
    pub fn output_per_input(&self, operator: &str, variants: &BTreeMap<String, String>) -> f64 {
        let of = self.ratios.iter().filter(|ratio| ratio.operator == operator);
        let holds = of.filter_map(|ratio| {
            let named = ratio.holds_for();
            let holds = named.iter().all(|(operator, variant)| variants.get(operator) == Some(variant));
            holds.then_some((named.len(), ratio.output_per_input))
        });
        holds.max_by_key(|(named, _)| *named).map_or(1.0, |(_, ratio)| ratio)
    }

    /// Returns the mean bytes of a record on an edge (from, to, input of the receiver) with these variants (by
    /// operator): of the entries that hold, the one that names most variants, and of several the largest. Where none
    /// holds, the one with the fewest deviating variants: see [`Profile::knows_bytes_per_record`].
    pub fn bytes_per_record(
        &self,
        edge: (&str, &str, u32),
        variants: &BTreeMap<String, String>,
    ) -> Option<Bytes> {
        let nearest = self.messages_of(edge).max_by_key(|message| {
            let others = message.others_than(variants);
            (Reverse(others), message.variants.len(), message.bytes_per_record.0)
        });
        nearest.map(|message| message.bytes_per_record)
    }

    /// Whether an entry with the bytes of an edge (from, to, input of the receiver) holds with these variants (by
    /// operator).
    pub fn knows_bytes_per_record(
        &self,
        edge: (&str, &str, u32),
        variants: &BTreeMap<String, String>,
    ) -> bool {
        self.messages_of(edge).any(|message| message.others_than(variants) == 0)
    }

    /// Returns the entries with the bytes of an edge (from, to, input of the receiver).
    pub fn messages_of<'a>(&'a self, edge: (&'a str, &'a str, u32)) -> impl Iterator<Item = &'a MessageSize> {
        self.messages.iter().filter(move |of| (of.from.as_str(), of.to.as_str(), of.input) == edge)
    }

    /// Returns the measured accuracy of the workflow with these variants (by operator). A row names the operators that
    /// feed its sink; of the rows that hold, the one that names most of them counts, and of several the last.
    pub fn accuracy_row(&self, variants: &BTreeMap<String, String>) -> Option<&AccuracyRow> {
        let holds = |row: &&AccuracyRow| {
            row.variants.iter().all(|(operator, variant)| variants.get(operator) == Some(variant))
        };
        let rows = self.accuracy.as_ref()?.end_to_end.iter();
        rows.filter(holds).max_by_key(|row| row.variants.len())
    }
}

impl MessageSize {
    /// Number of its named variants that are not among these (by operator).
    fn others_than(&self, variants: &BTreeMap<String, String>) -> usize {
        self.variants.iter().filter(|(operator, variant)| variants.get(*operator) != Some(*variant)).count()
    }
}

impl Service {
    /// Returns the times of batches of that size, if they were measured.
    pub fn batch(&self, batch: u32) -> Option<&BatchTime> {
        self.batches.iter().find(|times| times.batch == batch)
    }
}

impl BatchTime {
    /// Returns the named percentiles, the smallest first.
    pub fn percentiles(&self) -> [(f64, Option<TimeSpan>); 4] {
        [(50.0, self.p50), (75.0, self.p75), (90.0, self.p90), (99.0, self.p99)]
    }

    /// Returns the service time of the batch at a percentile: as named, else linear between two points, else between
    /// two named ones. None above the largest and below the smallest known one.
    pub fn at(&self, percentile: Percentile) -> Option<TimeSpan> {
        let known: Vec<(f64, TimeSpan)> =
            self.percentiles().into_iter().filter_map(|(p, time)| Some((p, time?))).collect();
        if let Some((_, time)) = known.iter().find(|(p, _)| *p == percentile.0) {
            return Some(*time);
        }
        let last = self.points.len().checked_sub(1).filter(|last| *last > 0);
        let points = last.map(|last| {
            let at = |(index, time): (usize, &TimeSpan)| (100.0 * index as f64 / last as f64, *time);
            self.points.iter().enumerate().map(at).collect::<Vec<_>>()
        });
        between(&points.unwrap_or(known), percentile.0)
    }

    /// Returns a copy with `change` applied to every time.
    pub fn map(&self, change: impl Fn(TimeSpan) -> TimeSpan) -> Self {
        Self {
            batch: self.batch,
            samples: self.samples,
            mean: self.mean.map(&change),
            deviation: self.deviation.map(&change),
            p50: self.p50.map(&change),
            p75: self.p75.map(&change),
            p90: self.p90.map(&change),
            p99: self.p99.map(&change),
            points: self.points.iter().copied().map(change).collect(),
        }
    }

    /// Returns the mean, else the median, from which expected rates are computed.
    pub fn typical(&self) -> Option<TimeSpan> {
        self.mean.or(self.p50)
    }
}

fn between(known: &[(f64, TimeSpan)], percentile: f64) -> Option<TimeSpan> {
    let pair = known.windows(2).find(|pair| pair[0].0 <= percentile && percentile <= pair[1].0)?;
    let ((low, from), (high, to)) = (pair[0], pair[1]);
    let part = (percentile - low) / (high - low);
    let time = from.0 as f64 + part * (to.0 as f64 - from.0 as f64);
    Some(TimeSpan(time.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Percent;

    const TEXT: &str = "
version: 1
workflow: {name: w}
machines: [{worker_type: m, how: measured}]
services:
  - {operator: o, variant: v, backend: rten, worker_type: m, how: measured, batches: [{batch: 1, mean: 2ms}]}
  - {operator: o, variant: v, backend: ort, worker_type: m, how: measured, batches: [{batch: 1, mean: 1ms}]}
  - {operator: j, worker_type: m, how: measured, batches: [{batch: 1, p50: 1ms, p90: 3ms}, {batch: 4, points: [1ms, 5ms, 9ms]}]}
ratios: [{operator: o, output_per_input: 2}, {operator: o, variant: v, output_per_input: 0.5}, {operator: j, variants: {o: v}, output_per_input: 3}]
messages:
  - {from: o, to: j, bytes_per_record: 10B}
  - {from: o, to: j, variants: {o: v}, bytes_per_record: 20B}
accuracy: {metric: share of right answers, end_to_end: [{variants: {o: v}, accuracy: 50%}]}
";

    fn ms(n: u64) -> TimeSpan {
        TimeSpan(n * 1_000_000)
    }

    #[test]
    fn figures_are_found() {
        let profile = Profile::parse(TEXT, "p").unwrap_or_else(|errors| panic!("{errors}"));
        let mean =
            |backend| profile.service("o", Some("v"), backend, "m").and_then(|s| s.batch(1)?.typical());
        assert_eq!((mean(None), mean(Some("ort")), mean(Some("tch"))), (Some(ms(2)), Some(ms(1)), None));
        assert!(profile.service("o", None, None, "m").is_none());
        let variants = |v: &str| BTreeMap::from([("o".to_string(), v.to_string())]);
        let ratio = |operator, v| profile.output_per_input(operator, &variants(v));
        assert_eq!((ratio("o", "v"), ratio("o", "x"), ratio("k", "v")), (0.5, 2.0, 1.0));
        assert_eq!(
            (ratio("j", "v"), ratio("j", "x")),
            (3.0, 1.0),
            "by the variant of the operator before it"
        );
        let bytes = |v| profile.bytes_per_record(("o", "j", 0), &variants(v));
        assert_eq!((bytes("v"), bytes("x")), (Some(Bytes(20)), Some(Bytes(10))));
        assert_eq!(profile.bytes_per_record(("j", "o", 0), &variants("v")), None);
        assert_eq!(profile.bytes_per_record(("o", "j", 1), &variants("v")), None);
        let accuracy = |variants: &BTreeMap<_, _>| profile.accuracy_row(variants).map(|row| row.accuracy);
        let with_another =
            |v| [variants(v), BTreeMap::from([("p".into(), "w".into())])].into_iter().flatten();
        assert_eq!(accuracy(&variants("v")), Some(Percent(50.0)));
        assert_eq!(
            accuracy(&with_another("v").collect()),
            Some(Percent(50.0)),
            "the sink does not hear of p"
        );
        assert_eq!(accuracy(&variants("x")), None);
    }

    #[test]
    fn a_pause_makes_calls_longer() {
        let text = "
version: 1
workflow: {name: w}
machines:
  - {worker_type: half, how: limited, cpu: c, cores: 0.5}
  - {worker_type: one, how: limited, cpu: c, cores: 1}
  - {worker_type: here, how: measured, cpu: c, cores: 2}
  - {worker_type: slow, how: limited, cpu: c, cores: 0.5, factor: 2}
  - {worker_type: other, how: limited, cpu: d, cores: 0.5}
services:
  - {operator: o, worker_type: half, how: limited, batches: [{batch: 1, mean: 4ms}]}
  - operator: o
    worker_type: here
    how: measured
    batches: [{batch: 1, mean: 2ms, p50: 1ms}, {batch: 2, mean: 4ms}]
    after_pause: {pause: 20ms, times: {batch: 1, mean: 3ms, p50: 1ms}}
";
        let profile = Profile::parse(text, "p").unwrap_or_else(|errors| panic!("{errors}"));
        let whole =
            |name| profile.whole_of(name).map(|(share, machine)| (share, machine.worker_type.as_str()));
        assert_eq!(
            (whole("half"), whole("one"), whole("slow"), whole("other")),
            (Some((0.5, "here")), None, None, None)
        );
        let of = |name, figure: fn(&BatchTime) -> Option<TimeSpan>| {
            let service = profile.service("o", None, None, name).expect("is there");
            profile.longer_after_pause(service, figure)
        };
        assert_eq!((of("here", |times| times.mean), of("here", |times| times.p50)), (1e6, 0.0));
        assert_eq!((of("half", |times| times.mean), of("half", |times| times.p99)), (2e6, 0.0));
        let scaled = profile.services[1].batches[0].map(|time| TimeSpan(3 * time.0));
        assert_eq!((scaled.mean, scaled.p50, scaled.p75), (Some(ms(6)), Some(ms(3)), None));
    }

    #[test]
    fn percentiles_are_read_between_what_is_known() {
        let profile = Profile::parse(TEXT, "p").unwrap_or_else(|errors| panic!("{errors}"));
        let service = profile.service("j", None, None, "m").expect("is there");
        let at = |batch, p| service.batch(batch).and_then(|times| times.at(Percentile(p)));
        assert_eq!((at(1, 50.0), at(1, 70.0), at(1, 90.0)), (Some(ms(1)), Some(ms(2)), Some(ms(3))));
        assert_eq!((at(1, 99.0), at(1, 10.0)), (None, None));
        assert_eq!((at(4, 0.0), at(4, 25.0), at(4, 100.0)), (Some(ms(1)), Some(ms(3)), Some(ms(9))));
    }
}
