//! Checks notices of hosts before they count. A host is believed only about its own slots. If it reports on a slot of
//! another host, or something impossible, its connection is closed with the reason in the log.
use super::workers::Workers;
use crate::frame::Epoch;
use crate::host::TIMES;
use crate::metrics::Own;
use crate::protocol::{Notice, Part, Standing};
use crate::traces::{MOST_TOLD, Span};
use std::collections::BTreeSet;

/// Largest accepted incarnation of a slot: leaves room for later ones.
const MOST_INCARNATIONS: u32 = u32::MAX / 2;

impl Workers {
    /// Two workers, of which the second one has a sink, for tests.
    pub(crate) fn example() -> Self {
        let own = |instances: &[&str], sinks: &[&str]| Own {
            stages: BTreeSet::new(),
            instances: instances.iter().map(|name| (*name).to_owned()).collect(),
            sinks: sinks.iter().map(|name| (*name).to_owned()).collect(),
        };
        Self {
            names: vec!["edge".into(), "hub".into()],
            own: vec![own(&["s", "f"], &[]), own(&["j", "out"], &["out"])],
            of_slots: vec![0, 1],
            instances: vec![2, 2],
            channels: 1,
        }
    }

    /// Checks a notice of a host. The error is why it is impossible.
    pub(crate) fn check(&self, host: usize, notice: &Notice) -> Result<(), String> {
        match notice {
            Notice::Durable { slot, epochs, .. } => self.check_slot(host, *slot, epochs),
            Notice::Ended { slot, durable, heard, .. } => match heard.keys().find(|id| **id >= self.channels)
            {
                Some(id) => Err(format!("it says something of channel {id}, which the plan does not have")),
                None => self.check_slot(host, *slot, durable),
            },
            Notice::Part { part: Ok(Some(part)), .. } => self.check_part(host, part),
            Notice::Epoch { source, .. } => self.check_names(host, [source]),
            Notice::Figures(figures) => match figures.is_sound() {
                true => Ok(()),
                false => Err("it tells figures that cannot be".to_owned()),
            },
            Notice::Sample(sample) if !sample.is_small() => {
                Err("it tells a record that is larger than any that is shown".to_owned())
            }
            Notice::Spans(spans) if spans.len() > MOST_TOLD || !spans.iter().all(Span::is_small) => {
                Err("it tells more of traced records than a host does".to_owned())
            }
            Notice::Hello(hello) => {
                hello.standing.as_ref().map_or(Ok(()), |standing| self.check_standing(host, standing))
            }
            _ => Ok(()),
        }
    }

    fn check_slot(&self, host: usize, slot: usize, epochs: &[Epoch]) -> Result<(), String> {
        if self.of_slots.get(slot) != Some(&host) {
            return Err(format!("it says something of slot {slot}, which it does not have"));
        }
        match self.instances.get(slot) {
            Some(instances) if *instances == epochs.len() => Ok(()),
            _ => Err(format!("it tells {} epochs of slot {slot}", epochs.len())),
        }
    }

