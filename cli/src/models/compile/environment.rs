//! The Python environment with TVM.
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_inference::backend::library::cache_folder;

/// Variable that names the environment's folder.
const VARIABLE: &str = "TIDEMILL_TVM";
/// Where a folder has the environment.
const WITHIN: &str = ".tidemill/backends/tvm";
/// Its packages, with the versions that work together.
const PACKAGES: &str = include_str!("../../../../scripts/tvm-requirements.txt");

/// Returns the Python of the environment: that of the variable, or of `.tidemill/backends/tvm` in `folder`, the current folder or
/// those above, or of the cache.
pub(super) fn python(folder: &Path) -> Result<PathBuf, Failure> {
    let given = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let current = std::env::current_dir().unwrap_or_default();
    find(given, &[std::path::absolute(folder).unwrap_or_default(), current], cache_folder().as_deref())
}

fn find(given: Option<PathBuf>, starts: &[PathBuf], cache: Option<&Path>) -> Result<PathBuf, Failure> {
    let python = |environment: &Path| environment.join("bin/python");
    if let Some(environment) = given {
        let found = python(&environment);
        let message = format!("{VARIABLE} names {}, which has no bin/python", environment.display());
        return if found.is_file() { Ok(found) } else { Err(absent(message, &environment, starts)) };
    }
    let above = starts.iter().flat_map(|start| start.ancestors()).map(|folder| folder.join(WITHIN));
    let kept = cache.map(|cache| cache.join("backends/tvm"));
    let found =
        above.chain(kept.clone()).map(|environment| python(&environment)).find(|found| found.is_file());
    found.ok_or_else(|| {
        absent("TVM is not set up here".to_owned(), &kept.unwrap_or_else(|| WITHIN.into()), starts)
    })
}

/// The error with the command that sets up `environment`.
fn absent(message: String, environment: &Path, starts: &[PathBuf]) -> Failure {
    let has_script = |folder: &Path| folder.join("scripts/backends.sh").is_file();
    let checkout = starts.iter().flat_map(|start| start.ancestors()).find(|folder| has_script(folder));
    let help = match checkout {
        Some(folder) => format!("(cd '{}' && scripts/backends.sh tvm)", folder.display()),
        None => command(environment),
    };
    Failure::new(Kind::Unavailable, message).with_help(help)
}

fn command(environment: &Path) -> String {
    let folder = environment.display();
    let packages: Vec<&str> = PACKAGES.split_whitespace().collect();
    format!("python3 -m venv '{folder}' && '{folder}/bin/python' -m pip install {}", packages.join(" "))
}

/// Advice for an environment that lacks a package.
pub(super) fn again(python: &Path) -> String {
    command(python.parent().and_then(Path::parent).unwrap_or(Path::new(WITHIN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(folder: &Path) -> PathBuf {
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        std::fs::write(folder.join("bin/python"), "").unwrap();
        folder.join("bin/python")
    }

    #[test]
    fn the_named_environment_comes_before_those_above_and_in_the_cache() {
        let place = tempfile::tempdir().unwrap();
        let (project, cache, named) =
            (place.path().join("project/models"), place.path().join("cache"), place.path().join("named"));
        let starts = [project.clone()];
        assert!(find(None, &starts, Some(&cache)).is_err());
        let kept = environment(&cache.join("backends/tvm"));
        assert_eq!(find(None, &starts, Some(&cache)).unwrap(), kept);
        let above = environment(&place.path().join("project").join(WITHIN));
        assert_eq!(find(None, &starts, Some(&cache)).unwrap(), above);
        let refused = find(Some(named.clone()), &starts, Some(&cache)).unwrap_err();
        assert!(refused.to_string().starts_with("TIDEMILL_TVM names"), "{refused}");
        assert_eq!(find(Some(named.clone()), &starts, None).ok(), None);
        let own = environment(&named);
        assert_eq!(find(Some(named), &starts, Some(&cache)).unwrap(), own);
    }

    #[test]
    fn the_command_that_sets_it_up_is_said() {
        let place = tempfile::tempdir().unwrap();
        let starts = [place.path().join("models")];
        let help = |cache: &Path| find(None, &starts, Some(cache)).unwrap_err().help().unwrap().to_owned();
        let without = help(Path::new("/c"));
        assert!(without.starts_with(
            "python3 -m venv '/c/backends/tvm' && '/c/backends/tvm/bin/python' -m pip install apache-tvm=="
        ));
        assert!(without.contains(" onnx==") && !without.contains('\n'), "{without}");
        std::fs::create_dir(place.path().join("scripts")).unwrap();
        std::fs::write(place.path().join("scripts/backends.sh"), "").unwrap();
        let checkout = place.path().display();
        assert_eq!(help(Path::new("/c")), format!("(cd '{checkout}' && scripts/backends.sh tvm)"));
    }
}
