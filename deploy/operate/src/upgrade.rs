//! Upgrades the containers of a deployment to another image, one after the other, and reverts if one does not come up.
//!
//! Workers are first and the controller last: a restarted worker resumes its processes of runs from the last checkpoint, so
//! that no record is lost or doubled, and all others continue meanwhile. A container is done when its health check
//! succeeds, the controller receives its heartbeats, and the runs work there again; a run that fails meanwhile fails the
//! upgrade.
mod record;
mod runs;

pub(crate) use record::Record;

use crate::cause::{Cause, OperateError};
use crate::checks;
use crate::clock;
use crate::connection::{Connection, connect};
use crate::control::Control;
use crate::engine::Container;
use crate::equipment::Equipment;
use crate::images;
use crate::readiness::{Patience, Wanted, wait};
use crate::sending;
use crate::site::{Place, Site};
use record::Old;
use runs::{Again, Doing, Seen};
use serde::Serialize;
use std::time::Duration;
use tidemill_deploy::deployment::{DeployedService, ServiceRole};

/// A container that has just started may still end.
const SETTLED: Duration = Duration::from_secs(2);
/// Polling interval for a controller that does not answer.
const LOOK: Duration = Duration::from_millis(500);

/// Result of an upgrade.
#[derive(Debug, Clone, Serialize)]
pub struct Upgraded {
    /// The new image.
    pub image: String,
    /// Services that were changed to it.
    pub changed: Vec<String>,
    /// Services that had it already.
    pub unchanged: Vec<String>,
    /// The service that did not come up with it, or during whose change a run failed; all have their old images again.
    pub failed: Option<String>,
    /// The reason.
    pub reason: Option<String>,
    /// Services that did not come up with their old image either.
    pub broken: Vec<String>,
}

/// A service and its present image.
struct Step<'a> {
    place: &'a Place,
    service: &'a DeployedService,
    now: Container,
    /// Its image before the upgrade started.
    old: Old,
}

/// An image by its name, and by its digest on a machine.
#[derive(Debug, Clone, Copy)]
struct Target<'a> {
    name: &'a str,
    id: &'a str,
}

impl Target<'_> {
    fn is_of(&self, container: &Container) -> bool {
        container.image == self.name && container.image_id == self.id
    }

    /// Whether a running container has it already: an interrupted upgrade may have left a created container that was not
    /// started.
    fn runs_in(&self, container: &Container) -> bool {
        self.is_of(container) && container.runs()
    }
}

/// A connection to the controller, reopened when it is lost.
struct Watch<'a> {
    site: &'a Site,
    control: Control<'a>,
    connection: Option<Connection>,
}

