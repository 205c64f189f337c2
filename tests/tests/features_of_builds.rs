//! Third-party packages have the same features in each build of the command: the build with all features compiles none of them again
//! after one with few.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::repository::root;

/// Packages of others in a build of the command, with the features that each has there; build scripts and macros may have their own.
fn packages(options: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--locked", "--package", "tidemill", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}|{f}"])
        .args(options)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("names of packages are UTF-8");
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in listed.lines() {
        // A package that was listed before ends with a mark.
        let (package, features) =
            line.trim_end_matches(" (*)").split_once('|').expect("the format has a bar");
        if !package.starts_with("tidemill") {
            packages.entry(package.to_owned()).or_default().insert(features.to_owned());
        }
    }
    packages
}

#[test]
fn the_full_build_compiles_no_package_of_others_again() {
    let (few, all) = (packages(&["--no-default-features"]), packages(&[]));
    assert!(few.len() + 50 < all.len(), "{} of {} packages", few.len(), all.len());
    let mut faults = Vec::new();
    for (package, features) in &few {
        let in_all = all.get(package).cloned().unwrap_or_default();
        for other in features.difference(&in_all) {
            faults.push(format!("{package} has the features `{other}`, and {in_all:?} with all"));
        }
    }
    assert!(
        faults.is_empty(),
        "cli/Cargo.toml names what both builds need, see getrandom there:\n  {}",
        faults.join("\n  ")
    );
}
