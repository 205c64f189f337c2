//! Units for machines without containers: the program runs as a service of a dynamic user.
use crate::files::Files;
use crate::layout::{Layout, Ports, SERVICE, Site, Unit};
use crate::{GRACE_SECONDS, MOST_PROCESSES, RESULTS_FOLDER};
use std::fmt::Write;
use std::path::Path;

/// Path of the program.
pub(crate) const PROGRAM: &str = "/usr/local/bin/tidemill";
/// Path of join material.
pub(crate) const SECRETS: &str = "/etc/tidemill";

/// A unit: its sections with their lines.
#[derive(Debug)]
struct UnitFile(Vec<(&'static str, Vec<(&'static str, String)>)>);

impl UnitFile {
    fn print(&self, comment: &str) -> String {
        let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
        for (section, lines) in &self.0 {
            let _ = writeln!(text, "\n[{section}]");
            for (key, value) in lines {
                let _ = writeln!(text, "{key}={value}");
            }
        }
        text
    }
}

/// Name of a worker's unit, without suffix.
pub(crate) fn worker_unit(unit: &Unit) -> String {
    format!("tidemill-{}", unit.service())
}

/// Name of the controller's unit, without suffix.
pub(crate) fn controller_unit() -> String {
    format!("tidemill-{SERVICE}")
}

/// Folder below `/var/lib` of a worker's machine for sinks that write absolute paths.
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

/// Escapes a word of a command line against substitution.
fn word(text: &str) -> String {
    let text = text.replace('%', "%%").replace('$', "$$").replace('\\', "\\\\").replace('"', "\\\"");
    // A line break would end the line of the unit.
    let escaped = |c: char| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    let text: String = text.chars().map(escaped).collect();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%$".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("\"{text}\"") }
}

fn line(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|text| word(text)).collect();
    words.join(" ")
}

/// Quotes and escapes a path for a setting.
fn path_word(path: &str) -> String {
    path.replace('%', "%%").replace('\\', "\\\\").replace('"', "\\\"")
}

/// Whether a path is in a folder of users: such folders appear empty and closed unless parts of them are mounted.
fn is_at_home(path: &str) -> bool {
    ["/home", "/root", "/run/user"].iter().any(|folder| Path::new(path).starts_with(folder))
}

/// Returns the common settings of both kinds of units; `folders` are below `/var/lib`, the first one is the working
/// directory.
fn hardened(
    name: &str,
    folders: &[&str],
    home: &str,
    command: String,
    more: Vec<(&'static str, String)>,
) -> UnitFile {
    let folder = folders.first().copied().unwrap_or_default();
    let own = |key: &'static str, value: &str| (key, value.to_owned());
    let mut service = vec![
        own("Type", "exec"),
        ("ExecStart", command),
        own("Restart", "always"),
        own("RestartSec", "2"),
        ("TimeoutStopSec", GRACE_SECONDS.to_string()),
        // The exit code after a signal.
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
        own("ProtectHome", home),
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
    let at = layout.everywhere();
    words.extend([format!("{at}:{people}"), "--listen-hosts".into(), format!("{at}:{processes}")]);
    words.extend(["--name".into(), layout.address.clone()]);
    if layout.address != "localhost" {
        words.extend(["--name".to_owned(), "localhost".into()]);
    }
    words.extend(["--metrics".to_owned(), format!("127.0.0.1:{metrics}")]);
    let folder = "tidemill/controller";
    let command = format!("{} --state %S/{folder}", line(&words));
    let more = [("PrivateDevices", "yes"), ("ProtectControlGroups", "yes")];
    hardened("controller", &[folder], "yes", command, more.map(|(key, value)| (key, value.to_owned())).into())
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
    // It puts the processes of each run into its own control group, below the one of the service.
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
    if unit.accelerators == 0 && unit.devices.is_empty() {
        more.push(("PrivateDevices", "yes".to_owned()));
    }
    if unit.accelerators > 0 {
        // `ProtectClock` closes all devices but the named ones.
        more.push(("DeviceAllow", "char-nvidia* rw".to_owned()));
        more.push(("Environment", format!("CUDA_VISIBLE_DEVICES={}", unit.accelerator_numbers().join(","))));
    }
    for path in &unit.devices {
        more.push(("DeviceAllow", format!("\"{}\" rw", path_word(path))));
    }
    for path in &unit.reads {
        more.push(("BindReadOnlyPaths", format!("\"{}\"", path_word(path).replace(':', "\\:"))));
    }
    // Mounts from folders of users are invisible if these are closed.
    let home = if unit.reads.iter().any(|path| is_at_home(path)) { "tmpfs" } else { "yes" };
    let results = results(unit);
    let mut folders = vec![folder.as_str()];
    if unit.writes {
        // All else is read-only. State of a dynamic user is below `private`.
        more.push(("BindPaths", format!("%S/private/{results}:{RESULTS_FOLDER}")));
        folders.push(&results);
    }
    hardened(&format!("worker {}", unit.name), &folders, home, command, more)
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
            ("a\nExecStartPre=x", "\"a\\u000aExecStartPre=x\""),
        ] {
            assert_eq!(word(text), written);
        }
        let unit = UnitFile(Vec::new());
        assert_eq!(unit.print("a\n[Service]"), "# a\n# [Service]\n");
    }

    #[test]
    fn folders_of_users_are_told_from_others() {
        for folder in ["/home", "/root", "/run/user"] {
            assert!(is_at_home(folder) && is_at_home(&format!("{folder}/ada/x")), "{folder}");
        }
        assert!(!["/homes/x", "/srv/home/x", "/run/users"].iter().any(|path| is_at_home(path)));
    }
}
