//! Entries of a profile: a type of worker, and the times of an operator or model on it.
use crate::limits::Restraint;
use crate::pace;
use crate::state::TaskState;
use crate::statistics::{batch_time, quantile, rounded};
use crate::subject::Subject;
use crate::tasks::{Host, Kind, Task};
use crate::worker::PAUSE;
use tidemill_spec::profile::{AfterPause, How, Machine, Service};
use tidemill_spec::units::{Bytes, TimeSpan};

/// Returns the entry of a worker type, and how this machine stood in for it. `slowness`: change of its pace.
pub(crate) fn machine(kind: &Kind, host: &Host, slowness: f64) -> Machine {
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
        model_part: None,
        within: None,
        batches,
        after_pause: batch_time(1, &state.after_pause, kind.factor)
            .map(|times| AfterPause { pause: TimeSpan(PAUSE), times }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        let machine = machine(&kind, &host, 1.0);
        assert_eq!((machine.factor, machine.memory), (Some(1.5), Some(Bytes(1 << 30))));
        assert!(
            machine.source.is_some_and(|source| source.contains("stated; it was busy, load average 7.5"))
        );
    }
}
