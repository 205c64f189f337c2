//! Indented text, in modules.

use std::collections::BTreeMap;

/// Attributes of all items: the code is not held to the rules of those who take it in.
pub(crate) const ALLOW: &str =
    "#[allow(missing_docs, dead_code, unreachable_pub, non_camel_case_types, clippy::all)]";

/// Lines of code of one module.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    text: String,
    depth: usize,
}

impl Lines {
    /// Adds a line. One that ends with an opening bracket indents those after it, until one that begins with the closing.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if line.starts_with(['}', ')', ']']) {
            self.depth = self.depth.saturating_sub(1);
        }
        if !line.is_empty() {
            self.text.push_str(&"    ".repeat(self.depth));
            self.text.push_str(line);
        }
        self.text.push('\n');
        if line.ends_with(['{', '(', '[']) {
            self.depth += 1;
        }
    }

    /// Adds lines.
    pub(crate) fn lines(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| self.line(line));
    }

    /// Adds documentation.
    pub(crate) fn doc(&mut self, comment: Option<&str>, otherwise: &str) {
        let comment = comment.map(str::trim_end).filter(|comment| !comment.trim().is_empty());
        let mut in_block = false;
        for line in comment.unwrap_or(otherwise).lines() {
            let line = line.strip_prefix(' ').unwrap_or(line).trim_end();
            let rest = line.trim_start();
            // Code in comments is no Rust, so it must not run as a test.
            let line = if rest.starts_with("```") {
                in_block = !in_block;
                if in_block { "```text" } else { "```" }
            } else if in_block || line.len() - rest.len() < 4 {
                line
            } else {
                rest
            };
            let space = if line.is_empty() { "" } else { " " };
            // Not by `line`: text may end with a bracket.
            self.text.push_str(&format!("{}///{space}{line}\n", "    ".repeat(self.depth)));
        }
        if in_block {
            self.line("/// ```");
        }
    }
}

/// Module with modules in it.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) items: Lines,
    children: BTreeMap<String, Module>,
}

impl Module {
    /// Gives the module at a path, which it makes.
    pub(crate) fn at(&mut self, path: &[String]) -> &mut Self {
        path.iter().fold(self, |module, name| module.children.entry(name.clone()).or_default())
    }

    /// Prints all of it.
    pub(crate) fn print(&self) -> String {
        let mut out = self.items.text.clone();
        for (name, child) in &self.children {
            if !out.is_empty() {
                out.push('\n');
            }
            out.push_str(&format!(
                "/// Types within `{}`.\n{ALLOW}\npub mod {name} {{\n",
                name.trim_start_matches("r#")
            ));
            for line in child.print().lines() {
                let space = if line.is_empty() { "" } else { "    " };
                out.push_str(&format!("{space}{line}\n"));
            }
            out.push_str("}\n");
        }
        out
    }
}
