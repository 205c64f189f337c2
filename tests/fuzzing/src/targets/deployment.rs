//! Inputs about deployments: `deployment.json`, and the kernel's files about containers.
use std::cell::OnceCell;
use std::fs;
use std::path::Path;
use tidemill_deploy::deployment::Deployment;
use tidemill_deploy_operate::Site;
use tidemill_elastic::cgroup::{Group, GroupV1, GroupV2};

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

/// A folder of this thread, for input from files.
fn in_folder<T>(act: impl FnOnce(&Path) -> T) -> T {
    FOLDER.with(|folder| {
        act(folder.get_or_init(|| tempfile::tempdir().expect("a folder for temporary files")).path())
    })
}

pub(super) fn deployment(bytes: &[u8]) -> bool {
    in_folder(|folder| {
        fs::write(folder.join("deployment.json"), bytes).expect("a disk with room");
        match Site::load(folder) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
            Ok(site) => {
                let written = site.deployment().to_json().expect("plain data");
                assert_eq!(
                    serde_json::from_str::<Deployment>(&written).ok().as_ref(),
                    Some(site.deployment())
                );
                true
            }
        }
    })
}

pub(super) fn deployments() -> Vec<Vec<u8>> {
    let golden = include_str!("../../../../deploy/tests/golden/three-tiers/compose.txt");
    let begin = golden.split_once("==> deployment.json <==\n").map_or("", |(_, rest)| rest);
    let text = begin.split_once("\n==> ").map_or(begin, |(text, _)| text);
    vec![text.trim_end().as_bytes().to_vec()]
}

/// Files of both versions, each after a line `==> NAME <==`.
pub(super) fn control_group(bytes: &[u8]) -> bool {
    in_folder(|folder| {
        for name in NAMES {
            fs::write(folder.join(name), "").expect("a disk with room");
        }
        let text = String::from_utf8_lossy(bytes);
        for part in text.split("==> ").skip(1) {
            let Some((name, content)) = part.split_once(" <==\n") else { continue };
            if NAMES.contains(&name) {
                fs::write(folder.join(name), content).expect("a disk with room");
            }
        }
        let one = GroupV1::open(folder, folder, folder).is_ok_and(|group| is_read(Box::new(group)));
        let two = GroupV2::open(folder).is_ok_and(|group| is_read(Box::new(group)));
        one || two
    })
}

fn is_read(mut group: Box<dyn Group>) -> bool {
    let found = [
        group.counters().map(drop),
        group.working_set().map(drop),
        group.limits().map(drop),
        group.found().map(drop),
        group.is_stuck().map(drop),
    ];
    for error in found.iter().filter_map(|found| found.as_ref().err()) {
        assert!(!error.to_string().is_empty());
    }
    found.iter().all(Result::is_ok)
}

const NAMES: &[&str] = &[
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.stat",
    "cpuacct.usage",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.oom_control",
    "memory.stat",
    "cpu.max",
    "memory.high",
    "memory.max",
    "memory.current",
    "memory.events",
];

pub(super) fn control_groups() -> Vec<Vec<u8>> {
    let text = |files: &[(&str, &str)]| -> Vec<u8> {
        files
            .iter()
            .map(|(name, content)| format!("==> {name} <==\n{content}\n"))
            .collect::<String>()
            .into_bytes()
    };
    let one = text(&[
        ("cpu.cfs_quota_us", "-1"),
        ("cpu.cfs_period_us", "50000"),
        ("cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 3000000"),
        ("cpuacct.usage", "2500000"),
        ("memory.limit_in_bytes", "9223372036854771712"),
        ("memory.usage_in_bytes", "1000"),
        ("memory.memsw.limit_in_bytes", "9223372036854771712"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2"),
        ("memory.stat", "cache 5\ntotal_inactive_file 300"),
    ]);
    let two = text(&[
        ("cpu.stat", "usage_usec 2500\nuser_usec 2000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 3000"),
        ("cpu.max", "max 100000"),
        ("memory.high", "max"),
        ("memory.max", "268435456"),
        ("memory.current", "1000"),
        ("memory.stat", "anon 700\ninactive_file 300"),
        ("memory.events", "low 0\nhigh 7\nmax 0\noom 0\noom_kill 2"),
    ]);
    vec![one, two]
}
