//! Prints paths as a tree.
use std::io::{self, Write};

/// Writes sorted paths, folders once.
pub(super) fn write<'a>(out: &mut dyn Write, paths: impl Iterator<Item = &'a str>) -> io::Result<()> {
    let paths: Vec<Vec<&str>> = paths.map(|path| path.split('/').collect()).collect();
    let all: Vec<&[&str]> = paths.iter().map(Vec::as_slice).collect();
    level(out, &all, "")
}

fn level(out: &mut dyn Write, paths: &[&[&str]], before: &str) -> io::Result<()> {
    let mut names: Vec<&str> = paths.iter().filter_map(|path| path.first().copied()).collect();
    names.dedup();
    for (number, name) in names.iter().enumerate() {
        let is_last = number + 1 == names.len();
        let beneath: Vec<&[&str]> = paths
            .iter()
            .filter(|path| path.first() == Some(name) && path.len() > 1)
            .map(|path| &path[1..])
            .collect();
        let branch = if is_last { "└── " } else { "├── " };
        let slash = if beneath.is_empty() { "" } else { "/" };
        writeln!(out, "{before}{branch}{name}{slash}")?;
        let deeper = format!("{before}{}", if is_last { "    " } else { "│   " });
        level(out, &beneath, &deeper)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn folders_are_drawn_once() {
        let mut out = Vec::new();
        super::write(&mut out, ["a/b/x", "a/b/y", "a/c", "d"].into_iter()).unwrap();
        let drawn = "├── a/\n│   ├── b/\n│   │   ├── x\n│   │   └── y\n│   └── c\n└── d\n";
        assert_eq!(String::from_utf8(out).unwrap(), drawn);
    }
}
