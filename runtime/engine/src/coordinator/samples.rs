//! Sampled records of hosts: the coordinator keeps those that one process would, and requests their origins from the
//! hosts of the sources.
use crate::graph::Program;
use crate::protocol::Order;
use crate::samples::{FoundSources, SampleMessage, Sampler};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time for which an ended run waits for answers.
const WAITING: Duration = Duration::from_secs(5);
/// Most pending questions; further ones are dropped.
const MOST: usize = 1024;

/// A pending question.
struct Asked {
    host: usize,
    sink: String,
    /// Hash of the record.
    hash: u64,
}

/// Questions to hosts.
#[derive(Default)]
pub(super) struct Questions {
    open: Mutex<(u64, BTreeMap<u64, Asked>)>,
    answered: Condvar,
}

impl Questions {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Asked>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a host's record. Returns the hosts to ask for its origins; `hosts`: the names of all.
    pub(super) fn heard(
        &self,
        sampler: &Sampler,
        (host, hosts): (usize, &[String]),
        program: &Program,
        message: SampleMessage,
    ) -> Vec<(usize, Order)> {
        let Some((hash, missing)) = sampler.heard(&message) else { return Vec::new() };
        let stages = program.plan.stages.iter().filter(|stage| missing.contains(&stage.operator));
        let workers: BTreeSet<&str> = stages.map(|stage| stage.worker.as_str()).collect();
        // It has searched already.
        let others = hosts.iter().enumerate().filter(|(number, _)| *number != host);
        let asked = others.filter(|(_, name)| workers.contains(name.as_str())).map(|(number, _)| number);
        let mut open = self.lock();
        let mut orders = Vec::new();
        for host in asked {
            if open.1.len() >= MOST {
                break;
            }
            open.0 += 1;
            let (number, sink) = (open.0, message.sink.clone());
            open.1.insert(number, Asked { host, sink: sink.clone(), hash });
            orders.push((host, Order::FindSources { number, sink, record: message.record.clone() }));
        }
        orders
    }

    /// Handles a host's answer.
    pub(super) fn found(&self, sampler: &Sampler, host: usize, number: u64, sources: &FoundSources) {
        let asked = self.lock().1.remove(&number);
        if let Some(asked) = asked.filter(|asked| asked.host == host) {
            sampler.found(&asked.sink, asked.hash, sources);
        }
        self.answered.notify_all();
    }

    /// Drops the questions to a lost host.
    pub(super) fn lost(&self, host: usize) {
        self.lock().1.retain(|_, asked| asked.host != host);
        self.answered.notify_all();
    }

    /// Waits for all answers, but not for long.
    pub(super) fn wait(&self) {
        let open = self.lock();
        let waited = self.answered.wait_timeout_while(open, WAITING, |open| !open.1.is_empty());
        drop(waited.map_err(drop));
    }
}
