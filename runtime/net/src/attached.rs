//! A policy that is attached, with what it did.
use crate::passage::{Effects, Passage};
use crate::policy::{Policy, Site, Verdict, make};
use crate::protocol::{PolicyCounts, PolicySpec, PolicyView};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidemill_spec::types::StreamType;

/// Who attached a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The plan of a program of this user: as long as a program with that plan is there.
    Plan { program: u64, user: u32 },
    /// A user, until it is detached; `any`: for edges of all users.
    User { user: u32, any: bool },
}

impl Owner {
    /// Returns whether its policies may concern edges of this user.
    pub(crate) fn may_concern(self, user: u32) -> bool {
        match self {
            Self::Plan { user: own, .. } => own == user,
            Self::User { user: own, any } => any || own == user,
        }
    }
}

/// A policy that is attached.
pub(crate) struct Attached {
    pub(crate) spec: RefCell<PolicySpec>,
    pub(crate) owner: Cell<Owner>,
    instance: RefCell<Box<dyn Policy>>,
    counts: Cell<PolicyCounts>,
    problem: RefCell<Option<String>>,
}

/// The result of a look.
pub(crate) enum Looked {
    Pass,
    Wait(Duration),
    Cut,
    Failed,
}

impl Attached {
    pub(crate) fn new(spec: PolicySpec, owner: Owner, site: &Site) -> Result<Rc<Self>, String> {
        let instance = make(&spec.kind, &spec.options, site)?;
        Ok(Rc::new(Self {
            spec: RefCell::new(spec),
            owner: Cell::new(owner),
            instance: RefCell::new(instance),
            counts: Cell::default(),
            problem: RefCell::default(),
        }))
    }

    /// Checks that it can judge records with these columns.
    pub(crate) fn fits(&self, columns: &StreamType) -> Result<(), String> {
        self.instance.borrow_mut().fits(columns)
    }

    /// Replaces the instance by one with other options, which continues with its state. The old one stays if that fails.
    pub(crate) fn set(
        &self,
        options: serde_json::Value,
        site: &Site,
        columns: &[&StreamType],
    ) -> Result<(), String> {
        let kind = self.spec.borrow().kind.clone();
        let mut new = make(&kind, &options, site)?;
        columns.iter().try_for_each(|columns| new.fits(columns))?;
        let state = contained(|| Ok(self.instance.borrow().state()))?;
        contained(|| new.restore(&state)).map_err(|error| {
            format!("{kind}: it cannot continue with the state of the instance before, which stays: {error}")
        })?;
        *self.instance.borrow_mut() = new;
        self.spec.borrow_mut().options = options;
        self.problem.take();
        Ok(())
    }

    /// Has it look at a frame; `again`: it held the frame before.
    pub(crate) fn look(&self, frame: &mut Passage<'_>, again: bool) -> Looked {
        let before = Before::of(frame.effects, frame.bytes());
        let verdict = contained(|| self.instance.borrow_mut().look(frame));
        let mut counts = self.counts.get();
        counts.rejected += frame.effects.rejected - before.rejected;
        counts.copied += frame.effects.copied - before.copied;
        let looked = match verdict {
            Ok(Verdict::Pass) => {
                counts.frames += 1;
                counts.frame_bytes += before.bytes;
                counts.saved += before.bytes.saturating_sub(frame.bytes());
                Looked::Pass
            }
            Ok(Verdict::Wait(time)) => {
                counts.held += u64::from(!again);
                Looked::Wait(time)
            }
            Ok(Verdict::Cut) => {
                counts.cuts += 1;
                Looked::Cut
            }
            Err(problem) => {
                let id = self.spec.borrow().id.clone();
                if self.problem.borrow().as_ref() != Some(&problem) {
                    tracing::error!("policy {id} cannot judge a frame of {}: {problem}", frame.edge);
                }
                *self.problem.borrow_mut() = Some(problem);
                Looked::Failed
            }
        };
        self.counts.set(counts);
        looked
    }

    /// Why it could not judge a frame, the last time.
    pub(crate) fn problem(&self) -> String {
        self.problem.borrow().clone().unwrap_or_default()
    }

    /// Counts the time for which it held a frame.
    pub(crate) fn held(&self, since: Instant, now: Instant) {
        let mut counts = self.counts.get();
        counts.held_ms += now.saturating_duration_since(since).as_millis() as u64;
        self.counts.set(counts);
    }

    pub(crate) fn view(&self, edges: u64) -> PolicyView {
        let by = match self.owner.get() {
            Owner::Plan { .. } => "plan".to_owned(),
            Owner::User { user, .. } => format!("user {user}"),
        };
        let (spec, counts, problem) =
            (self.spec.borrow().clone(), self.counts.get(), self.problem.borrow().clone());
        PolicyView { spec, by, edges, counts, problem }
    }
}

struct Before {
    rejected: u64,
    copied: u64,
    bytes: u64,
}

impl Before {
    fn of(effects: &Effects, bytes: u64) -> Self {
        Self { rejected: effects.rejected, copied: effects.copied, bytes }
    }
}

/// Calls a policy. A panic is a failure of that policy alone.
fn contained<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err("it panicked".to_owned()))
}
