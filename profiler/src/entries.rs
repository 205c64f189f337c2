//! Entries of a profile: a type of worker, and the times of an operator or model on it.
use crate::limits::Restraint;
use crate::pace;
use crate::state::TaskState;
use crate::statistics::{batch_time, quantile, rounded};
use crate::subject::Subject;
use crate::tasks::{Host, Kind, Task};
use crate::worker::PAUSE;
use tidemill_spec::profile::{AfterPause, How, Machine, Service};
use tidemill_spec::units::{Bytes, Percent, TimeSpan};

/// Returns the entry of a worker type, and how this machine stood in for it. `slowness`: change of its pace.
pub(crate) fn machine(kind: &Kind, host: &Host, slowness: f64) -> Machine {
    if let Some(device) = &kind.device {
        let source = format!(
            "measured at {} by the device itself: its computations, without the way there and back",
            device.address
        );
        return Machine {
            worker_type: kind.worker_type.clone(),
            how: kind.how,
            cpu: None,
            cores: None,
            memory: None,
            factor: None,
            source: Some(source),
            overheads: None,
        };
    }
    let restraint = Restraint::of(kind.cpus);
    let factor = kind.factor * restraint.factor();
    let mut source = match (kind.how, restraint.words()) {
        (How::Predicted, _) => format!(
            "measured with {} processors; an operator computes in one thread, so more do not change its times",
            host.cores
        ),
        (_, Some(words)) => {
            format!("measured on a machine with {} processors, held back {words}", host.cores)
        }
        (_, None) => "measured on a machine of this type".to_owned(),
    };
    if kind.factor != 1.0 {
        source = format!("measured on a machine with {} processors; the factor was stated", host.cores);
    }
    if let Some(load) = host.busy {
        source.push_str(&format!("; it was busy, load average {load}"));
    }
    if pace::is_another(slowness) {
        source.push_str(&format!("; its pace changed by {slowness:.2} while it was measured"));
    }
    Machine {
        worker_type: kind.worker_type.clone(),
        how: kind.how,
        cpu: Some(host.cpu.clone()).filter(|cpu| !cpu.is_empty()),
        cores: kind.cores.or(Some(host.cores as f64)),
        memory: kind.memory.or(host.memory.map(Bytes)),
        factor: Some(factor).filter(|factor| *factor != 1.0),
        source: Some(source),
        overheads: None,
    }
}

/// Returns the times of an operator or model on a worker type; `None` if nothing was measured.
pub(crate) fn service(subject: &Subject, kind: &Kind, task: &Task, state: &TaskState) -> Option<Service> {
    let rows =
        task.batches.iter().filter_map(|batch| batch_time(*batch, state.batches.get(batch)?, kind.factor));
    let batches: Vec<_> = rows.collect();
    if batches.is_empty() {
        return None;
    }
    let model = task.variant.as_ref().and_then(|variant| subject.model(&task.operator, variant));
    let mut loads = state.load.clone();
    loads.sort_unstable();
    Some(Service {
        operator: task.operator.clone(),
        variant: task.variant.clone(),
        backend: task.backend.clone(),
        worker_type: kind.worker_type.clone(),
        how: kind.how,
        model: model.map(|model| model.manifest.sha256.value.clone()),
        load_time: (!loads.is_empty()).then(|| rounded(quantile(&loads, 0.5) * kind.factor)),
        peak_memory: (state.peak_memory > 0).then_some(Bytes(state.peak_memory)),
        model_part: state.model_part().map(percent),
        within: None,
        batches,
        after_pause: batch_time(1, &state.after_pause, kind.factor)
            .map(|times| AfterPause { pause: TimeSpan(PAUSE), times }),
    })
}

/// A part in percent to one digit, at least the smallest above 0: a profile has no part of 0.
fn percent(part: f64) -> Percent {
    Percent(((part * 1000.0).round() / 10.0).max(0.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::subject::tests::subject;

    #[test]
    fn the_part_of_the_model_is_that_of_its_calls_and_a_device_is_no_processor() {
        let device = Device { kind: "card".to_owned(), address: "hub:7440".to_owned(), backends: Vec::new() };
        let kind = Kind {
            worker_type: "card".to_owned(),
            how: How::Measured,
            cpus: None,
            factor: 1.0,
            cores: None,
            memory: None,
            device: Some(device),
        };
        let host = Host { cpu: "c".to_owned(), cores: 2, memory: Some(1 << 30), busy: Some(7.5) };
        let there = machine(&kind, &host, 1.0);
        assert_eq!((&there.cpu, there.cores, there.memory, there.factor), (&None, None, None, None));
        assert!(there.source.is_some_and(|source| source.contains("hub:7440 by the device itself")));
        let task = Task {
            operator: "ear".to_owned(),
            variant: Some("s1".to_owned()),
            backend: Some("rten".to_owned()),
            cpus: None,
            device: Some("hub:7440".to_owned()),
            batches: vec![1, 2],
        };
        let batches = [(1, vec![2_000_000; 5]), (2, vec![3_000_000; 5])].into();
        let state = TaskState { batches, peak_memory: 7, ..TaskState::default() };
        let part = |model: &[(u32, (u64, u64))]| {
            let state = TaskState { model: model.iter().copied().collect(), ..state.clone() };
            service(&subject(), &kind, &task, &state).unwrap().model_part
        };
        assert_eq!(part(&[]), None);
        assert_eq!(part(&[(1, (8_000_000, 10_000_000)), (2, (9_003_000, 15_000_000))]), Some(Percent(70.0)));
        assert_eq!(part(&[(1, (1, 10_000_000))]), Some(Percent(0.1)), "never 0");
        assert_eq!(part(&[(1, (10, 10)), (2, (5, 5))]), Some(Percent(100.0)));
    }

    #[test]
    fn a_held_back_machine_says_so() {
        let host = Host { cpu: "c".to_owned(), cores: 2, memory: Some(1 << 30), busy: Some(7.5) };
        let kind = Kind {
            worker_type: "old".to_owned(),
            how: How::Limited,
            cpus: None,
            factor: 1.5,
            cores: Some(2.0),
            memory: None,
            device: None,
        };
        let machine = machine(&kind, &host, 1.0);
        assert_eq!((machine.factor, machine.memory), (Some(1.5), Some(Bytes(1 << 30))));
        assert!(
            machine.source.is_some_and(|source| source.contains("stated; it was busy, load average 7.5"))
        );
    }
}