    fn check_names<'a>(
        &self,
        host: usize,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), String> {
        let own: Option<&BTreeSet<String>> = self.own.get(host).map(|own| &own.instances);
        let mut strange = names.into_iter().filter(|name| own.is_none_or(|own| !own.contains(*name)));
        strange
            .next()
            .map_or(Ok(()), |name| Err(format!("it says something of '{name}', which it does not have")))
    }

    fn check_part(&self, host: usize, part: &Part) -> Result<(), String> {
        self.check_names(host, part.stages.keys().chain(part.sources.keys()))?;
        let own = self.own.get(host).map(|own| &own.sinks);
        match part.sinks.keys().find(|sink| own.is_none_or(|own| !own.contains(*sink))) {
            Some(sink) => Err(format!("it says something of sink '{sink}', which it does not have")),
            None => Ok(()),
        }
    }

    fn check_standing(&self, host: usize, standing: &Standing) -> Result<(), String> {
        let Standing { started, elapsed_before, now, slots, met, .. } = standing;
        if let Some(time) = [started, elapsed_before, now].into_iter().find(|time| !TIMES.contains(*time)) {
            return Err(format!("it tells the time {time}, which is none"));
        }
        for (slot, of) in slots {
            self.check_slot(host, *slot, &of.durable)?;
        }
        if let Some(channel) = met.keys().find(|channel| **channel >= self.channels) {
            return Err(format!("it says something of channel {channel}: the plan has {}", self.channels));
        }
        let incarnations = slots.values().map(|of| of.incarnation).chain(met.values().copied());
        match incarnations.max() {
            Some(most) if most > MOST_INCARNATIONS => Err(format!("it has met incarnation {most} of a slot")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{End, Hello, StandingSlot};
    use crate::store::{EpochEntry, EpochLog};

    fn standing(change: impl FnOnce(&mut Standing)) -> Notice {
        let slot = StandingSlot { incarnation: 1, durable: vec![0, 0], end: None };
        let mut standing = Standing {
            started: 0,
            elapsed_before: 0,
            now: 0,
            slots: [(0, slot)].into(),
            met: [(0, 1)].into(),
            closed: None,
        };
        change(&mut standing);
        Notice::Hello(Hello { graph: 0, address: None, standing: Some(Box::new(standing)) })
    }

    fn met(mut standing: Standing, channel: usize, incarnation: u32) -> Standing {
        standing.met.insert(channel, incarnation);
        standing
    }

    #[test]
    fn what_a_host_says_of_others_or_what_cannot_be_is_refused() {
        let durable = |slot, epochs| Notice::Durable { slot, incarnation: 1, epochs };
        let part = |change: &dyn Fn(&mut Part)| {
            let mut part = Part::default();
            change(&mut part);
            Notice::Part { number: 1, part: Ok(Some(part)) }
        };
        let ended = |slot, channel| {
            let heard = [(channel, 1)].into();
            Notice::Ended { slot, incarnation: 1, durable: vec![0, 0], end: End::Finished, heard }
        };
        let log = || EpochLog::default();
        let slot = |incarnation, durable| StandingSlot { incarnation, durable, end: None };
        for (notice, word) in [
            (durable(1, vec![0, 0]), "slot 1, which it does not have"),
            (durable(9, vec![0, 0]), "slot 9"),
            (durable(0, vec![0]), "1 epochs of slot 0"),
            (ended(1, 0), "slot 1"),
            (ended(0, 1), "channel 1"),
            (part(&|part| drop(part.sources.insert("out".into(), log()))), "'out'"),
            (part(&|part| drop(part.sinks.insert("out".into(), Default::default()))), "sink 'out'"),
            (Notice::Epoch { source: "j".into(), entry: EpochEntry::Emitted(9) }, "'j'"),
            (standing(|standing| standing.now = i64::MAX), "time"),
            (standing(|standing| standing.elapsed_before = i64::MIN), "time"),
            (standing(|standing| drop(standing.slots.insert(1, slot(1, vec![0, 0])))), "slot 1"),
            (standing(|standing| drop(standing.slots.insert(0, slot(1, vec![])))), "0 epochs"),
            (standing(|standing| drop(standing.slots.insert(0, slot(u32::MAX, vec![0, 0])))), "incarnation"),
            (standing(|standing| *standing = met(standing.clone(), 1, 1)), "channel 1: the plan has 1"),
            (standing(|standing| *standing = met(standing.clone(), 0, u32::MAX)), "incarnation"),
        ] {
            let error = Workers::example().check(0, &notice).expect_err(word);
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn what_a_host_says_of_what_it_has_is_believed() {
        let mut part = Part::default();
        part.sources.insert("s".into(), EpochLog::default());
        for notice in [
            Notice::Durable { slot: 0, incarnation: 7, epochs: vec![4, u64::MAX] },
            Notice::Part { number: 1, part: Ok(Some(part)) },
            Notice::Part { number: 1, part: Ok(None) },
            Notice::Epoch { source: "s".into(), entry: EpochEntry::Emitted(9) },
            standing(|_| {}),
            Notice::Ping(1),
        ] {
            assert_eq!(Workers::example().check(0, &notice), Ok(()), "{notice:?}");
        }
    }
}
