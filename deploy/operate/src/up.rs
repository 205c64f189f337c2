//! Starts a deployment: the controller, then the devices and the workers, each of which joins with a token.
use crate::cause::{Cause, OperateError};
use crate::clock;
use crate::connection::{Connection, connect};
use crate::control::Control;
use crate::equipment::{Equipment, causes};
use crate::images::{self, Images};
use crate::readiness::{Patience, Wanted, wait};
use crate::site::{Place, Site};
use crate::upgrade::Record;
use crate::{checks, joining, leftovers, sending};
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;
use tidemill_cluster::api::{RunView, WorkerView};
use tidemill_cluster::client::segment;
use tidemill_deploy::deployment::{DeployedService, ServiceRole};
use tidemill_deploy::{IGNORED, IGNORED_FILE};

/// Polling interval for the state of a run.
const LOOK: Duration = Duration::from_millis(300);

/// Result of starting a deployment.
#[derive(Debug, Clone, Serialize)]
pub struct Up {
    /// The controller's address for this machine.
    pub address: String,
    /// Its page for a browser on this machine.
    pub page: String,
    /// The file with the access token of the first admin.
    pub token_file: String,
    /// Workers that have joined.
    pub workers: Vec<String>,
    /// By location: its machine and Compose program.
    pub machines: Vec<(String, String)>,
}

/// Starts everything and waits until all workers have joined. Running parts are left alone: a second call after a failure
/// continues.
///
/// # Errors
/// The problems, all of them if found before the start.
pub fn up(site: &Site, patience: Patience, control: Control<'_>) -> Result<(Up, Connection), OperateError> {
    let equipment = Equipment::find(site, control)?;
    are_own(&equipment)?;
    tell_of_before(site, control)?;
    // The files may have been rewritten since an upgrade whose images still count.
    images::keep(site.folder())?;
    tell_of_accelerators(&equipment);
    checks::look(&equipment)?;
    if let Some(name) = site.shared_network() {
        equipment.engine(site.controller()).make_network(name, site.id())?;
    }
    for place in site.places() {
        sending::folder(place, control)?;
    }
    // Workers that joined before find their controller by themselves. They start first, so that the controller does not
    // reassign their work. Devices start before them: processes of runs look for these at once.
    for role in [ServiceRole::Device, ServiceRole::Worker] {
        for place in site.places().iter().filter(|place| joining::is_prepared(place, role)) {
            start(&equipment, place, role)?;
        }
    }
    let connection = controller(&equipment, patience)?;
    keep_token(site, &connection.token)?;
    devices(&equipment, &connection, patience.container)?;
    let known: Vec<WorkerView> = connection.client.get("/v1/workers")?;
    for place in site.places() {
        if place.workers().next().is_none() {
            continue;
        }
        if joining::prepare(place, &connection, &known)? > 0 {
            sending::folder(place, control)?;
        }
        start(&equipment, place, ServiceRole::Worker)?;
        let names: Vec<&str> = place.workers().map(|(_, worker)| worker).collect();
        (control.tell)(&format!(
            "{}: {} started on {}",
            place.location.name,
            names.join(", "),
            place.machine.name()
        ));
    }
    let workers = joined(&equipment, &connection, patience.worker)?;
    // A worker reports its container's limits to the cluster at its start; the container that moves them comes afterwards.
    for place in site.places() {
        let Some(service) = place.elastic() else { continue };
        start(&equipment, place, ServiceRole::Elastic)?;
        let wanted = Wanted::of(place, &service.service, "limits that follow the load", patience.container);
        wait(&equipment, &Wanted { is_healthy: true, ..wanted }, |_| Ok(true))?;
        (control.tell)(&format!(
            "{}: limits of the workers on {} follow their load",
            place.location.name,
            place.machine.name()
        ));
    }
    let machines = equipment.places().map(|(place, found)| {
        (
            place.location.name.clone(),
            format!("{}, engine {}, {}", place.machine.name(), found.facts.version, found.compose.name()),
        )
    });
    let up = Up {
        address: connection.address.to_string(),
        page: format!("https://{}/", connection.address.host_and_port()),
        token_file: site.admin_token().display().to_string(),
        workers,
        machines: machines.collect(),
    };
    Ok((up, connection))
}

