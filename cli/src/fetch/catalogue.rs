//! The third-party models that can be fetched, and the scripts that fetch them: all of it is in the program, so that
//! an installed one needs no clone of the repository.
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::manifest::Manifest;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../models/third_party/", $name)).as_slice())),*]
    };
}

const MANIFESTS: &[(&str, &[u8])] = &embedded![
    "efficientnet-lite0-embedding-128.yaml",
    "efficientnet-lite0.yaml",
    "efficientnet-lite1.yaml",
    "efficientnet-lite2.yaml",
    "mobilenet-v2-128.yaml",
    "mobilenet-v2-224.yaml",
    "mobilenet-v2-96.yaml",
    "moonshine-tiny.yaml",
    "moonshine-base.yaml",
    "ppocr-v4-detector-320.yaml",
    "ppocr-v4-detector-480.yaml",
    "ppocr-v4-detector-640.yaml",
    "ppocr-v4-recogniser-320.yaml",
    "ppocr-v4-recogniser-640.yaml",
    "yolov2-tiny-416.yaml",
    "yolov4-tiny-320.yaml",
    "yolov4-tiny-416.yaml",
    "yolov4-tiny-608.yaml",
];

const SCRIPTS: &[(&str, &[u8])] = &embedded![
    "convert.py",
    "darknet.py",
    "efficientnet-lite0-head.npz",
    "efficientnet-lite1-head.npz",
    "efficientnet-lite2-head.npz",
    "efficientnet_lite.py",
    "fetch.py",
    "mobilenet_v2.py",
    "moonshine.py",
    "requirements.txt",
    "state_dict.py",
];

/// A model that can be fetched.
pub(super) struct Fetchable {
    /// Its manifest.
    pub(super) manifest: Manifest,
    /// The manifest's text, to be put beside the model.
    text: String,
}

/// All of them, in the order of their names.
///
/// # Errors
/// None that a user can meet: the manifests are part of the program, and a test reads them.
pub(super) fn all() -> Result<Vec<Fetchable>, Diagnostics> {
    let read = |(name, bytes): &(&str, &[u8])| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        Ok(Fetchable { manifest: Manifest::parse(&text, name)?, text })
    };
    MANIFESTS.iter().map(read).collect()
}

/// Writes the scripts into a folder.
pub(super) fn write_scripts(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    SCRIPTS.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
}

impl Fetchable {
    /// Returns the input of the script for the model.
    pub(super) fn job(&self) -> Value {
        let manifest = &self.manifest;
        let origin = &manifest.origin;
        let decoder = manifest.decoder.iter().flat_map(|decoder| {
            [(&decoder.file, &decoder.sha256), (&decoder.tokenizer.file, &decoder.tokenizer.sha256)]
        });
        let model = Some((&manifest.file, &manifest.sha256)).filter(|(file, _)| !file.is_empty());
        let artifacts = manifest.artifacts.values().map(|artifact| (&artifact.file, &artifact.sha256));
        let results = model.into_iter().chain(artifacts).chain(decoder);
        let results: Vec<Value> =
            results.map(|(name, sha256)| json!({"name": name.value, "sha256": sha256.value})).collect();
        json!({
            "id": manifest.id.value, "licence": manifest.licence, "manifest": self.text,
            "package": origin.package, "package_version": origin.package_version,
            "package_file": origin.package_file,
            "package_sha256": origin.package_sha256.as_ref().map(|sha256| &sha256.value),
            "files": origin.files.iter().map(|f| json!({"path": f.path, "sha256": f.sha256.value})).collect::<Vec<_>>(),
            "results": results,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_says_all_that_fetching_needs() {
        let all = all().unwrap_or_else(|errors| panic!("{errors}"));
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/third_party");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let manifests = files.filter(|file| file.extension().is_some_and(|end| end == "yaml")).count();
        assert_eq!(all.len(), manifests, "every manifest of the folder can be fetched");
        for (model, (file, _)) in all.iter().zip(MANIFESTS) {
            assert_eq!(format!("{}.yaml", model.manifest.id), *file);
            let job = model.job();
            for key in ["package", "package_version", "package_file", "package_sha256", "licence"] {
                assert!(job[key].as_str().is_some_and(|text| !text.is_empty()), "{file}: {key}");
            }
            assert!(!job["files"].as_array().unwrap().is_empty(), "{file}");
            let names: Vec<&str> =
                job["results"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
            assert!(names.iter().all(|name| !name.contains('/')), "{names:?}: results lie in one folder");
        }
    }
}
