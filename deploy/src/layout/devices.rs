//! Devices of machines that sources read: `/dev/ttyUSB0`, `/dev/video0`.
use tidemill_spec::kinds::{KindTable, texts};
use tidemill_spec::workflow::{Source, Workflow};

/// Paths below `/dev` that exist in every container.
const EVERYWHERE: &[&str] = &[
    "console", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
    "tty", "urandom", "zero",
];

/// Whether a path is a device that only some machines have.
pub(super) fn is_device(path: &str) -> bool {
    let Some(name) = path.strip_prefix("/dev/") else { return false };
    let mut parts = name.split('/');
    let first = parts.next().unwrap_or_default();
    !first.is_empty() && !EVERYWHERE.contains(&first) && !name.split('/').any(|part| part == "..")
}

/// Whether Compose can pass it to a container: its syntax separates paths by colons.
pub(crate) fn has_a_plain_name(path: &str) -> bool {
    !path.contains(':')
}

/// Files, folders and devices that a source reads.
pub(super) fn read_by<'a>(source: &'a Source, kinds: &KindTable) -> Vec<&'a str> {
    texts(&source.options, kinds.source(&source.kind).reads)
}

/// Devices by the sources that read them.
pub(crate) fn devices(workflow: &Workflow, kinds: &KindTable) -> Vec<(String, String)> {
    let of = |source: &Source| -> Vec<(String, String)> {
        let paths = read_by(source, kinds).into_iter().filter(|path| is_device(path));
        paths.map(|path| (source.id.as_str().to_owned(), path.to_owned())).collect()
    };
    workflow.sources.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_from_what_every_container_has() {
        for device in ["/dev/ttyUSB0", "/dev/video0", "/dev/serial/by-id/usb-1", "/dev/snd/pcmC0D0c"] {
            assert!(is_device(device), "{device}");
        }
        for other in
            ["/dev", "/dev/", "/dev/null", "/dev/fd/0", "/dev/shm/x", "/dev/../etc/x", "/srv/dev/x", "video0"]
        {
            assert!(!is_device(other), "{other}");
        }
    }
}
