//! A model that computes on the device of its plan, on a spare, or in this process, whichever can.
use super::tried::Tried;
use super::{AGAIN, Connected, Device, LOADS, Remote, Target, Times};
use crate::reach::Place;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Instant;
use tidemill_engine::ExecutorSpec;
use tidemill_operators::api::{Inference, OperatorError};

/// Where a model computes now.
pub(super) enum Current {
    /// Nothing was tried yet.
    Unknown,
    /// By the session of this number.
    There(u64, Arc<Connected>),
    /// By this process since this time; the number of the last session.
    Here(u64, Instant),
}

/// A model of several copies, which find a new device together.
pub(super) struct Elsewhere {
    pub(super) device: Arc<Device>,
    place: Mutex<Current>,
    pub(super) now: Box<dyn Fn() -> Instant + Send + Sync>,
    /// A thread looks for the device.
    pub(super) looks: AtomicBool,
    /// The model that it has loaded by the session of this number, for the first copy that returns.
    ready: Mutex<Option<(u64, Inner)>>,
    /// The targets that failed.
    tried: Mutex<Tried>,
    /// The run has begun before: without the device, this process computes from the first batch on.
    again: bool,
}

#[expect(clippy::disallowed_methods, reason = "a device is away in real time; no record depends on it")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The place where a copy computes.
pub(super) enum Inner {
    There(Arc<Connected>, Box<dyn Inference>, Times),
    Here(Box<dyn Inference>),
}

impl Elsewhere {
    pub(super) fn of(spec: &ExecutorSpec, again: bool) -> Result<Arc<Self>, OperatorError> {
        let (device, place) = (Arc::new(Device::of(spec)?), Mutex::new(Current::Unknown));
        let (looks, ready) = (AtomicBool::new(false), Mutex::new(None));
        let tried = Mutex::default();
        Ok(Arc::new(Self { device, place, now: Box::new(now), looks, ready, tried, again }))
    }

    /// Another copy of the model.
    pub(super) fn copy(self: &Arc<Self>) -> Result<Remote, OperatorError> {
        let (number, inner) = self.current(None)?;
        Ok(Remote { shared: Arc::clone(self), number, inner })
    }

    fn place(&self) -> MutexGuard<'_, Current> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance on the present device, with its number. `failed`: the session of this number is lost.
    pub(super) fn current(&self, failed: Option<u64>) -> Result<(u64, Inner), OperatorError> {
        let mut place = self.place();
        let (number, is_first) = match &*place {
            Current::There(number, connected) if failed != Some(*number) && connected.lost().is_none() => {
                let connected = Arc::clone(connected);
                let number = *number;
                drop(place);
                let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
                return match ready {
                    Some((of, inner)) if of == number => Ok((number, inner)),
                    _ => Ok((number, connected.inner()?)),
                };
            }
            Current::Here(number, _) => {
                let number = *number;
                drop(place);
                return Ok((number, Inner::Here(self.here()?)));
            }
            Current::There(number, _) => (*number, false),
            Current::Unknown => (0, !self.again),
        };
        let (from, at, drained) = match &*place {
            Current::There(_, connected) => (connected.next(), connected.at, connected.drained()),
            Current::Here(..) | Current::Unknown => (0, 0, None),
        };
        match self.loaded(from) {
            Ok((connected, inner)) => {
                if at != connected.at {
                    let (address, model) = (connected.address(), &self.device.spec.variant);
                    tracing::warn!(device = self.device.name, model, address, "another device computes");
                }
                *place = Current::There(number + 1, connected);
                Ok((number + 1, inner))
            }
            // A proxy of our own can always be started; a run begins with the devices of its plan. Later, a device that has changed, and
            // cannot load the model any more, is as good as none.
            Err(error)
                if is_first || matches!(self.device.targets[..], [Target::Device(Place::Own { .. })]) =>
            {
                Err(error)
            }
            Err(error) => {
                let reason = self.device.instead(&error, drained.as_deref());
                tracing::warn!(model = self.device.spec.variant, "{reason}");
                *place = Current::Here(number, (self.now)());
                drop(place);
                Ok((number, Inner::Here(self.here()?)))
            }
        }
    }

