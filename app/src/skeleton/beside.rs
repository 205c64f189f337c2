//! Files beside a model, or one folder above it: settings that its maker published with it.
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Largest file that is read, bytes.
const MOST_BYTES: u64 = 16 << 20;

/// The folder of a model.
#[derive(Debug, Clone, Default)]
pub(super) struct Beside {
    folder: PathBuf,
}

impl Beside {
    /// The files beside a model in this folder.
    pub(super) fn of(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Returns the path of a file, relative to the model's folder.
    pub(super) fn path(&self, name: &str) -> Option<String> {
        let names = [name.to_owned(), format!("../{name}")];
        names.into_iter().find(|name| self.folder.join(name).is_file())
    }

    /// Returns the text of a file with its path.
    pub(super) fn text(&self, name: &str) -> Option<(String, String)> {
        let path = self.path(name)?;
        let file = self.folder.join(&path);
        let size = std::fs::metadata(&file).ok()?.len();
        if size > MOST_BYTES {
            return None;
        }
        Some((path, std::fs::read_to_string(file).ok()?))
    }

    /// Returns the content of a JSON file.
    pub(super) fn json(&self, name: &str) -> Option<Value> {
        serde_json::from_str(&self.text(name)?.1).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_one_folder_above() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("onnx");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(root.path().join("config.json"), r#"{"a": 1}"#).unwrap();
        std::fs::write(folder.join("labels.txt"), "x\ny\n").unwrap();
        let beside = Beside::of(&folder);
        assert_eq!(beside.path("labels.txt").as_deref(), Some("labels.txt"));
        assert_eq!(beside.path("config.json").as_deref(), Some("../config.json"));
        assert_eq!(beside.json("config.json").unwrap()["a"], 1);
        assert_eq!(beside.json("labels.txt"), None);
        assert_eq!(beside.path("other.json"), None);
    }
}
