//! Modules that were compiled before, by everything that they depend on.
use super::script::{Compiled, SCRIPT};
use crate::arguments::CompileArguments;
use serde_json::json;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_inference::backend::library::cache_folder;
use tidemill_inference::external;
use tidemill_inference::facts::ModelFacts;
use tidemill_spec::digest::sha256;

/// The place of one module in the cache.
#[derive(Debug)]
pub(super) struct Kept {
    folder: PathBuf,
    /// Measurements of searches, which a longer search continues.
    records: PathBuf,
}

impl Kept {
    /// The place for a model, with these arguments, on this machine.
    pub(super) fn of(facts: &ModelFacts, arguments: &CompileArguments) -> Result<Self, Failure> {
        let unreadable = |error: io::Error| {
            Failure::new(Kind::Configuration, format!("cannot read {}: {error}", facts.path.display()))
        };
        let mut digests = vec![facts.sha256.clone()];
        for beside in external::files(&fs::read(&facts.path).map_err(unreadable)?) {
            let weights = facts.path.with_file_name(beside);
            digests.push(sha256(&fs::read(&weights).map_err(unreadable)?));
        }
        let cache = cache_folder().ok_or_else(|| {
            Failure::new(Kind::Unavailable, "no home folder for modules")
                .with_help("set TIDEMILL_CACHE to an absolute path")
        })?;
        Ok(Self::at(
            &cache.join("tvm"),
            &digests,
            &processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            arguments,
        ))
    }

    fn at(cache: &Path, digests: &[String], processor: &str, arguments: &CompileArguments) -> Self {
        let CompileArguments { target, batch, sizes, tune, .. } = arguments;
        // The script has the versions of TVM with it: they are those of its packages.
        let model = json!([sha256(SCRIPT.as_bytes()), digests, target, processor, batch, sizes]);
        let module = json!([model, tune.map(|time| time.as_secs())]);
        let name = |document: serde_json::Value| sha256(document.to_string().as_bytes());
        Self { folder: cache.join(name(module)), records: cache.join("records").join(name(model)) }
    }

    /// Folder for the measurements of a search.
    pub(super) fn records(&self) -> PathBuf {
        self.records.clone()
    }

    fn module(&self) -> PathBuf {
        self.folder.join("module.so")
    }

    /// The report on the module, if it was compiled before.
    pub(super) fn read(&self) -> Option<Compiled> {
        let said = fs::read(self.folder.join("compiled.json")).ok()?;
        serde_json::from_slice(&said).ok().filter(|_| self.module().is_file())
    }

    /// Keeps the module that `compile` writes into the file that it is given.
    pub(super) fn write(
        &self,
        compile: impl FnOnce(&Path) -> Result<Compiled, Failure>,
    ) -> Result<Compiled, Failure> {
        let unwritable = |error: io::Error| {
            Failure::new(Kind::Unavailable, format!("cannot write to {}: {error}", self.folder.display()))
                .with_help("set TIDEMILL_CACHE to a folder with space in which you may write")
        };
        let parent = self.folder.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(unwritable)?;
        let place = tempfile::Builder::new().prefix(".compiling-").tempdir_in(parent).map_err(unwritable)?;
        let compiled = compile(&place.path().join("module.so"))?;
        let said = serde_json::to_vec(&compiled).map_err(io::Error::other).map_err(unwritable)?;
        fs::write(place.path().join("compiled.json"), said).map_err(unwritable)?;
        // Another process may have compiled it meanwhile, and a folder without one of the files is damaged.
        let _ = fs::remove_dir_all(&self.folder);
        fs::rename(place.path(), &self.folder).map_err(unwritable)?;
        Ok(compiled)
    }

    /// Copies the module to a file, and returns its content. A process that has the file open keeps the old one.
    pub(super) fn copy_to(&self, file: &Path) -> Result<Vec<u8>, Failure> {
        let unwritable = |error: io::Error| {
            Failure::new(Kind::Unavailable, format!("cannot write {}: {error}", file.display()))
                .with_help("name another file with `-o FILE.so`")
        };
        let module = fs::read(self.module()).map_err(unwritable)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(folder).map_err(unwritable)?;
        io::Write::write_all(&mut new, &module).map_err(unwritable)?;
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(new.path(), readable).map_err(unwritable)?;
        new.persist(file).map_err(|error| unwritable(error.error))?;
        Ok(module)
    }
}

/// The lines of `/proc/cpuinfo` that say what code a processor runs best.
fn processor(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or_default().lines();
    let tells = |line: &&str| {
        ["model name", "flags", "Features", "CPU part"].iter().any(|name| line.starts_with(name))
    };
    first.filter(tells).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn arguments() -> CompileArguments {
        let (model, target) = (PathBuf::from("m.onnx"), "llvm".to_owned());
        CompileArguments { model, target, tune: None, batch: 1, sizes: Vec::new(), file: None }
    }

    #[test]
    fn whatever_changes_the_module_changes_its_place() {
        let cache = Path::new("/cache");
        let digests = ["a".to_owned()];
        let place = |arguments: &CompileArguments| Kept::at(cache, &digests, "znver3", arguments);
        let first = place(&arguments());
        let elsewhere = CompileArguments { file: Some("m.so".into()), ..arguments() };
        assert_eq!(place(&elsewhere).folder, first.folder, "the file is a copy");
        let tuned = place(&CompileArguments { tune: Some(Duration::from_secs(60)), ..arguments() });
        assert!(tuned.folder != first.folder && tuned.records == first.records, "a search continues");
        let others = [
            place(&CompileArguments { batch: 2, ..arguments() }),
            place(&CompileArguments { sizes: vec![("n".to_owned(), 2)], ..arguments() }),
            Kept::at(cache, &["b".to_owned()], "znver3", &arguments()),
            Kept::at(cache, &digests, "znver4", &arguments()),
        ];
        assert!(others.iter().all(|other| other.folder != first.folder && other.records != first.records));
    }

    #[test]
    fn the_processor_is_its_name_and_what_it_can() {
        let text = "processor\t: 0\nmodel name\t: X\nflags\t\t: avx2\ncpu MHz\t: 2000\n\nprocessor\t: 1\nmodel name\t: Y\n";
        assert_eq!(processor(text), "model name\t: X\nflags\t\t: avx2");
    }

    #[test]
    fn a_module_is_kept_whole_or_not_at_all() {
        let cache = tempfile::tempdir().unwrap();
        let kept = Kept::at(cache.path(), &[], "", &arguments());
        let compiled = || Compiled { functions: 3, tvm_ms: 1.0, ..Compiled::default() };
        let failed = kept.write(|_| Err(Failure::new(Kind::Configuration, "no")));
        assert!(failed.is_err() && kept.read().is_none());
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing is left");
        let written = kept.write(|file| {
            fs::write(file, "code").unwrap();
            Ok(compiled())
        });
        assert_eq!((written.unwrap(), kept.read()), (compiled(), Some(compiled())));
        let file = cache.path().join("m.so");
        assert_eq!(kept.copy_to(&file).unwrap(), b"code");
        assert_eq!(fs::read(&file).unwrap(), b"code");
        fs::remove_file(kept.module()).unwrap();
        assert_eq!(kept.read(), None, "without its file there is no module");
    }
}