impl Watch<'_> {
    /// Returns the controller's report; `None` if it does not answer at the moment.
    fn look(&mut self) -> Result<Option<Seen>, OperateError> {
        if self.connection.is_none() {
            self.connection = match connect(self.site, self.control) {
                Ok(connection) => Some(connection),
                Err(OperateError::Interrupted) => return Err(OperateError::Interrupted),
                Err(OperateError::NotUp) => return Ok(None),
                Err(error) if error.is_unreached() => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        let Some(Connection { client, .. }) = &self.connection else { return Ok(None) };
        let asked = client.get("/v1/workers").and_then(|workers| Ok((workers, client.get("/v1/runs")?)));
        match asked {
            Ok((workers, runs)) => Ok(Some(Seen { workers, runs })),
            Err(error) if error.is_refusal() => Err(OperateError::refused(error)),
            Err(_) => {
                self.connection = None;
                Ok(None)
            }
        }
    }
}

/// Upgrades all containers to an image. If one does not come up with it, or a run fails meanwhile, all changed ones are
/// reverted, the last one first; also those of an interrupted upgrade.
///
/// # Errors
/// Problems found before anything is changed; the deployment is not up; an interruption, which leaves each container with
/// the one image or the other.
pub fn upgrade(
    site: &Site,
    image: &str,
    patience: Patience,
    control: Control<'_>,
) -> Result<Upgraded, OperateError> {
    let equipment = Equipment::find(site, control)?;
    checks::everywhere(&equipment, image)?;
    let mut watch = Watch { site, control, connection: Some(connect(site, control)?) };
    let seen = watch.look()?.ok_or(OperateError::NotUp)?;
    let (steps, record) = steps(&equipment, image, Doing::of(&seen))?;
    record.write(site)?;
    let mut done = Upgraded {
        image: image.to_owned(),
        changed: Vec::new(),
        unchanged: Vec::new(),
        failed: None,
        reason: None,
        broken: Vec::new(),
    };
    for step in &steps {
        let name = step.service.service.clone();
        control.check()?;
        let result = forwards(&equipment, &mut watch, step, image, &record.runs, patience);
        match result {
            Ok(true) => done.changed.push(name),
            Ok(false) => done.unchanged.push(name),
            Err(OperateError::Interrupted) => return Err(OperateError::Interrupted),
            Err(error) => {
                (control.tell)(&format!("{name} does not start with {image}: {error}"));
                done.failed = Some(name);
                done.reason = Some(error.to_string());
                break;
            }
        }
    }
    // An unknown result is no success: after an interruption the record stays, and the command can be repeated.
    let ended = match done.failed {
        None => what_ended(&record.runs, (SETTLED, patience.container), control, || watch.look())?,
        Some(_) => None,
    };
    if let Some(text) = ended {
        (control.tell)(&text);
        done.failed = steps.last().map(|step| step.service.service.clone());
        done.reason = Some(text);
    }
    if done.failed.is_some() {
        backwards(&equipment, &mut watch, &steps, record.runs, patience, &mut done)?;
        done.changed.clear();
        done.unchanged.clear();
    }
    if done.broken.is_empty() {
        images::keep(site.folder())?;
        Record::remove(site)?;
    }
    Ok(done)
}

/// Returns all services with their present images, workers in the order of the locations, then the controller; and the
/// earlier state.
fn steps<'a>(
    equipment: &Equipment<'a>,
    image: &str,
    doing: Doing,
) -> Result<(Vec<Step<'a>>, Record), OperateError> {
    let mut found = Vec::new();
    for (place, _) in equipment.places() {
        let containers = equipment.engine(place).containers(&place.location.project)?;
        for service in &place.location.services {
            let now = containers.iter().find(|one| one.service == service.service).cloned();
            let now = now.ok_or_else(|| Cause::Other {
                machine: place.machine.name(),
                what: format!("the upgrade of {}", service.service),
                text: "it has no container; `tidemill up` first".to_owned(),
            })?;
            let old = Old {
                location: place.location.name.clone(),
                service: service.service.clone(),
                image: now.image.clone(),
                id: now.image_id.clone(),
            };
            found.push((place, service, now, old));
        }
    }
    found.sort_by_key(|(_, service, ..)| service.role == ServiceRole::Controller);
    let now = found.iter().map(|(.., old)| old.clone()).collect();
    let record = Record::begin(Record::read(equipment.site)?, image, now, doing);
    let steps = found.into_iter().map(|(place, service, now, old)| {
        let old = record.old(&old.location, &old.service).cloned().unwrap_or(old);
        Step { place, service, now, old }
    });
    Ok((steps.collect(), record))
}

/// Changes a service to the image and waits until it works again; returns whether it had another one. One that has the
/// image is awaited as well, since it may be new.
fn forwards(
    equipment: &Equipment<'_>,
    watch: &mut Watch<'_>,
    step: &Step<'_>,
    image: &str,
    doing: &Doing,
    patience: Patience,
) -> Result<bool, OperateError> {
    let (place, name) = (step.place, &step.service.service);
    let id = equipment.engine(place).image(image)?.map(|facts| facts.id).unwrap_or_default();
    let target = Target { name: image, id: &id };
    let had_it = target.runs_in(&step.now);
    if !had_it {
        let from = if step.now.image == image { "the old image of that name" } else { &step.now.image };
        (equipment.control.tell)(&format!("{}: {name} from {from} to {image}", place.location.name));
    }
    name_image(equipment, step, image)?;
    if !had_it {
        start(equipment, step)?;
    }
    comes_up(equipment, watch, step, target, Some(doing), patience)?;
    Ok(!had_it)
}

