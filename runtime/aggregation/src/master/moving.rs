//! Moves, one step at a time.
use super::{Key, MasterError, State};
use crate::fault::reach;
use crate::naming::method;
use crate::wire::{self, Phase};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A tensor of a job that makes no step for so long moves between two steps.
const IDLE: Duration = Duration::from_secs(2);
const MASTER: &str = "master";

/// The next step of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// The new aggregator makes room.
    Expect,
    /// The old one sends the tensor after its next step, or at once.
    Migrate { now: bool },
    /// All workers have come to the new one.
    Confirm,
    /// Neither has a state: the keeper brings it to the new one.
    Adopt,
    /// It takes its time.
    Wait,
}

/// Decides by what both aggregators say.
fn next(old: Option<&wire::Held>, new: Option<&wire::Held>, is_idle: bool) -> Next {
    match (new.map(|held| held.phase), old.map(|held| held.phase)) {
        (Some(Phase::ACTIVE | Phase::LEAVING | Phase::MOVED), _) => {
            let has_stepped = new.is_some_and(|held| held.version > held.arrived);
            if has_stepped { Next::Confirm } else { Next::Wait }
        }
        (None, _) => Next::Expect,
        (Some(_), Some(Phase::ACTIVE)) => Next::Migrate { now: false },
        (Some(_), Some(Phase::LEAVING | Phase::MOVED)) if is_idle => Next::Migrate { now: true },
        (Some(_), Some(Phase::LEAVING | Phase::MOVED)) => Next::Wait,
        (Some(_), _) => Next::Adopt,
    }
}

impl State {
    pub(super) async fn move_tensors(&mut self) -> Result<(), MasterError> {
        // By job, aggregators and step: many tensors need the same.
        let mut steps: BTreeMap<(String, String, String, Next), Vec<u32>> = BTreeMap::new();
        let now = Instant::now();
        for (name, job) in &self.map.jobs {
            for (tensor, to) in &job.moves {
                let Some(from) = job.places.get(*tensor as usize) else { continue };
                // One that did not answer says nothing.
                let (Some(old), Some(new)) = (self.seen.get(from), self.seen.get(to)) else { continue };
                let key: Key = (name.clone(), *tensor);
                let (old, new) = (old.get(&key), new.get(&key));
                let version = old.map_or(0, |held| held.version);
                let since = self.leaving.entry(key).or_insert((version, now));
                if since.0 != version {
                    *since = (version, now);
                }
                let is_idle = now.duration_since(since.1) > IDLE;
                let step = next(old, new, is_idle);
                steps.entry((name.clone(), from.clone(), to.clone(), step)).or_default().push(*tensor);
            }
        }
        for ((job, from, to, step), tensors) in steps {
            let done = match step {
                Next::Wait => Ok(()),
                Next::Expect => {
                    reach(MASTER, "expecting");
                    self.expect(&job, &tensors, &to).await
                }
                Next::Migrate { now } => {
                    reach(MASTER, "migrating");
                    self.migrate(&job, &tensors, (&from, &to), now).await
                }
                Next::Confirm | Next::Adopt => {
                    self.confirm(&job, &tensors, &to)?;
                    self.forget(&job, tensors, &from).await
                }
            };
            match done {
                Ok(()) => {}
                // It has no room: the tensor stays.
                Err(status) if status.code == tidemill_rpc::Code::ResourceExhausted => {
                    tracing::warn!("tensors of {job} stay on {from}: {status}");
                    self.stay(&job, &status.message)?;
                }
                Err(status) => tracing::debug!("a move of {job} from {from} to {to} has to wait: {status}"),
            }
        }
        Ok(())
    }

    async fn migrate(
        &mut self,
        job: &str,
        tensors: &[u32],
        (from, to): (&str, &str),
        now: bool,
    ) -> Result<(), tidemill_rpc::Status> {
        for tensor in tensors {
            let request = wire::MigrateRequest {
                secret: self.secret.clone(),
                job: job.to_owned(),
                tensor: *tensor,
                to: to.to_owned(),
                now,
            };
            self.call::<_, wire::Nothing>(from, method::MIGRATE, request).await?;
        }
        Ok(())
    }

    fn confirm(&mut self, job: &str, tensors: &[u32], to: &str) -> Result<(), MasterError> {
        reach(MASTER, "confirmed");
        if let Some(of) = self.map.jobs.get_mut(job) {
            for tensor in tensors {
                of.moves.remove(tensor);
                if let Some(place) = of.places.get_mut(*tensor as usize) {
                    to.clone_into(place);
                }
                self.leaving.remove(&(job.to_owned(), *tensor));
            }
        }
        self.windows.remove(job);
        self.write()?;
        reach(MASTER, "written");
        Ok(())
    }

    /// Takes back the moves of a job.
    fn stay(&mut self, job: &str, reason: &str) -> Result<(), MasterError> {
        if let Some(of) = self.map.jobs.get_mut(job) {
            of.moves.clear();
            of.stage = super::Stage::Fixed(reason.to_owned());
        }
        self.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(phase: Phase, version: u64, arrived: u64) -> wire::Held {
        wire::Held { phase, version, arrived, ..Default::default() }
    }

    #[test]
    fn a_move_goes_through_its_steps() {
        let active = held(Phase::ACTIVE, 5, 0);
        let (leaving, moved) = (held(Phase::LEAVING, 5, 0), held(Phase::MOVED, 6, 0));
        let expected = held(Phase::EXPECTED, 0, 0);
        let (came, stepped) = (held(Phase::ACTIVE, 6, 6), held(Phase::ACTIVE, 7, 6));
        assert_eq!(next(Some(&active), None, false), Next::Expect);
        assert_eq!(next(Some(&active), Some(&expected), false), Next::Migrate { now: false });
        assert_eq!(next(Some(&leaving), Some(&expected), false), Next::Wait);
        assert_eq!(next(Some(&leaving), Some(&expected), true), Next::Migrate { now: true });
        assert_eq!(next(Some(&moved), Some(&expected), false), Next::Wait);
        assert_eq!(next(Some(&moved), Some(&came), true), Next::Wait);
        assert_eq!(next(Some(&moved), Some(&stepped), false), Next::Confirm);
        assert_eq!(next(None, Some(&expected), false), Next::Adopt);
        assert_eq!(next(None, Some(&came), false), Next::Wait);
    }
}