    fn tried(&self) -> MutexGuard<'_, Tried> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session with the first target from this position on that answers and loads the model. Those that have failed a moment ago
    /// are not tried again: a batch waits. The error has the reason of each.
    fn loaded(&self, from: usize) -> Result<(Arc<Connected>, Inner), OperatorError> {
        let all = self.device.targets.len();
        let mut errors: Vec<OperatorError> = Vec::new();
        for at in (0..all).map(|step| (from + step) % all) {
            let known = if all > 1 { self.tried().failed_within(at, AGAIN, (self.now)()) } else { None };
            match known.map_or_else(|| self.loaded_at(at), Err) {
                Ok(found) => return Ok(found),
                Err(error) => errors.push(error),
            }
        }
        if errors.len() == 1
            && let Some(only) = errors.pop()
        {
            return Err(only);
        }
        let reasons: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
        let message = reasons.join("; a spare: ");
        Err(match errors.iter().any(|error| error.lost) {
            true => OperatorError::lost(message),
            false => OperatorError::new(message),
        })
    }

    /// Opens a session with one target and loads the model, and remembers why it could not.
    fn loaded_at(&self, at: usize) -> Result<(Arc<Connected>, Inner), OperatorError> {
        let begun = (self.now)();
        let loaded = self.try_at(at);
        match &loaded {
            Ok(_) => self.tried().succeeded(at),
            Err(error) if self.tried().failed(at, error, begun) => {
                let (address, model) = (self.device.address(at), &self.device.spec.variant);
                tracing::info!(model, address, "it does not compute there: {error}");
            }
            Err(_) => {}
        }
        loaded
    }

    fn try_at(&self, at: usize) -> Result<(Arc<Connected>, Inner), OperatorError> {
        let mut tries = 1;
        loop {
            let connected = Arc::new(self.device.connected(at)?);
            match Arc::clone(&connected).inner() {
                Ok(inner) => return Ok((connected, inner)),
                // It ended while it loaded the model, which is no batch's fault.
                Err(error) if error.lost && tries < LOADS => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn here(&self) -> Result<Box<dyn Inference>, OperatorError> {
        self.device.models.instance(&self.device.spec)
    }

    /// Computes here for a while: the device of this number is there, but has no memory left.
    pub(super) fn leave(&self, number: u64, error: &OperatorError) -> Result<Inner, OperatorError> {
        let mut place = self.place();
        if matches!(&*place, Current::There(present, _) if *present == number) {
            tracing::warn!(
                model = self.device.spec.variant,
                "{error}: this process computes instead, and tries the device again later"
            );
            *place = Current::Here(number, (self.now)());
        }
        drop(place);
        Ok(Inner::Here(self.here()?))
    }

    /// Looks for the device while this process computes instead, on a thread of its own: no batch waits for one that does not answer.
    pub(super) fn look_again(self: &Arc<Self>) {
        let mut place = self.place();
        let Current::Here(_, since) = &mut *place else { return };
        let now = (self.now)();
        if now.saturating_duration_since(*since) < AGAIN || self.looks.swap(true, Ordering::AcqRel) {
            return;
        }
        *since = now;
        drop(place);
        let shared = Arc::clone(self);
        let looking = Builder::new().name("tm-device-again".into()).spawn(move || {
            shared.look();
            shared.looks.store(false, Ordering::Release);
        });
        if looking.is_err() {
            self.looks.store(false, Ordering::Release);
        }
    }

    /// Tries the targets, one after another. A look that takes too long ends, and the next one continues after it: a target that is slow to
    /// fail holds up no other.
    pub(super) fn look(&self) {
        let (begun, all) = ((self.now)(), self.device.targets.len());
        let first = self.tried().next;
        for at in (first..first + all).map(|at| at % all) {
            if self.tried().is_useless(at, begun) {
                continue;
            }
            if let Ok((connected, inner)) = self.loaded_at(at) {
                self.tried().next = 0;
                return self.compute_there(connected, inner);
            }
            if (self.now)().saturating_duration_since(begun) >= AGAIN {
                self.tried().next = (at + 1) % all;
                return;
            }
        }
        self.tried().next = 0;
    }

    fn compute_there(&self, connected: Arc<Connected>, inner: Inner) {
        let mut place = self.place();
        if let Current::Here(number, _) = *place {
            let (address, model) = (connected.address(), &self.device.spec.variant);
            tracing::warn!(device = self.device.name, model, address, "the device computes again");
            *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some((number + 1, inner));
            *place = Current::There(number + 1, connected);
        }
    }

    pub(super) fn is_there(&self) -> bool {
        matches!(&*self.place(), Current::There(..))
    }
}
