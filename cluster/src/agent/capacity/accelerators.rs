//! Accelerators of this machine, as their drivers report them.
//!
//! NVIDIA's driver has a folder for each in `/proc/driver/nvidia/gpus`, AMD's a node in `/sys/class/kfd`. An accelerator whose device is
//! not visible to the agent, as in a container without it, does not count.
use std::fs;
use std::path::{Path, PathBuf};

/// Names of their types, one for each, under this root of the file system.
pub(super) fn find(root: &Path) -> Vec<String> {
    let mut all: Vec<String> = nvidia(root).into_iter().chain(amd(root)).collect();
    all.sort();
    all
}

fn folders(path: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// From lines such as `Model:   NVIDIA H100 80GB HBM3` and `Device Minor:   0`.
fn nvidia(root: &Path) -> Vec<String> {
    let found = folders(root.join("proc/driver/nvidia/gpus")).into_iter().filter_map(|folder| {
        let text = fs::read_to_string(folder.join("information")).ok()?;
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        let device = root.join(format!("dev/nvidia{}", value("Device Minor")?));
        device.exists().then(|| value("Model")).flatten()
    });
    found.map(|model| name_of(&model)).collect()
}

/// A node is a processor or an accelerator; the latter has units of its own (`simd_count`).
fn amd(root: &Path) -> Vec<String> {
    if !root.join("dev/kfd").exists() {
        return Vec::new();
    }
    let found = folders(root.join("sys/class/kfd/kfd/topology/nodes")).into_iter().filter_map(|node| {
        let properties = fs::read_to_string(node.join("properties")).ok()?;
        let value = |name: &str| {
            let mut lines = properties.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse::<u64>().ok())
        };
        let target = value("gfx_target_version").filter(|_| value("simd_count") > Some(0))?;
        let (major, minor, step) = (target / 10_000, target / 100 % 100, target % 100);
        Some(format!("amd-gfx{major}{minor:x}{step:x}"))
    });
    found.collect()
}

/// As infrastructures can name it: `NVIDIA H100 80GB HBM3` is `nvidia-h100-80gb-hbm3`.
fn name_of(model: &str) -> String {
    let words = model.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn those_of_nvidia_that_are_seen_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(find(root), Vec::<String>::new());
        for (at, minor) in [("0000:17:00.0", 0), ("0000:65:00.0", 1)] {
            let text =
                format!("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nDevice Minor: \t {minor}\n");
            file(root, &format!("proc/driver/nvidia/gpus/{at}/information"), &text);
        }
        file(root, "dev/nvidia0", "");
        assert_eq!(find(root), ["nvidia-h100-80gb-hbm3"], "the other one was not given to the container");
        file(root, "dev/nvidia1", "");
        assert_eq!(find(root).len(), 2);
    }

    #[test]
    fn those_of_amd_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let node = |number: usize, simd: u64, target: u64| {
            let text = format!("cpu_cores_count 0\nsimd_count {simd}\ngfx_target_version {target}\n");
            file(root, &format!("sys/class/kfd/kfd/topology/nodes/{number}/properties"), &text);
        };
        node(0, 0, 0);
        node(1, 440, 90_010);
        assert_eq!(find(root), Vec::<String>::new(), "no device");
        file(root, "dev/kfd", "");
        assert_eq!(find(root), ["amd-gfx90a"]);
    }
}
