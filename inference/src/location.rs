//! Where the files of a model lie: beside its manifest, or where `tidemill models fetch` puts them.
use crate::backend::library;
use std::path::{Path, PathBuf};
use tidemill_spec::manifest::{Manifest, OriginKind};

/// The folder of a model's files. It is that of the manifest, but for a model that comes from a package and is not
/// there: then it is [`fetched`].
pub fn folder(manifest: &Manifest, manifest_path: &Path) -> PathBuf {
    let beside = manifest_path.parent().unwrap_or(Path::new(""));
    if manifest.origin.kind == OriginKind::Fetched
        && !beside.join(&manifest.file.value).is_file()
        && let Some(cache) = fetched(&manifest.id)
    {
        return cache;
    }
    beside.to_owned()
}

/// The model file itself; with a decoder that is the encoder.
pub fn file(manifest: &Manifest, manifest_path: &Path) -> PathBuf {
    folder(manifest, manifest_path).join(&manifest.file.value)
}

/// Where a model of this id is put when it is fetched: `models/ID` of [`library::cache_folder`]. `None` on a machine
/// without a home folder.
pub fn fetched(id: &str) -> Option<PathBuf> {
    library::cache_folder().map(|cache| cache.join("models").join(id))
}

/// How to get a model whose file is missing.
pub fn command(manifest: &Manifest) -> Option<String> {
    (manifest.origin.kind == OriginKind::Fetched).then(|| format!("tidemill models fetch {}", manifest.id))
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
        if let Some(cache) = super::fetched("linear") {
            assert!(cache.ends_with("models/linear"));
            assert_eq!(folder(&fetched, elsewhere), cache);
        }
    }
}
