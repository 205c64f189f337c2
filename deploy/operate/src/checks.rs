//! Checks before anything is started: all problems are reported at once.
use crate::cause::{Cause, OperateError};
use crate::clock;
use crate::engine::Engine;
use crate::equipment::{Equipment, Found, causes};
use crate::images;
use crate::listeners;
use crate::machine::{Call, Machine};
use crate::sending;
use crate::site::{Place, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

/// Least free space besides that of missing images; less is reported in advance.
const LEAST_MIB: u64 = 512;
const MIB: u64 = 1 << 20;
/// Largest tolerated clock offset in seconds: more makes certificates count as expired or not valid yet, and latency
/// figures wrong.
const CLOCK: u64 = 5;

/// Returns the images of a location's services: those of an upgrade, else the deployment's.
pub(crate) fn images_of(equipment: &Equipment<'_>, place: &Place) -> Result<BTreeSet<String>, OperateError> {
    let usual = equipment.site.image(place);
    let own = images::read(place, &usual)?;
    let all = place.location.services.iter();
    Ok(all.map(|one| own.get(&one.service).cloned().unwrap_or_else(|| usual.clone())).collect())
}

/// Checks everything, and sends missing images.
///
/// # Errors
/// All problems.
pub(crate) fn look(equipment: &Equipment<'_>) -> Result<(), OperateError> {
    let mut found = Vec::new();
    let mut wanted = Vec::new();
    for (place, has) in equipment.places() {
        for name in images_of(equipment, place)? {
            wanted.push((place, has, name));
        }
    }
    let missing = lacking(equipment, wanted, &mut found)?;
    for (place, _) in equipment.machines() {
        causes(time(equipment, place), &mut found)?;
    }
    causes(ports(equipment), &mut found)?;
    if !found.is_empty() {
        return Err(OperateError::of(found));
    }
    send(equipment, &missing)
}

/// Checks everything for one image on all machines, and sends it.
///
/// # Errors
/// All problems.
pub(crate) fn everywhere(equipment: &Equipment<'_>, name: &str) -> Result<(), OperateError> {
    let mut found = Vec::new();
    let wanted = equipment.places().map(|(place, has)| (place, has, name.to_owned())).collect();
    let missing = lacking(equipment, wanted, &mut found)?;
    if !found.is_empty() {
        return Err(OperateError::of(found));
    }
    send(equipment, &missing)
}

/// An image that a machine lacks and this one has.
struct Lacking<'a> {
    place: &'a Place,
    name: String,
    bytes: u64,
}

/// Returns the images to send, each once per machine, after a check of the free space.
fn lacking<'a>(
    equipment: &Equipment<'a>,
    wanted: Vec<(&'a Place, &Found, String)>,
    found: &mut Vec<Cause>,
) -> Result<Vec<Lacking<'a>>, OperateError> {
    let mut missing: Vec<Lacking<'a>> = Vec::new();
    for (place, has, name) in wanted {
        let is_known = |one: &Lacking<'_>| one.place.machine == place.machine && one.name == name;
        if missing.iter().any(is_known) {
            continue;
        }
        if let Some(Some(bytes)) = causes(image(equipment, place, has, &name), found)? {
            missing.push(Lacking { place, name, bytes });
        }
    }
    for (place, has) in equipment.machines() {
        let of_machine = missing.iter().filter(|one| one.place.machine == place.machine);
        let bytes: u64 = of_machine.map(|one| one.bytes).sum();
        // Running containers need no further space.
        if bytes == 0 && all_run(equipment, &place.machine)? {
            continue;
        }
        causes(disk(equipment, place, has, bytes), found)?;
    }
    Ok(missing)
}