/// Checks that no other deployment has these names on the machines.
fn are_own(equipment: &Equipment<'_>) -> Result<(), OperateError> {
    let mut wrong = Vec::new();
    for (place, _) in equipment.places() {
        let found = equipment.engine(place).of_others(&place.location.project, equipment.site.id());
        if let Some(what) = causes(found, &mut wrong)?.filter(|what| !what.is_empty()) {
            wrong.push(Cause::OtherDeployment { machine: place.machine.name(), what });
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(OperateError::of(wrong)) }
}

/// Reports the remains of upgrades and earlier plans.
fn tell_of_before(site: &Site, control: Control<'_>) -> Result<(), OperateError> {
    for place in site.places() {
        let (usual, name) = (site.image(place), &place.location.name);
        if let Some(beside) = images::outdated(place, &usual)? {
            images::write(place, "", &Images::new())?;
            // Its state to revert to is older than the deployment.
            Record::remove(site)?;
            (control.tell)(&format!(
                "{name}: ignoring the images of an upgrade of {beside}, because the deployment has {usual} now"
            ));
        }
        for (service, image) in images::read(place, &usual)? {
            (control.tell)(&format!("{name}: {service} has {image} from an upgrade, the deployment {usual}"));
        }
    }
    if let Some(record) = Record::read(site)? {
        (control.tell)(&format!(
            "an upgrade to {} is incomplete: the same `tidemill deployment upgrade` continues it, one to the old image reverts it",
            record.image
        ));
    }
    for left in leftovers::find(site, control)? {
        (control.tell)(&format!("remains of an earlier plan, which `tidemill down` removes: {left}"));
    }
    Ok(())
}

/// Reports machines whose accelerators their containers do not get.
fn tell_of_accelerators(equipment: &Equipment<'_>) {
    for (place, found) in equipment.places() {
        if place.location.has_gpu_overlay && !found.facts.has_gpu {
            (equipment.control.tell)(&format!(
                "{}: workers and devices get no accelerators, the container engine of {} has no runtime `nvidia` (NVIDIA's container toolkit adds it)",
                place.location.name,
                place.machine.name()
            ));
        }
    }
}

/// Starts the devices and waits until all of them serve: a run ends if one is not there when it begins.
fn devices(
    equipment: &Equipment<'_>,
    connection: &Connection,
    patience: Duration,
) -> Result<(), OperateError> {
    for (place, _) in equipment.places() {
        let containers = equipment.engine(place).containers(&place.location.project)?;
        let serves = |service: &DeployedService| {
            let mut own = containers.iter().filter(|one| one.service == service.service);
            own.any(|one| one.runs() && one.health.as_deref() == Some("healthy"))
        };
        let mut is_new = false;
        for (service, device) in place.devices().filter(|(service, _)| !serves(service)) {
            joining::prepare_device(place, connection, service, &device.name)?;
            is_new = true;
        }
        if is_new {
            sending::folder(place, equipment.control)?;
        }
        start(equipment, place, ServiceRole::Device)?;
    }
    let mut missing = Vec::new();
    for (place, _) in equipment.places() {
        for (service, device) in place.devices() {
            let wanted = Wanted::of(place, &service.service, "the device", patience);
            let result = wait(equipment, &Wanted { is_healthy: true, ..wanted }, |_| Ok(true));
            if causes(result, &mut missing)?.is_some() {
                (equipment.control.tell)(&format!(
                    "{}: the device {} serves at {} on {}",
                    place.location.name,
                    device.id,
                    device.address,
                    place.machine.name()
                ));
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(OperateError::of(missing)) }
}

/// Starts services of a kind; Compose leaves correct ones alone.
fn start(equipment: &Equipment<'_>, place: &Place, role: ServiceRole) -> Result<(), OperateError> {
    let services = place.location.services.iter().filter(|service| service.role == role);
    let names: Vec<&str> = services.map(|service| service.service.as_str()).collect();
    // Without names Compose would start all.
    if names.is_empty() {
        return Ok(());
    }
    equipment.compose(place, &[&["up", "--detach", "--no-deps"][..], &names].concat())
}

/// Starts the controller and waits until it answers.
fn controller(equipment: &Equipment<'_>, patience: Patience) -> Result<Connection, OperateError> {
    let place = equipment.site.controller();
    let service = equipment.site.deployment().controller.service.clone();
    start(equipment, place, ServiceRole::Controller).map_err(|error| with_owner(equipment, place, error))?;
    let mut connection = None;
    let wanted = Wanted::of(place, &service, "an answer", patience.container);
    wait(equipment, &wanted, |_| {
        let found = match connect(equipment.site, equipment.control) {
            Ok(found) => found,
            Err(OperateError::NotUp) => return Ok(false),
            Err(error) => return Err(error),
        };
        // Its port opens shortly after its files appear. A refusal is repeated.
        let answers = match found.client.get::<Vec<WorkerView>>("/v1/workers") {
            Ok(_) => true,
            Err(error) if error.is_refusal() => return Err(OperateError::refused(error)),
            Err(_) => false,
        };
        connection = Some(found);
        Ok(answers)
    })?;
    let page =
        connection.as_ref().map(|one: &Connection| format!("https://{}/", one.address.host_and_port()));
    (equipment.control.tell)(&format!(
        "{}: the controller answers on {}, {}",
        place.location.name,
        place.machine.name(),
        page.unwrap_or_default()
    ));
    connection.ok_or(OperateError::NotUp)
}

/// Adds the owner of a port that is in use.
fn with_owner(equipment: &Equipment<'_>, place: &Place, error: OperateError) -> OperateError {
    let OperateError::Causes(mut found) = error else { return error };
    for cause in &mut found {
        if let Cause::PortTaken { port, by, .. } = cause
            && *port > 0
        {
            *by = equipment.engine(place).owner_of_port(*port).ok().flatten();
        }
    }
    OperateError::Causes(found)
}

/// Stores the access token for `tidemill login` and others, readable for this user alone.
fn keep_token(site: &Site, token: &str) -> Result<(), OperateError> {
    ignore_secrets(site)?;
    let path = site.admin_token();
    let written = || {
        let _ = fs::remove_file(&path); // one with other rights would keep them
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        writeln!(file, "{token}")
    };
    written().map_err(|source| OperateError::File { path: path.clone(), source })
}

/// Keeps secrets out of a repository, also in a folder that an older version wrote.
fn ignore_secrets(site: &Site) -> Result<(), OperateError> {
    let path = site.path(IGNORED_FILE);
    let failed = |source| OperateError::File { path: path.clone(), source };
    let known = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(error)),
    };
    let missing: Vec<&str> =
        IGNORED.lines().filter(|line| !known.lines().any(|one| one.trim() == *line)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let end = if known.is_empty() || known.ends_with('\n') { "" } else { "\n" };
    fs::write(&path, format!("{known}{end}{}\n", missing.join("\n"))).map_err(failed)
}

/// Waits until all workers have joined; returns their names. Reports all that have not, with reasons.
fn joined(
    equipment: &Equipment<'_>,
    connection: &Connection,
    patience: Duration,
) -> Result<Vec<String>, OperateError> {
    let (mut joined, mut missing) = (Vec::new(), Vec::new());
    let until = clock::now() + patience;
    for (place, _) in equipment.places() {
        for (service, worker) in place.workers() {
            // All have one deadline: the later ones used the time during which the first was awaited.
            let patience = until.saturating_duration_since(clock::now()).max(Duration::from_secs(2));
            let wanted = Wanted::of(place, &service.service, "its joining", patience);
            let result = wait(equipment, &wanted, |_| Ok(alive(connection)?.iter().any(|one| one == worker)));
            if causes(result, &mut missing)?.is_some() {
                joined.push(worker.to_owned());
            }
        }
    }
    if missing.is_empty() { Ok(joined) } else { Err(OperateError::of(missing)) }
}

/// Returns the workers with a recent heartbeat. None if the controller does not answer at the moment.
pub(crate) fn alive(connection: &Connection) -> Result<Vec<String>, OperateError> {
    match connection.client.get::<Vec<WorkerView>>("/v1/workers") {
        Ok(workers) => Ok(workers.into_iter().filter(|one| one.is_alive).map(|one| one.name).collect()),
        Err(error) if error.is_refusal() => Err(error.into()),
        Err(_) => Ok(Vec::new()),
    }
}

/// Waits until a run's processes are up, or it is over.
///
/// # Errors
/// The timeout is over; the controller does not know the run.
pub fn submitted(
    connection: &Connection,
    run: &str,
    patience: Patience,
    control: Control<'_>,
) -> Result<RunView, OperateError> {
    let until = clock::now() + patience.run;
    loop {
        let view: RunView = connection.client.get(&format!("/v1/runs/{}", segment(run)))?;
        let stands = view.state == tidemill_cluster::api::RunState::Running;
        if stands || view.state.is_over() || clock::now() >= until {
            return Ok(view);
        }
        control.pause(LOOK)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::tests::written;

    /// The files of the folder that Git would add.
    fn taken(folder: &std::path::Path) -> String {
        let git = |words: &[&str]| {
            let told = std::process::Command::new("git").args(words).current_dir(folder).output().unwrap();
            assert!(told.status.success(), "{words:?}: {}", String::from_utf8_lossy(&told.stderr));
            String::from_utf8(told.stdout).unwrap()
        };
        git(&["init", "--quiet"]);
        git(&["ls-files", "--others", "--exclude-standard"])
    }

    #[test]
    fn secrets_stay_out_of_a_repository_with_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        fs::write(folder.path().join(".gitignore"), "own\n.env").unwrap();
        let site = Site::load(folder.path()).unwrap();
        keep_token(&site, "secret").unwrap();
        keep_token(&site, "secret").unwrap();
        for name in ["own", "hub/.env", "hub/compose.images.yaml", "upgrade.json"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let taken = taken(folder.path());
        assert_eq!(taken, ".gitignore\ndeployment.json\nedge/compose.yaml\nhub/compose.yaml\n");
        let ignored = fs::read_to_string(folder.path().join(".gitignore")).unwrap();
        assert_eq!(ignored.lines().filter(|line| *line == ".env").count(), 1, "{ignored}");
    }

    #[test]
    fn accelerators_that_an_engine_does_not_give_are_told() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        crate::site::tests::changed(folder.path(), |document| {
            document["locations"][0]["has_gpu_overlay"] = true.into();
        });
        let told = |runtimes: &str| {
            let info = format!(
                r#"{{"ServerVersion": "28", "Architecture": "x86_64", "DockerRootDir": "/", "Runtimes": {runtimes}}}"#
            );
            let script = format!("case \"$1\" in info) echo '{info}' ;; compose) echo 2.26.1 ;; esac");
            let machine = crate::machine::tests::scripted(folder.path(), &[("docker", &script)]);
            let site = Site::load(folder.path()).unwrap().on("hub", &machine).on("edge", &machine);
            let told = std::sync::Mutex::new(Vec::new());
            let tell = |text: &str| told.lock().unwrap().push(text.to_owned());
            let control = Control { tell: &tell, is_interrupted: &|| false };
            tell_of_accelerators(&Equipment::find(&site, control).unwrap());
            told.into_inner().unwrap()
        };
        let without = told(r#"{"runc": {}}"#);
        assert!(
            without.len() == 1 && without[0].starts_with("edge: workers and devices get no accelerators"),
            "{without:?}"
        );
        assert_eq!(told(r#"{"runc": {}, "nvidia": {}}"#), Vec::<String>::new());
    }

    #[test]
    fn images_of_before_are_told_and_those_of_another_deployment_go() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let site = Site::load(folder.path()).unwrap();
        let write = |place: &Place, beside: &str| {
            images::write(place, beside, &[("controller".to_owned(), "tidemill:2".to_owned())].into())
                .unwrap();
        };
        write(&site.places()[0], "tidemill:0");
        write(&site.places()[1], "tidemill:1");
        fs::write(site.upgrade_record(), r#"{"image": "tidemill:2", "services": [], "runs": {}}"#).unwrap();
        let told = std::sync::Mutex::new(Vec::new());
        let tell = |text: &str| told.lock().unwrap().push(text.to_owned());
        tell_of_before(&site, Control { tell: &tell, is_interrupted: &|| false }).unwrap();
        let told = told.into_inner().unwrap().join("\n");
        assert!(!site.upgrade_record().exists(), "what came before tidemill:0 is nothing to go back to");
        assert!(told.contains("edge: ignoring the images of an upgrade of tidemill:0"), "{told}");
        assert!(told.contains("hub: controller has tidemill:2 from an upgrade"), "{told}");
        let is_there = |name: &str| folder.path().join(name).join(images::FILE_NAME).exists();
        assert_eq!((is_there("edge"), is_there("hub")), (false, true));
    }
}
