//! Units for machines without containers: the program runs as a service of a user that exists only while it does.
use crate::files::Files;
use crate::layout::{Layout, Ports, SERVICE, Site, Unit};
use crate::{GRACE_SECONDS, MOST_PROCESSES, RESULTS_FOLDER};
use std::fmt::Write;

/// Where the program is expected.
pub(crate) const PROGRAM: &str = "/usr/local/bin/tidemill";
/// Where join material is expected.
pub(crate) const SECRETS: &str = "/etc/tidemill";

/// A unit: its sections with their lines.
#[derive(Debug)]
struct UnitFile(Vec<(&'static str, Vec<(&'static str, String)>)>);

impl UnitFile {
    fn print(&self, comment: &str) -> String {
        let mut text = format!("# {comment}\n");
        for (section, lines) in &self.0 {
            let _ = writeln!(text, "\n[{section}]");
            for (key, value) in lines {
                let _ = writeln!(text, "{key}={value}");
            }
        }
        text
    }
}

/// Name of a worker's unit, without its end.
pub(crate) fn worker_unit(unit: &Unit) -> String {
    format!("tidemill-{}", unit.service())
}

/// Name of the controller's unit, without its end.
pub(crate) fn controller_unit() -> String {
    format!("tidemill-{SERVICE}")
}

/// Where a worker's machine keeps what its sinks write by absolute paths, beneath `/var/lib`.
pub(crate) fn results(unit: &Unit) -> String {
    format!("tidemill/results-{}", unit.short)
}

pub(crate) fn write(layout: &Layout, files: &mut Files) {
    for (index, site) in layout.sites.iter().enumerate() {
        let path = |name: &str| format!("{}/{name}.service", site.name);
        let of = format!("made by `tidemill deploy` for {}, which overwrites changes", layout.workflow);
        if index == layout.controller {
            let comment = format!("The controller; {of}");
            files.add(path(&controller_unit()), controller(layout).print(&comment));
        }
        for unit in &site.workers {
            let comment = format!("Worker {} ({}); {of}", unit.name, site.name);
            files.add(path(&worker_unit(unit)), worker(site, unit).print(&comment));
        }
    }
}

/// A word of a command line, in which nothing is filled in.
fn word(text: &str) -> String {
    let text = text.replace('%', "%%").replace('$', "$$").replace('\\', "\\\\").replace('"', "\\\"");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%$".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("\"{text}\"") }
}

fn line(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|text| word(text)).collect();
    words.join(" ")
}

