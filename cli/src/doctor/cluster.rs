//! A cluster: its controller, its workers, their clocks, disks and certificates, and whether they reach each other.
use super::Finding;
use crate::arguments::DoctorArguments;
use crate::cluster::{client, failure};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use tidemill_app::figures::bytes;
use tidemill_cluster::api::{ControllerView, ProbeView, SharedView, WorkerView};
use tidemill_cluster::client::Client;
use tidemill_identity::{JoinAddress, Timestamp};

/// Time that workers have to dial each other.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two questions whether they have.
const LOOK: Duration = Duration::from_millis(300);
/// To connect to a port.
const CONNECT: Duration = Duration::from_secs(3);
const DAY: u64 = 24 * 60 * 60;

/// Known facts about this machine.
struct Own {
    version: &'static str,
    /// The clock of this machine less that of the controller, milliseconds.
    clock_offset: i64,
    /// The error of a connection from here to the port for processes of runs.
    hosts_port: Result<(), String>,
    now: Timestamp,
}

#[expect(clippy::disallowed_methods, reason = "clocks of machines are compared, and patience is real time")]
fn instant() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "clocks of machines are compared")]
fn civil_milliseconds() -> i64 {
    let passed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn look(arguments: &DoctorArguments) -> anyhow::Result<Vec<Finding>> {
    let client = client(&arguments.of)?;
    // The first question makes the connection, the second one is on time.
    let first: Result<ControllerView, _> = client.get("/v1/controller");
    let asked = instant();
    let controller = match first.and_then(|_| client.get::<ControllerView>("/v1/controller")) {
        Ok(controller) => controller,
        Err(error) => {
            return Ok(vec![unreachable_controller(&failure(&error).to_string(), error.is_refusal())]);
        }
    };
    let half = i64::try_from(asked.elapsed().as_millis() / 2).unwrap_or(0);
    let there = i64::try_from(controller.time_milliseconds).unwrap_or(i64::MAX);
    let own = Own {
        version: env!("CARGO_PKG_VERSION"),
        clock_offset: civil_milliseconds() - half - there,
        hosts_port: reach(&controller),
        now: Timestamp::now(),
    };
    let mut findings = of_controller(&controller, &own);
    let workers: Vec<WorkerView> = client.get("/v1/workers").map_err(|error| failure(&error))?;
    findings.extend(of_workers(&workers, &controller, &own));
    if workers.iter().filter(|worker| worker.is_alive).count() > 1 {
        findings.extend(of_links(&probe(&client)?));
    }
    Ok(findings)
}

fn unreachable_controller(text: &str, is_refusal: bool) -> Finding {
    let finding = Finding::problem("controller", text);
    match is_refusal {
        true => finding.fix("log in again: tidemill login ADDRESS --token-file FILE"),
        false => finding.fix(
            "start it (tidemill controller --state DIR), open its port (7420 unless --listen says another), or correct the address: \
             tidemill login ADDRESS",
        ),
    }
}

fn reach(controller: &ControllerView) -> Result<(), String> {
    let address = controller.address.parse::<JoinAddress>().map_err(|error| error.to_string())?;
    let place = (address.host().trim_matches(['[', ']']), controller.hosts_port);
    let mut why = "its host has no address".to_owned();
    for address in place.to_socket_addrs().map_err(|error| error.to_string())? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

fn probe(client: &Client) -> anyhow::Result<ProbeView> {
    let begun = instant();
    let mut view: ProbeView = client.post("/v1/probes", &()).map_err(|error| failure(&error))?;
    while !view.waiting.is_empty() && begun.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
        view = client.get("/v1/probes").map_err(|error| failure(&error))?;
    }
    Ok(view)
}

fn of_controller(controller: &ControllerView, own: &Own) -> Vec<Finding> {
    let name = "controller";
    let reached = Finding::ok(name, format!("{}, version {}", controller.address, controller.version));
    let port = controller.hosts_port;
    let hosts_port = match &own.hosts_port {
        Ok(()) => Finding::ok("port of runs", format!("{port} is reachable from here")),
        Err(why) => Finding::note("port of runs", format!("{port} is not reachable from here: {why}"))
            .fix(format!("workers need it: open port {port} of the controller's machine for them")),
    };
    let mut findings = vec![
        reached,
        version("your version", own.version, controller),
        clock("your clock", own.clock_offset),
        ends("controller: certificate", controller.certificate_ends, own.now).unwrap_or_else(|finding| {
            finding.fix("the controller renews it ten days before; its log says why it did not. Restart it to get a new one")
        }),
        disk("controller: disk", controller.disk_free_bytes),
        hosts_port,
    ];
    findings.extend(controller.shared.as_ref().map(of_several));
    findings
}

/// Several controllers that share a database.
fn of_several(shared: &SharedView) -> Finding {
    let SharedView { store, term, stand_by } = shared;
    let places: Vec<&str> = stand_by.iter().map(|other| other.place.as_str()).collect();
    let leads = format!("it leads, in term {term}; shared by {store}");
    match places.len() {
        0 => Finding::note("controllers", format!("{leads}; no standby controller"))
            .fix("start another one on another machine, with the same --store and a copy of identities/authority.pem"),
        1 => Finding::ok("controllers", format!("{leads}; 1 stands by: {}", places[0])),
        count => Finding::ok("controllers", format!("{leads}; {count} stand by: {}", places.join(", "))),
    }
}

fn of_workers(workers: &[WorkerView], controller: &ControllerView, own: &Own) -> Vec<Finding> {
    if workers.is_empty() {
        return vec![
            Finding::note("workers", "no workers: nothing can run")
                .fix("tidemill token > join.token, then on a machine: tidemill worker --join ADDRESS --state DIR --token-file join.token"),
        ];
    }
    let mut findings = Vec::new();
    for worker in workers {
        let called = |what: &str| format!("{}: {what}", worker.name);
        if !worker.is_alive {
            let silent =
                worker.silent_milliseconds.map(|silent| format!(" for {:.0} s", silent as f64 / 1e3));
            let text =
                format!("no heartbeats{}", silent.unwrap_or_else(|| " since the controller started".into()));
            findings.push(Finding::problem(worker.name.clone(), text).fix(format!(
                "restart its agent; if the machine is gone for good: tidemill revoke {}",
                worker.name
            )));
            continue;
        }
        let place = worker.address.clone().unwrap_or_default();
        findings.push(match worker.is_drained {
            true => Finding::note(worker.name.clone(), format!("{place}, drained: it accepts no work"))
                .fix(format!("tidemill undrain {}", worker.name)),
            false => Finding::ok(worker.name.clone(), format!("{place}, heartbeats in time")),
        });
        findings.push(version(called("version"), &worker.version, controller));
        let Some(health) = &worker.health else {
            findings.push(
                Finding::note(called("health"), "it does not report its health")
                    .fix("install this version on it"),
            );
            continue;
        };
        findings.push(clock(called("clock"), health.clock_offset_milliseconds));
        let renewed = ends(called("certificate"), health.certificate_ends, own.now);
        findings.push(renewed.unwrap_or_else(|finding| {
            finding.fix("the agent renews it itself; its log says why it did not. Or let the worker join again with a new token")
        }));
        findings.push(disk(called("disk"), health.told.disk_free_bytes));
        findings.push(match &health.told.no_control_groups {
            None => Finding::ok(called("control groups"), "limits of runs are enforced"),
            Some(why) => Finding::note(called("control groups"), format!("limits of runs are not enforced: {why}"))
                .fix("under systemd: Delegate=cpu memory in the unit of the agent; in a container: a writable /sys/fs/cgroup"),
        });
        for service in &health.told.services {
            if let Some(problem) = &service.problem {
                let text = format!("service {} does not work: {problem}", service.name);
                findings.push(Finding::note(called("services"), text).fix("see the log of its agent"));
            }
        }
        if let Some(limit) = health.told.open_files.filter(|limit| *limit < 256) {
            let text = format!("at most {limit}: plans with many slots need more");
            findings.push(
                Finding::note(called("open files"), text).fix("ulimit -n 1024, before its agent starts"),
            );
        }
    }
    findings
}

fn version(
    name: impl Into<std::borrow::Cow<'static, str>>,
    found: &str,
    controller: &ControllerView,
) -> Finding {
    match found == controller.version {
        true => Finding::ok(name, found),
        false => Finding::note(name, format!("{found}, and the controller has {}", controller.version))
            .fix("install the same version everywhere, the controller's first"),
    }
}

/// Certificates are judged by clocks, and so are events by people.
fn clock(name: impl Into<std::borrow::Cow<'static, str>>, offset: i64) -> Finding {
    let seconds = offset as f64 / 1e3;
    let text = format!("{seconds:+.1} s against the controller's");
    match offset.unsigned_abs() {
        ..=2_000 => Finding::ok(name, text),
        2_001..=60_000 => {
            Finding::note(name, format!("{text}: times of events and logs do not fit together"))
                .fix("set it by NTP: timedatectl set-ntp true")
        }
        _ => Finding::problem(
            name,
            format!("{text}: certificates can be rejected as not yet valid or expired"),
        )
        .fix("set it by NTP: timedatectl set-ntp true"),
    }
}

fn ends(
    name: impl Into<std::borrow::Cow<'static, str>>,
    ends: u64,
    now: Timestamp,
) -> Result<Finding, Finding> {
    let at = Timestamp::from_unix(ends);
    let days = ends.saturating_sub(now.as_unix()) / DAY;
    let text = format!("ends on {at}, in {days} days");
    match days {
        0..2 => Err(Finding::problem(name, text)),
        2..7 => Err(Finding::note(name, text)),
        _ => Ok(Finding::ok(name, text)),
    }
}

fn disk(name: impl Into<std::borrow::Cow<'static, str>>, free: u64) -> Finding {
    let text = format!("{} free", bytes(free));
    let fix = "free some space; tidemill remove RUN removes ended runs, controller --keep-ended 7d does so automatically";
    match free >> 20 {
        0..100 => Finding::problem(name, text).fix(fix),
        100..1024 => Finding::note(name, text).fix(fix),
        _ => Finding::ok(name, text),
    }
}

/// Two workers need one link between them, dialled from either side.
fn of_links(view: &ProbeView) -> Vec<Finding> {
    let mut ways: BTreeMap<(String, String), Result<u64, String>> = BTreeMap::new();
    for link in &view.links {
        let way = match (link.microseconds, &link.error) {
            (Some(microseconds), _) => Ok(microseconds),
            (None, error) => Err(error.clone().unwrap_or_else(|| "it did not answer".to_owned())),
        };
        ways.insert((link.from.clone(), link.to.clone()), way);
    }
    for waiting in &view.waiting {
        ways.retain(|(from, _), _| from != waiting);
    }
    let mut names: BTreeSet<&String> = ways.keys().flat_map(|(from, to)| [from, to]).collect();
    names.extend(&view.only_dial);
    let (mut findings, mut good, mut slowest) = (Vec::new(), 0, 0);
    let names: Vec<&String> = names.into_iter().filter(|name| !view.waiting.contains(*name)).collect();
    for (index, a) in names.iter().enumerate() {
        for b in &names[index + 1..] {
            let way = |from: &str, to: &str| ways.get(&(from.to_owned(), to.to_owned()));
            let (there, back) = (way(a, b), way(b, a));
            let name = format!("{a} and {b}");
            match (there, back) {
                (Some(Ok(one)), Some(Ok(other))) => {
                    good += 1;
                    slowest = slowest.max(*one).max(*other);
                }
                (Some(Ok(_)), other) | (other, Some(Ok(_))) => {
                    let (from, to) = if matches!(there, Some(Ok(_))) { (a, b) } else { (b, a) };
                    match other {
                        // It declares that it cannot be dialled.
                        None => good += 1,
                        Some(other) => {
                            let why = other.as_ref().err().cloned().unwrap_or_default();
                            let text = format!("only {from} reaches {to}; in the other direction: {why}");
                            findings.push(Finding::note(name, text).fix(format!(
                                "records need both directions; if {from} is behind a router, start its agent with --only-dials"
                            )));
                        }
                    }
                }
                (None, None) => findings.push(
                    Finding::problem(
                        name,
                        "neither accepts connections (--only-dials): records cannot go between them",
                    )
                    .fix("open ports to one of them and start its agent without --only-dials"),
                ),
                (one, other) => {
                    let why: BTreeSet<&String> =
                        [one, other].into_iter().flatten().filter_map(|way| way.as_ref().err()).collect();
                    let why = why.into_iter().map(String::as_str).collect::<Vec<_>>().join("; ");
                    findings.push(
                        Finding::problem(name, format!("neither reaches the other: {why}"))
                            .fix("open the ports of one of them for the other, or give its address: worker --address IP"),
                    );
                }
            }
        }
    }
    if good > 0 {
        let text = format!(
            "{good} pairs of workers reach each other, the slowest in {:.1} ms",
            slowest as f64 / 1e3
        );
        findings.insert(0, Finding::ok("links", text));
    }
    for waiting in &view.waiting {
        let text = "did not report its connections in time";
        findings.push(
            Finding::note(format!("{waiting}: links"), text).fix("try again, or see the log of its agent"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use tidemill_cluster::api::{Health, LinkView, ServiceHealth, StandByView, WorkerHealth};

    const NOW: u64 = 1_800_000_000;

    fn controller() -> ControllerView {
        ControllerView {
            version: "1.2.3".into(),
            time_milliseconds: NOW * 1_000,
            address: "tidemill://hub:7420/00".into(),
            hosts_port: 7421,
            certificate_ends: NOW + 90 * DAY,
            disk_free_bytes: 50 << 30,
            files_bytes: 0,
            files_sent_bytes: 0,
            keep_ended_seconds: None,
            keep_bytes: None,
            shared: None,
        }
    }

    fn own() -> Own {
        Own { version: "1.2.3", clock_offset: 3, hosts_port: Ok(()), now: Timestamp::from_unix(NOW) }
    }

    fn worker(name: &str, change: impl FnOnce(&mut WorkerView, &mut WorkerHealth)) -> WorkerView {
        let mut health = WorkerHealth {
            told: Health { disk_free_bytes: 50 << 30, ..Health::default() },
            clock_offset_milliseconds: -4,
            certificate_ends: NOW + 20 * DAY,
        };
        let text = format!(
            r#"{{"name": "{name}", "is_alive": true, "silent_milliseconds": 20, "is_drained": false, "location": null,
            "tier": null, "worker_type": null, "capacity": {{"processors": 2, "memory_bytes": 1}}, "labels": {{}},
            "address": "10.0.0.5", "hosts": [], "version": "1.2.3"}}"#
        );
        let mut worker: WorkerView = serde_json::from_str(&text).unwrap();
        change(&mut worker, &mut health);
        worker.health = Some(health);
        worker
    }

    fn wrong(findings: &[Finding]) -> Vec<(State, &str)> {
        let wrong = findings.iter().filter(|finding| finding.state != State::Ok);
        let wrong: Vec<&Finding> = wrong.collect();
        assert!(wrong.iter().all(|finding| finding.fix.is_some()), "{wrong:?}");
        wrong.into_iter().map(|finding| (finding.state, finding.name.as_ref())).collect()
    }

    #[test]
    fn a_cluster_that_is_well_has_nothing_to_fix() {
        let found = of_controller(&controller(), &own());
        assert!(wrong(&found).is_empty(), "{found:?}");
        let workers = [worker("edge", |_, _| {}), worker("hub", |_, _| {})];
        let found = of_workers(&workers, &controller(), &own());
        assert!(wrong(&found).is_empty() && found.len() == 12, "{found:?}");
    }

    #[test]
    fn several_controllers_are_well_when_one_stands_by() {
        let mut of = controller();
        let shared = SharedView { store: "PostgreSQL at db".into(), term: 3, stand_by: Vec::new() };
        of.shared = Some(shared.clone());
        assert_eq!(wrong(&of_controller(&of, &own())), [(State::Note, "controllers")]);
        let other = StandByView { place: "b:7420".into(), silent_milliseconds: 300 };
        of.shared = Some(SharedView { stand_by: vec![other], ..shared });
        let found = of_controller(&of, &own());
        assert!(wrong(&found).is_empty(), "{found:?}");
        assert!(
            found
                .iter()
                .any(|one| one.detail.contains("term 3") && one.detail.contains("1 stands by: b:7420"))
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_do() {
        use State::{Note, Problem};
        let mut of = controller();
        (of.certificate_ends, of.disk_free_bytes) = (NOW + DAY, 5 << 20);
        let own = Own {
            version: "1.2.2",
            clock_offset: -120_000,
            hosts_port: Err("connection refused".into()),
            now: Timestamp::from_unix(NOW),
        };
        let expected = [
            (Note, "your version"),
            (Problem, "your clock"),
            (Problem, "controller: certificate"),
            (Problem, "controller: disk"),
            (Note, "port of runs"),
        ];
        assert_eq!(wrong(&of_controller(&of, &own)), expected);
        let workers = [
            worker("away", |worker, _| worker.is_alive = false),
            worker("edge", |worker, health| {
                (worker.version, worker.is_drained) = ("1.2.0".into(), true);
                (health.clock_offset_milliseconds, health.certificate_ends) = (9_000, NOW + 3 * DAY);
                health.told.disk_free_bytes = 500 << 20;
                health.told.no_control_groups = Some("no rights".into());
                health.told.open_files = Some(64);
                health.told.services =
                    vec![ServiceHealth { name: "links".into(), problem: Some("gone".into()), restarts: 1 }];
            }),
        ];
        let found = of_workers(&workers, &controller(), &own);
        let expected = [
            (Problem, "away"),
            (Note, "edge"),
            (Note, "edge: version"),
            (Note, "edge: clock"),
            (Note, "edge: certificate"),
            (Note, "edge: disk"),
            (Note, "edge: control groups"),
            (Note, "edge: services"),
            (Note, "edge: open files"),
        ];
        assert_eq!(wrong(&found), expected);
        assert_eq!(wrong(&of_workers(&[], &controller(), &own)), [(Note, "workers")]);
    }

    #[test]
    fn one_way_between_two_workers_is_enough() {
        use State::{Note, Problem};
        let link = |from: &str, to: &str, is_good: bool| LinkView {
            from: from.into(),
            to: to.into(),
            microseconds: is_good.then_some(1_500),
            error: (!is_good).then(|| "refused".into()),
        };
        let mut view = ProbeView {
            links: vec![
                link("a", "b", true),
                link("b", "a", true),
                link("r", "a", true),
                link("r", "b", true),
            ],
            only_dial: vec!["r".into()],
            ..ProbeView::default()
        };
        let found = of_links(&view);
        assert!(wrong(&found).is_empty(), "{found:?}");
        assert!(found[0].detail.starts_with("3 pairs"), "{found:?}");
        view.links[1] = link("b", "a", false);
        view.links[3] = link("r", "b", false);
        view.only_dial.push("s".into());
        view.links.extend([link("s", "a", true), link("s", "b", true)]);
        let found = of_links(&view);
        let expected = [(Note, "a and b"), (Problem, "b and r"), (Problem, "r and s")];
        assert_eq!(wrong(&found), expected, "{found:?}");
        view.waiting = vec!["b".into()];
        let found = of_links(&view);
        assert_eq!(wrong(&found), [(Problem, "r and s"), (Note, "b: links")], "{found:?}");
    }
}
