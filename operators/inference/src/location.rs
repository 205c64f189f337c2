//! Location of a model's files: beside its manifest, or in the cache folder, where `tidemill models fetch` and the export
//! scripts put them.
use crate::backend::library;
use std::path::{Path, PathBuf};
use tidemill_spec::manifest::{Manifest, OriginKind};

/// The folder of a model's files: that of the manifest, or [`fetched`] for a model that comes from a package or is exported
/// and is not beside the manifest.
pub fn folder(manifest: &Manifest, manifest_path: &Path) -> PathBuf {
    let beside = manifest_path.parent().unwrap_or(Path::new(""));
    if obtained(manifest).is_some()
        && !manifest.files().next().is_some_and(|file| beside.join(file).is_file())
        && let Some(cache) = fetched(&manifest.id)
    {
        return cache;
    }
    beside.to_owned()
}

/// The model file itself; the encoder if there is a decoder.
pub fn file(manifest: &Manifest, manifest_path: &Path) -> PathBuf {
    folder(manifest, manifest_path).join(manifest.files().next().unwrap_or_default())
}

/// The folder of a fetched or exported model of this id: `models/ID` of [`library::cache_folder`]. `None` on a machine
/// without a home folder.
pub fn fetched(id: &str) -> Option<PathBuf> {
    library::cache_folder().map(|cache| cache.join("models").join(id))
}

/// How a model gets into the cache folder, as a participle; `None` for one beside its manifest.
pub fn obtained(manifest: &Manifest) -> Option<&'static str> {
    match manifest.origin.kind {
        OriginKind::Fetched => Some("fetched"),
        OriginKind::Exported => Some("exported"),
        OriginKind::Trained | OriginKind::External | OriginKind::Published => None,
    }
}

/// The command that obtains a missing model.
pub fn command(manifest: &Manifest) -> Option<String> {
    commands([manifest]).pop()
}

/// The fewest commands that obtain all of these models.
pub fn commands<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Vec<String> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for manifest in manifests {
        let program = match manifest.origin.kind {
            OriginKind::Fetched => "tidemill models fetch".to_owned(),
            OriginKind::Exported => {
                format!("python3 {}", manifest.origin.script.as_deref().unwrap_or_default())
            }
            OriginKind::Trained | OriginKind::External | OriginKind::Published => continue,
        };
        match commands.iter_mut().find(|(known, _)| *known == program) {
            Some((_, names)) => *names = format!("{names} {}", manifest.id),
            None => commands.push((program, manifest.id.to_string())),
        }
    }
    commands.into_iter().map(|(program, names)| format!("{program} {names}")).collect()
}

/// Sizes of all files of a model together; `None` if one is missing.
pub fn bytes(manifest: &Manifest, manifest_path: &Path) -> Option<u64> {
    if manifest.origin.kind == OriginKind::Published {
        return None;
    }
    let folder = folder(manifest, manifest_path);
    manifest.files().map(|name| std::fs::metadata(folder.join(name)).ok().map(|file| file.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(origin: &str) -> Manifest {
        let text = format!(
            "version: 1\nid: linear\ndescription: x\nfile: linear.onnx\nsha256: {}\nlicence: MIT\norigin: {origin}\n\
             backends: [rten]\ninputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 4]}}]\n\
             outputs: [{{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3]}}]\n",
            "a".repeat(64)
        );
        Manifest::parse(&text, "m.yaml").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn what_lies_beside_the_manifest_is_taken() {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/m.yaml");
        let fetched = manifest("{kind: fetched, package: p, package_version: '1'}");
        let made = manifest("{kind: external, note: x}");
        assert_eq!(folder(&fetched, &beside), beside.with_file_name(""));
        assert_eq!(
            bytes(&fetched, &beside),
            std::fs::metadata(beside.with_file_name("linear.onnx")).ok().map(|f| f.len())
        );
        let elsewhere = Path::new("/no/such/folder/m.yaml");
        assert_eq!(folder(&made, elsewhere), Path::new("/no/such/folder"));
        assert_eq!((command(&made), bytes(&made, elsewhere)), (None, None));
        assert_eq!(command(&fetched).as_deref(), Some("tidemill models fetch linear"));
        let exported = manifest("{kind: exported, script: models/write.py, seed: 1}");
        assert_eq!(command(&exported).as_deref(), Some("python3 models/write.py linear"));
        let all = commands([&fetched, &exported, &made, &fetched]);
        assert_eq!(all, ["tidemill models fetch linear linear", "python3 models/write.py linear"]);
        if let Some(cache) = super::fetched("linear") {
            assert_eq!(folder(&exported, elsewhere), cache);
            assert!(cache.ends_with("models/linear"));
            assert_eq!(folder(&fetched, elsewhere), cache);
        }
    }
}