/// Whether all containers of a machine run there.
fn all_run(equipment: &Equipment<'_>, machine: &Machine) -> Result<bool, OperateError> {
    for place in equipment.site.places().iter().filter(|place| place.machine == *machine) {
        let running = equipment.engine(place).containers(&place.location.project)?;
        let runs = |name: &str| running.iter().any(|one| one.service == name && one.pid > 0);
        if !place.location.services.iter().all(|one| runs(&one.service)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn send(equipment: &Equipment<'_>, missing: &[Lacking<'_>]) -> Result<(), OperateError> {
    for Lacking { place, name, bytes } in missing {
        (equipment.control.tell)(&format!("copying {name} to {}, {} MiB", place.machine.name(), bytes / MIB));
        sending::image(place, name, equipment.control)?;
    }
    Ok(())
}

/// Checks that the image exists for the machine's processors; else returns its size if this machine has it.
fn image(
    equipment: &Equipment<'_>,
    place: &Place,
    has: &Found,
    name: &str,
) -> Result<Option<u64>, OperateError> {
    let own = Engine::of(&place.machine, equipment.control).image(name)?;
    let is_there = own.is_some();
    let found = match own {
        None if !place.machine.is_here() => {
            // Without an engine here there is no image here.
            causes(Engine::of(&Machine::Here, equipment.control).image(name), &mut Vec::new())?.flatten()
        }
        own => own,
    };
    let Some(facts) = found else {
        return Err(Cause::ImageMissing { machine: place.machine.name(), image: name.to_owned() }.into());
    };
    match facts.architecture.is_empty() || facts.architecture == has.facts.architecture {
        true => Ok((!is_there).then_some(facts.bytes)),
        false => Err(Cause::ArchitectureDiffers {
            machine: place.machine.name(),
            architecture: has.facts.architecture.clone(),
            image: name.to_owned(),
            image_architecture: facts.architecture,
        }
        .into()),
    }
}

/// Checks the free space in the engine's folder.
fn disk(equipment: &Equipment<'_>, place: &Place, has: &Found, bytes: u64) -> Result<(), OperateError> {
    let told = place.machine.run(&Call::look(&["df", "-Pk", &has.facts.folder]), equipment.control)?;
    // An engine in a virtual machine has its folder there, where it cannot be checked.
    let Some(free_mib) = free_mib(&told.text()).filter(|_| told.is_ok()) else { return Ok(()) };
    // The archive occupies space while it is unpacked.
    let needed_mib = LEAST_MIB + 2 * bytes / MIB;
    if free_mib >= needed_mib {
        return Ok(());
    }
    let (machine, folder) = (place.machine.name(), has.facts.folder.clone());
    Err(Cause::NoDisk { machine, folder, free_mib, needed_mib }.into())
}

/// Parses the available space of `df -Pk`, MiB.
fn free_mib(text: &str) -> Option<u64> {
    let kib: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib / 1024)
}

/// Checks that the clock of another machine agrees with this one.
fn time(equipment: &Equipment<'_>, place: &Place) -> Result<(), OperateError> {
    if place.machine.is_here() {
        return Ok(());
    }
    let before = clock::civil();
    let told = place.machine.run(&Call::look(&["date", "+%s"]), equipment.control)?;
    let after = clock::civil();
    let Some(there) = told.text().parse::<u64>().ok().filter(|_| told.is_ok()) else { return Ok(()) };
    match offset(before, after, there) {
        seconds if seconds.unsigned_abs() > CLOCK => {
            Err(Cause::ClockOff { machine: place.machine.name(), seconds }.into())
        }
        _ => Ok(()),
    }
}

/// Returns the least possible offset in seconds of a clock that showed `there` between two times of ours.
fn offset(before: Duration, after: Duration, there: u64) -> i64 {
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    let (before, after, there) = (signed(before.as_secs()), signed(after.as_secs()), signed(there));
    if there < before { there - before } else { (there - after).max(0) }
}

/// Checks that the ports of containers on their machines are free, or their own already.
fn ports(equipment: &Equipment<'_>) -> Result<(), OperateError> {
    let mut taken = shared_ports(equipment.site);
    for place in equipment.site.places() {
        let there = match place.machine.is_here() {
            true => None,
            false => Some(listening(equipment, place)?),
        };
        let is_taken = |address: &str, port: u16| match &there {
            Some(there) => listeners::take(there, address, port),
            None => is_taken_here(address, port),
        };
        let engine = equipment.engine(place);
        let running = engine.containers(&place.location.project)?;
        for service in &place.location.services {
            if running.iter().any(|one| one.service == service.service && one.pid > 0) {
                continue;
            }
            for (address, port) in equipment.site.wanted_ports(place, service) {
                if is_taken(&address, port) {
                    let by = engine.owner_of_port(port)?;
                    taken.push(Cause::PortTaken { machine: place.machine.name(), port, by });
                }
            }
        }
    }
    if taken.is_empty() { Ok(()) } else { Err(OperateError::of(taken)) }
}

/// Returns ports that two containers of the deployment need on one machine.
fn shared_ports(site: &Site) -> Vec<Cause> {
    let mut wanted: BTreeMap<(String, u16), Vec<(String, &str)>> = BTreeMap::new();
    let mut found = Vec::new();
    for place in site.places() {
        for service in &place.location.services {
            for (address, port) in site.wanted_ports(place, service) {
                let machine = place.machine.name();
                let before = wanted.entry((machine.clone(), port)).or_default();
                let meets = |other: &String| {
                    let is_any = |address: &str| matches!(address, "0.0.0.0" | "[::]" | "*");
                    *other == address || is_any(other) || is_any(&address)
                };
                if let Some((_, other)) = before.iter().find(|(other, _)| meets(other)) {
                    let services = [(*other).to_owned(), service.service.clone()];
                    found.push(Cause::PortShared { machine, port, services });
                }
                before.push((address, &service.service));
            }
        }
    }
    found
}

/// Returns the listeners on another machine; none if it does not report them.
fn listening(equipment: &Equipment<'_>, place: &Place) -> Result<Vec<(IpAddr, u16)>, OperateError> {
    let [first, second] = listeners::FILES;
    let told = place.machine.run(&Call::look(&["cat", first, second]), equipment.control)?;
    Ok(listeners::read(&told.text()))
}

/// Whether a listener is there. An address that this machine lacks is left to the container.
fn is_taken_here(address: &str, port: u16) -> bool {
    let bound = TcpListener::bind((address.trim_matches(['[', ']']), port));
    bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::tests::{changed, written};

    #[test]
    fn a_clock_is_off_by_what_cannot_be_the_way_there() {
        let at = Duration::from_secs;
        assert_eq!(offset(at(100), at(103), 101), 0);
        assert_eq!(offset(at(100), at(103), 103), 0);
        assert_eq!(offset(at(100), at(103), 90), -10);
        assert_eq!(offset(at(100), at(103), 203), 100);
    }

    #[test]
    fn free_space_is_read() {
        let text =
            "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 1000 1 2097152 1% /\n";
        assert_eq!(free_mib(text), Some(2048));
        assert_eq!(free_mib("df: no such file"), None);
    }

    /// Two deployments on the networks of their machines; one is up.
    #[test]
    fn ports_that_somebody_has_are_told_all_at_once_and_those_of_running_containers_are_their_own() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let listeners: Vec<TcpListener> =
            (0..4).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
        let port = |index: usize| listeners[index].local_addr().unwrap().port();
        changed(folder.path(), |document| {
            document["network"] = serde_json::json!({"mode": "host"});
            document["format"] = 2.into();
            document["id"] = "live".into();
            document["controller"]["port"] = port(0).into();
            document["controller"]["hosts_port"] = port(1).into();
            document["controller"].as_object_mut().unwrap().remove("published");
            document["locations"][1]["services"][0]["metrics_port"] = port(2).into();
            document["locations"][0]["services"][0]["metrics_port"] = port(3).into();
        });
        let site = Site::load(folder.path()).unwrap();
        let wanted = |location: usize, service: usize| {
            let place = &site.places()[location];
            site.wanted_ports(place, &place.location.services[service])
        };
        let all = [wanted(1, 0), wanted(0, 0)].concat();
        assert_eq!(
            all.iter().map(|(_, port)| *port).collect::<Vec<_>>(),
            [port(0), port(1), port(2), port(3)]
        );
        assert!(all.iter().all(|(address, port)| is_taken_here(address, *port)), "{all:?}");
        drop(listeners);
        assert!(!all.iter().any(|(address, port)| is_taken_here(address, *port)), "{all:?}");
        // On a bridge only one port is the machine's.
        written(folder.path(), None);
        let site = Site::load(folder.path()).unwrap();
        let place = site.controller();
        let services = &place.location.services;
        assert_eq!(site.wanted_ports(place, &services[0]), [("127.0.0.1".to_owned(), 7420)]);
        assert!(site.wanted_ports(place, &services[1]).is_empty());
    }

    /// Two workers of one machine whose sources would listen at one port.
    #[test]
    fn ports_of_sources_are_looked_at_and_no_two_containers_get_one() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let both = |edge: &[&str], hub: &[&str]| {
            changed(folder.path(), |document| {
                document["locations"][0]["services"][0]["sources"] = edge.into();
                document["locations"][1]["services"][1]["sources"] = hub.into();
            });
            Site::load(folder.path()).unwrap()
        };
        let site = both(&["10.0.0.1:4100", "[::]:4101"], &["0.0.0.0:4102"]);
        let edge = &site.places()[0];
        let wanted = site.wanted_ports(edge, &edge.location.services[0]);
        assert_eq!(wanted, [("0.0.0.0".to_owned(), 4100), ("0.0.0.0".to_owned(), 4101)], "published");
        assert!(shared_ports(&site).is_empty());
        let found = shared_ports(&both(&["10.0.0.1:4101"], &["10.0.0.2:4101"]));
        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["port 4101 of this machine is needed by worker-edge-1 and by worker-hub-1"]);
        // There is no conflict on separate machines, nor at separate addresses.
        let far = crate::machine::tests::scripted(folder.path(), &[]);
        assert!(shared_ports(&both(&["0.0.0.0:4101"], &["0.0.0.0:4101"]).on("hub", &far)).is_empty());
        changed(folder.path(), |document| document["network"] = serde_json::json!({"mode": "host"}));
        changed(folder.path(), |document| {
            document["controller"].as_object_mut().unwrap().remove("published");
            document["locations"][1]["services"][1]["metrics_port"] = 9466.into();
        });
        assert_eq!(shared_ports(&both(&["10.0.0.1:4101"], &["10.0.0.2:4101"])), []);
        assert_eq!(shared_ports(&both(&["10.0.0.1:4101"], &["0.0.0.0:4101"])).len(), 1);
    }

    /// Runs `up` on another machine with these outputs of `date`, `df` and `cat`.
    fn up_with(date: &str, df: &str, cat: &str) -> (OperateError, String) {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let info = r#"{"ServerVersion": "28", "Architecture": "x86_64", "DockerRootDir": "/var/lib/docker"}"#;
        let image = r#"[{"Id": "sha256:1", "Architecture": "amd64", "Size": 1000}]"#;
        let docker = format!(
            "echo \"$*\" >>calls\ncase \"$1\" in\n info) echo '{info}' ;;\n image) echo '{image}' ;;\n \
             compose) case \"$*\" in *' up '*) echo 'not today' >&2; exit 1 ;; *) echo 2.26.1 ;; esac ;;\nesac"
        );
        let programs = [("docker", docker.as_str()), ("date", date), ("df", df), ("cat", cat)];
        let machine = crate::machine::tests::scripted(folder.path(), &programs);
        let site = Site::load(folder.path()).unwrap().on("hub", &machine).on("edge", &machine);
        let nobody = crate::machine::tests::NOBODY;
        let error = crate::up::up(&site, crate::readiness::Patience::default(), nobody).err().unwrap();
        (error, std::fs::read_to_string(folder.path().join("calls")).unwrap())
    }

    #[test]
    fn a_wrong_clock_and_a_full_disk_of_a_machine_are_told_together_and_nothing_is_started() {
        let enough = "echo Filesystem; echo /dev/vda 9 1 90000000 1% /";
        let late = "echo $(( $(/bin/date +%s) - 90 ))";
        let full = "echo Filesystem; echo /dev/vda 9 9 102400 99% /";
        let (error, calls) = up_with(late, full, "");
        let OperateError::Causes(causes) = &error else { panic!("{error}") };
        let codes: Vec<&str> = causes.iter().map(Cause::code).collect();
        assert_eq!(codes, ["no_disk", "clock_off"], "{error}");
        assert!(error.to_string().contains("100 MiB left in /var/lib/docker"), "{error}");
        let Some(Cause::ClockOff { seconds, .. }) = causes.last() else { panic!("{error}") };
        assert!((-91..=-85).contains(seconds), "{error}");
        assert!(!calls.contains(" up ") && !calls.contains("network create"), "{calls}");
        // A single problem.
        let (error, calls) = up_with(late, enough, "");
        assert!(
            matches!(&error, OperateError::Causes(all) if all.len() == 1 && all[0].code() == "clock_off"),
            "{error}"
        );
        assert!(!calls.contains(" up "), "{calls}");
    }

    #[test]
    fn a_port_that_somebody_has_on_another_machine_is_told_and_nothing_is_started() {
        let enough = "echo Filesystem; echo /dev/vda 9 1 90000000 1% /";
        let taken = "echo ' 0: 0100007F:1CFC 00000000:0000 0A'";
        let (error, calls) = up_with("exec /bin/date +%s", enough, taken);
        let OperateError::Causes(causes) = &error else { panic!("{error}") };
        assert!(matches!(&causes[..], [Cause::PortTaken { port: 7420, .. }]), "{error}");
        assert!(!calls.contains(" up "), "{calls}");
    }
}
