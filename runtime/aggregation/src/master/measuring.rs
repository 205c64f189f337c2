//! Iterations of jobs as they are measured, and what follows.
use super::{Key, MasterError, Stage, State};
use crate::wire;
use std::collections::BTreeSet;
use std::time::Duration;
use tidemill_aggregation::{Feedback, Job, JobId};

/// Steps before a measurement begins: the first ones wait for connections.
const WARM: u64 = 2;

/// The numbers of a job at the beginning of a measurement.
#[derive(Debug)]
pub(super) struct Window {
    version: u64,
    updated: u64,
    /// Steps and processor time of each tensor.
    tensors: Vec<(u64, u64)>,
}

impl Window {
    fn new(held: &[wire::Held]) -> Option<Self> {
        let first = held.first()?;
        let tensors = held.iter().map(|held| (held.steps, held.work_ns)).collect();
        Some(Self { version: first.version, updated: first.updated_ns, tensors })
    }

    /// The duration of an iteration since then, over at least `least` of them.
    fn iteration(&self, held: &[wire::Held], least: u64) -> Option<Duration> {
        let first = held.first()?;
        let count = first.version.checked_sub(self.version).filter(|count| *count >= least.max(1))?;
        Some(Duration::from_nanos(first.updated_ns.saturating_sub(self.updated) / count))
    }

    /// The processor time of each tensor in an iteration; none while one has made no step.
    fn work(&self, held: &[wire::Held]) -> Option<Vec<Duration>> {
        let work = |(held, (steps, work)): (&wire::Held, &(u64, u64))| {
            let steps = held.steps.checked_sub(*steps).filter(|steps| *steps > 0)?;
            Some(Duration::from_nanos(held.work_ns.saturating_sub(*work) / steps))
        };
        held.iter().zip(&self.tensors).map(work).collect()
    }
}

impl State {
    /// The tensors of a job where they are; none while one has not been seen.
    fn held(&self, name: &str) -> Option<Vec<wire::Held>> {
        let job = self.map.jobs.get(name)?;
        let held = |(tensor, place): (u32, &String)| {
            let key: Key = (name.to_owned(), tensor);
            self.seen.get(place)?.get(&key).cloned()
        };
        (0..).zip(&job.places).map(held).collect()
    }

    pub(super) async fn measure(&mut self) -> Result<(), MasterError> {
        let names: Vec<String> = self.map.jobs.keys().cloned().collect();
        for name in names {
            let Some(job) = self.map.jobs.get(&name) else { continue };
            let (stage, is_calm) = (job.stage.clone(), job.moves.is_empty());
            let Some(held) = self.held(&name).filter(|held| held.iter().all(|held| held.steps >= WARM))
            else {
                continue;
            };
            if !is_calm {
                self.windows.remove(&name);
                continue;
            }
            let Some(window) = self.windows.get(&name) else {
                self.windows.extend(Window::new(&held).map(|window| (name.clone(), window)));
                continue;
            };
            let least = match stage {
                Stage::Profiled => self.options.profiled,
                Stage::Placed | Stage::Fixed(_) => self.options.monitored,
            };
            let Some(iteration) = window.iteration(&held, u64::from(least)) else { continue };
            let Some(work) = window.work(&held) else { continue };
            self.windows.remove(&name);
            self.measured.insert(name.clone(), iteration);
            match stage {
                Stage::Profiled => self.admit(&name, iteration, work).await?,
                Stage::Placed => self.compare(&name, iteration).await?,
                Stage::Fixed(_) => {}
            }
        }
        Ok(())
    }

    /// Places a measured job.
    async fn admit(
        &mut self,
        name: &str,
        iteration: Duration,
        work: Vec<Duration>,
    ) -> Result<(), MasterError> {
        let Some(job) = self.map.jobs.get(name) else { return Ok(()) };
        let id = JobId(job.id);
        let own: BTreeSet<String> = job.places.iter().cloned().collect();
        let before = (self.map.service.clone(), self.map.names.clone());
        let tensors = work.into_iter().map(|work| work.max(Duration::from_nanos(1))).collect();
        let asked = Job { iteration, tensors, spread: job.spread as usize };
        let named = match self.map.service.admit(id, asked) {
            // The aggregators on which it was measured become those of the service.
            Ok(added) => {
                self.name(added.into_iter().map(|id| id.0).collect(), own.into_iter().collect()).await
            }
            Err(error) => Err(error.into()),
        };
        let stage = match named {
            Ok(()) => Stage::Placed,
            Err(error) => {
                tracing::warn!("job {name} stays on aggregators of its own: {error}");
                (self.map.service, self.map.names) = before;
                Stage::Fixed(error.to_string())
            }
        };
        if let Some(job) = self.map.jobs.get_mut(name) {
            job.stage = stage;
        }
        self.follow_service();
        self.write()
    }

    /// Gives processes to aggregators that the service has added.
    async fn name(&mut self, added: Vec<u64>, mut free: Vec<String>) -> Result<(), MasterError> {
        free.retain(|name| self.map.of_name(name).is_none());
        let mut free = free.into_iter();
        for id in added {
            let name = match free.next() {
                Some(name) => name,
                None => self.start().await?,
            };
            self.map.names.insert(id, name);
        }
        Ok(())
    }

    /// Compares the speed of a job with that of the job alone.
    async fn compare(&mut self, name: &str, iteration: Duration) -> Result<(), MasterError> {
        let Some(job) = self.map.jobs.get(name) else { return Ok(()) };
        let before = (self.map.service.clone(), self.map.names.clone());
        match self.map.service.feedback(JobId(job.id), iteration)? {
            Feedback::Kept | Feedback::Alone => return Ok(()),
            Feedback::Reassigned { added, .. } => {
                let added: Vec<u64> = added.into_iter().map(|id| id.0).collect();
                tracing::info!("job {name} takes {iteration:?} for an iteration, and gets other aggregators");
                if let Err(error) = self.name(added, Vec::new()).await {
                    tracing::warn!("job {name} is too slow, and stays: {error}");
                    (self.map.service, self.map.names) = before;
                    return Ok(());
                }
            }
        }
        self.follow_service();
        self.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_means_of_its_steps_only() {
        let held = |version, updated_ns, steps, work_ns| wire::Held {
            version,
            updated_ns,
            steps,
            work_ns,
            ..Default::default()
        };
        let window = Window::new(&[held(10, 1000, 4, 100), held(10, 1000, 2, 50)]).unwrap();
        let later = [held(14, 9000, 8, 500), held(14, 9000, 4, 90)];
        assert_eq!(window.iteration(&later, 4), Some(Duration::from_nanos(2000)));
        assert_eq!(window.iteration(&later, 5), None);
        assert_eq!(window.work(&later), Some(vec![Duration::from_nanos(100), Duration::from_nanos(20)]));
        assert_eq!(window.work(&[held(14, 9000, 4, 500)]), None);
    }
}