/// What both kinds of units have in common; `folders` are beneath `/var/lib`, the first one is where it runs.
fn hardened(name: &str, folders: &[&str], command: String, more: Vec<(&'static str, String)>) -> UnitFile {
    let folder = folders.first().copied().unwrap_or_default();
    let own = |key: &'static str, value: &str| (key, value.to_owned());
    let mut service = vec![
        own("Type", "exec"),
        ("ExecStart", command),
        own("Restart", "always"),
        own("RestartSec", "2"),
        ("TimeoutStopSec", GRACE_SECONDS.to_string()),
        // Ended by a signal, it says so.
        own("SuccessExitStatus", "130"),
        own("DynamicUser", "yes"),
        ("StateDirectory", folders.join(" ")),
        own("StateDirectoryMode", "0700"),
        ("WorkingDirectory", format!("%S/{folder}")),
        own("UMask", "0077"),
        own("LimitNOFILE", "65536"),
        ("TasksMax", MOST_PROCESSES.to_string()),
    ];
    service.extend(more);
    service.extend([
        own("NoNewPrivileges", "yes"),
        own("CapabilityBoundingSet", ""),
        own("AmbientCapabilities", ""),
        own("ProtectSystem", "strict"),
        own("ProtectHome", "yes"),
        own("PrivateTmp", "yes"),
        own("ProtectClock", "yes"),
        own("ProtectHostname", "yes"),
        own("ProtectKernelLogs", "yes"),
        own("ProtectKernelModules", "yes"),
        own("ProtectKernelTunables", "yes"),
        own("ProtectProc", "invisible"),
        own("LockPersonality", "yes"),
        own("RemoveIPC", "yes"),
        own("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
        own("RestrictNamespaces", "yes"),
        own("RestrictRealtime", "yes"),
        own("RestrictSUIDSGID", "yes"),
        own("SystemCallArchitectures", "native"),
        own("SystemCallFilter", "@system-service"),
        own("SystemCallErrorNumber", "EPERM"),
    ]);
    UnitFile(vec![
        (
            "Unit",
            vec![
                ("Description", format!("Tidemill {name}").replace('%', "%%")),
                own("Wants", "network-online.target"),
                own("After", "network-online.target"),
                own("StartLimitIntervalSec", "0"),
            ],
        ),
        ("Service", service),
        ("Install", vec![own("WantedBy", "multi-user.target")]),
    ])
}

fn controller(layout: &Layout) -> UnitFile {
    let Ports { people, processes, metrics, .. } = layout.ports;
    let mut words: Vec<String> = [PROGRAM, "controller", "--listen"].map(str::to_owned).into();
    words.extend([format!("0.0.0.0:{people}"), "--listen-hosts".into(), format!("0.0.0.0:{processes}")]);
    words.extend(["--name".into(), layout.address.clone()]);
    if layout.address != "localhost" {
        words.extend(["--name".to_owned(), "localhost".into()]);
    }
    words.extend(["--metrics".to_owned(), format!("127.0.0.1:{metrics}")]);
    let folder = "tidemill/controller";
    let command = format!("{} --state %S/{folder}", line(&words));
    let more = [("PrivateDevices", "yes"), ("ProtectControlGroups", "yes")];
    hardened("controller", &[folder], command, more.map(|(key, value)| (key, value.to_owned())).into())
}

fn worker(site: &Site, unit: &Unit) -> UnitFile {
    let folder = format!("tidemill/{}", unit.service());
    let mut words: Vec<String> = [PROGRAM, "worker"].map(str::to_owned).into();
    words.extend(unit.facts(site));
    words.extend(["--metrics".to_owned(), format!("127.0.0.1:{}", unit.metrics_port)]);
    if unit.writes {
        words.extend(["--results".to_owned(), RESULTS_FOLDER.to_owned()]);
    }
    let command = format!("{} --state %S/{folder} --join-file %d/join", line(&words));
    // It puts the processes of each run into a control group of their own, beneath the one of the service.
    let mut more = vec![
        ("LoadCredential", format!("join:{SECRETS}/{}", unit.join())),
        ("Delegate", "cpu memory".to_owned()),
    ];
    if let Some(processors) = unit.processors {
        more.push(("CPUQuota", format!("{}%", (processors * 100.0).round().max(1.0))));
    }
    if let Some(memory) = unit.memory {
        more.push(("MemoryMax", memory.0.to_string()));
    }
    if unit.accelerators == 0 {
        more.push(("PrivateDevices", "yes".to_owned()));
    }
    for path in &unit.reads {
        let escaped = path.replace('%', "%%").replace('\\', "\\\\").replace(':', "\\:");
        more.push(("BindReadOnlyPaths", format!("\"{escaped}\"")));
    }
    let results = results(unit);
    let mut folders = vec![folder.as_str()];
    if unit.writes {
        // All else is read-only. That of a user who exists only while the service runs is beneath `private`.
        more.push(("BindPaths", format!("%S/private/{results}:{RESULTS_FOLDER}")));
        folders.push(&results);
    }
    hardened(&format!("worker {}", unit.name), &folders, command, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_filled_in_in_words() {
        for (text, written) in [
            ("edge-1", "edge-1"),
            ("0.02 $/h", "\"0.02 $$/h\""),
            ("50%", "50%%"),
            ("a\"b\\", "\"a\\\"b\\\\\""),
            ("", "\"\""),
        ] {
            assert_eq!(word(text), written);
        }
    }
}