/// Reverts services, the last one first.
fn backwards(
    equipment: &Equipment<'_>,
    watch: &mut Watch<'_>,
    steps: &[Step<'_>],
    doing: Doing,
    patience: Patience,
    done: &mut Upgraded,
) -> Result<(), OperateError> {
    let control = equipment.control;
    let mut doing = doing;
    for step in steps.iter().rev() {
        let name = step.service.service.clone();
        // Queried again: some have changed since the steps were made.
        let now = equipment.engine(step.place).container(&step.place.location.project, &name);
        let has_old = matches!(&now, Ok(Some(now)) if now.image_id == step.old.id && now.runs());
        let result = match has_old {
            // An interruption may have come between naming the image and the change.
            true => name_image(equipment, step, &step.old.image),
            false => {
                let has_controller = !done.broken.contains(&equipment.site.deployment().controller.service);
                go_back(equipment, watch, step, &mut doing, has_controller, patience)
            }
        };
        match result {
            Ok(()) => {}
            Err(OperateError::Interrupted) => return Err(OperateError::Interrupted),
            Err(error) => {
                (control.tell)(&format!("{name} does not start with {} either: {error}", step.old.image));
                done.broken.push(name);
            }
        }
    }
    Ok(())
}

fn go_back(
    equipment: &Equipment<'_>,
    watch: &mut Watch<'_>,
    step: &Step<'_>,
    doing: &mut Doing,
    has_controller: bool,
    patience: Patience,
) -> Result<(), OperateError> {
    let name = &step.service.service;
    // Its name may have moved to another image.
    let named =
        equipment.engine(step.place).image(&step.old.image)?.is_some_and(|facts| facts.id == step.old.id);
    let image = if named { &step.old.image } else { &step.old.id };
    (equipment.control.tell)(&format!("{}: {name} back to {image}", step.place.location.name));
    name_image(equipment, step, image)?;
    start(equipment, step)?;
    let target = Target { name: image, id: &step.old.id };
    if let Some(seen) = watch.look()? {
        *doing = std::mem::take(doing).without_failed(&seen);
    }
    // Without the controller only the worker's old image can be checked.
    comes_up(equipment, watch, step, target, has_controller.then_some(doing), patience)
}

/// Names an image of a service for Compose.
fn name_image(equipment: &Equipment<'_>, step: &Step<'_>, image: &str) -> Result<(), OperateError> {
    let (place, name) = (step.place, step.service.service.as_str());
    let usual = equipment.site.image(place);
    let mut own = images::read(place, &usual)?;
    match image == usual {
        true => own.remove(name),
        false => own.insert(name.to_owned(), image.to_owned()),
    };
    images::write(place, &usual, &own)
}

/// Recreates the container of a service for the named image.
fn start(equipment: &Equipment<'_>, step: &Step<'_>) -> Result<(), OperateError> {
    let (place, name) = (step.place, step.service.service.as_str());
    sending::folder(place, equipment.control)?;
    equipment.compose(place, &["up", "--detach", "--no-deps", name])?;
    // A query right away would see the old container.
    equipment.control.pause(SETTLED)
}

/// Waits until a service has an image, is healthy, and its runs work again; without `doing`, until its container runs.
fn comes_up(
    equipment: &Equipment<'_>,
    watch: &mut Watch<'_>,
    step: &Step<'_>,
    target: Target<'_>,
    doing: Option<&Doing>,
    patience: Patience,
) -> Result<(), OperateError> {
    let (place, name) = (step.place, step.service.service.as_str());
    let wanted = Wanted::of(place, name, "its former stages", patience.container);
    let wanted = Wanted { is_healthy: doing.is_some(), ..wanted };
    let worker = step.service.worker.as_deref();
    let mut missing = None;
    let found = wait(equipment, &wanted, |container| {
        if !target.is_of(container) {
            return Ok(false);
        }
        let Some(doing) = doing else { return Ok(true) };
        let Some(seen) = watch.look()? else { return Ok(false) };
        if worker.is_some_and(|worker| !seen.is_alive(worker)) {
            return Ok(false);
        }
        match doing.again(worker, &seen) {
            Again::Done => Ok(true),
            Again::NotYet(text) => {
                missing = Some(text);
                Ok(false)
            }
            Again::Ended(text) => {
                let (service, location) = (name.to_owned(), place.location.name.clone());
                Err(Cause::RunFailed { service, location, text }.into())
            }
        }
    });
    match found {
        Ok(_) => Ok(()),
        Err(OperateError::Causes(mut causes)) => {
            for cause in &mut causes {
                if let (Cause::TooLate { what, .. }, Some(missing)) = (cause, &missing) {
                    *what = format!("its former stages ({missing})");
                }
            }
            Err(OperateError::Causes(causes))
        }
        Err(other) => Err(other),
    }
}

/// Watches runs for a moment after the upgrade. Returns the reason if one has failed, or if that cannot be determined in
/// time.
///
/// # Errors
/// An interruption: then the result is unknown.
fn what_ended(
    doing: &Doing,
    (settled, patience): (Duration, Duration),
    control: Control<'_>,
    mut look: impl FnMut() -> Result<Option<Seen>, OperateError>,
) -> Result<Option<String>, OperateError> {
    control.pause(settled)?;
    let until = clock::now() + patience;
    loop {
        match look() {
            Ok(Some(seen)) => {
                return Ok(match doing.again(None, &seen) {
                    Again::Ended(text) => Some(text),
                    Again::Done | Again::NotYet(_) => None,
                });
            }
            Ok(None) => {}
            Err(OperateError::Interrupted) => return Err(OperateError::Interrupted),
            Err(error) => return Ok(Some(error.to_string())),
        }
        if clock::now() >= until {
            let seconds = patience.as_secs();
            return Ok(Some(format!(
                "the controller has not answered for {seconds} s after all containers started"
            )));
        }
        control.pause(LOOK)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::NOBODY;
    use runs::tests::seen;

    const AT_ONCE: (Duration, Duration) = (Duration::ZERO, Duration::ZERO);
    const LONG: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(50));

    #[test]
    fn a_run_that_fails_at_the_end_and_a_controller_that_is_silent_are_no_success() {
        let doing = Doing::of(&seen("running", &[]));
        let told = |state: &str| what_ended(&doing, LONG, NOBODY, || Ok(Some(seen(state, &[])))).unwrap();
        assert_eq!(told("running"), None);
        assert_eq!(told("complete"), None);
        assert!(told("failed").unwrap().contains("no model"));
        let silent = what_ended(&doing, AT_ONCE, NOBODY, || Ok(None)).unwrap().unwrap();
        assert!(silent.contains("has not answered"), "{silent}");
        let refused = what_ended(&doing, LONG, NOBODY, || Err(OperateError::NotUp)).unwrap();
        assert!(refused.is_some());
        // An answer in time counts.
        let mut looks = 0;
        let told = what_ended(&doing, LONG, NOBODY, || {
            looks += 1;
            Ok((looks > 2).then(|| seen("failed", &[])))
        });
        assert!(told.unwrap().unwrap().contains("no model"));
        assert_eq!(looks, 3);
    }

    /// Compose was interrupted between creating a container and starting it: repeating the command starts it.
    #[test]
    fn a_container_that_nobody_has_started_has_not_been_upgraded() {
        let target = Target { name: "tidemill:2", id: "sha256:2" };
        let of = |image_id: &str, status: &str| {
            let (image, image_id, status) = ("tidemill:2".into(), image_id.into(), status.into());
            Container { image, image_id, status, ..Container::default() }
        };
        assert!(target.runs_in(&of("sha256:2", "running")));
        assert!(!target.runs_in(&of("sha256:2", "created")) && !target.runs_in(&of("sha256:2", "exited")));
        assert!(!target.runs_in(&of("sha256:1", "running")));
    }

    #[test]
    fn an_end_that_somebody_wants_is_no_success() {
        let doing = Doing::of(&seen("running", &[]));
        let unseen = || -> Result<Option<Seen>, OperateError> { unreachable!("nobody looks any more") };
        let control = Control { tell: &|_| (), is_interrupted: &|| true };
        let error = what_ended(&doing, LONG, control, unseen).unwrap_err();
        assert!(matches!(error, OperateError::Interrupted));
        let error = what_ended(&doing, LONG, NOBODY, || Err(OperateError::Interrupted)).unwrap_err();
        assert!(matches!(error, OperateError::Interrupted));
    }
}
