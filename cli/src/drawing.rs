//! Boxes and arrows as text, Mermaid, Graphviz or SVG.
mod layout;
pub(crate) mod picture;
pub(crate) mod svg;

use crate::outline::{Node, Outline, Role};
use std::collections::HashSet;
use std::fmt::Write;

/// A tree from each source; what several lead to is drawn out once, where it is met last, so that everything
/// before it stands above.
pub(crate) fn ascii(outline: &Outline) -> String {
    let mut text = format!("{}\n", outline.name);
    let mut tree = Tree { outline, met: HashSet::new() };
    for node in outline.nodes.iter().filter(|node| node.role == Role::Source) {
        text.push_str(&format!("\n{}\n", tree.label(node)));
        tree.branches(node, "", &mut text);
    }
    text
}

struct Tree<'a> {
    outline: &'a Outline,
    /// Arrows drawn so far, by index.
    met: HashSet<usize>,
}

impl<'a> Tree<'a> {
    fn label(&self, node: &Node) -> String {
        let worker = node.worker.as_ref().map(|worker| format!(" @{worker}")).unwrap_or_default();
        let text = if node.text.is_empty() { String::new() } else { format!("  ({})", node.text) };
        format!("{}{worker}{text}", node.id)
    }

    fn branches(&mut self, from: &'a Node, indent: &str, text: &mut String) {
        let arrows: Vec<usize> = (0..self.outline.arrows.len())
            .filter(|index| self.outline.arrows[*index].from == from.id)
            .collect();
        for (nth, index) in arrows.iter().enumerate() {
            let arrow = &self.outline.arrows[*index];
            let last = nth + 1 == arrows.len();
            self.met.insert(*index);
            let Some(node) = self.outline.nodes.iter().find(|node| node.id == arrow.to) else { continue };
            let into = self.outline.arrows.iter().enumerate().filter(|(_, other)| other.to == node.id);
            let complete = into.map(|(other, _)| other).all(|other| self.met.contains(&other));
            let note = if arrow.text.is_empty() { String::new() } else { format!("[{}] ", arrow.text) };
            let label = if complete { self.label(node) } else { format!("{} ...", node.id) };
            let branch = if last { "`-> " } else { "|-> " };
            let _ = writeln!(text, "{indent}{branch}{note}{label}");
            if complete {
                let deeper = format!("{indent}{}", if last { "    " } else { "|   " });
                self.branches(node, &deeper, text);
            }
        }
    }
}

/// Mermaid, left to right.
pub(crate) fn mermaid(outline: &Outline) -> String {
    let mut text = String::from("flowchart LR\n");
    for (worker, nodes) in by_worker(outline) {
        let indent = if let Some(worker) = worker {
            let _ = writeln!(text, "    subgraph {}[\"{worker}\"]", name("worker_", worker));
            "        "
        } else {
            "    "
        };
        for node in nodes {
            let (open, close) = match node.role {
                Role::Source => ("([", "])"),
                Role::Operator => ("[", "]"),
                Role::Sink => ("[(", ")]"),
            };
            let label = both(node, "<br/>").replace('"', "#quot;");
            let _ = writeln!(text, "{indent}{}{open}\"{label}\"{close}", name("", &node.id));
        }
        if worker.is_some() {
            text.push_str("    end\n");
        }
    }
    for arrow in &outline.arrows {
        let label = if arrow.text.is_empty() { String::new() } else { format!("|{}|", arrow.text) };
        let _ = writeln!(text, "    {} -->{label} {}", name("", &arrow.from), name("", &arrow.to));
    }
    text
}

/// Graphviz, left to right.
pub(crate) fn dot(outline: &Outline) -> String {
    let mut text = format!(
        "digraph {} {{\n    rankdir=LR;\n    node [fontname=\"sans-serif\"];\n    edge [fontname=\"sans-serif\"];\n",
        quoted(&outline.name)
    );
    for (worker, nodes) in by_worker(outline) {
        let indent = if let Some(worker) = worker {
            let cluster = quoted(&format!("cluster_{worker}"));
            let _ = writeln!(text, "    subgraph {cluster} {{\n        label={};", quoted(worker));
            "        "
        } else {
            "    "
        };
        for node in nodes {
            let shape = match node.role {
                Role::Source => "oval",
                Role::Operator => "box",
                Role::Sink => "cylinder",
            };
            let label = quoted(&both(node, "\n"));
            let _ = writeln!(text, "{indent}{} [shape={shape}, label={label}];", quoted(&node.id));
        }
        if worker.is_some() {
            text.push_str("    }\n");
        }
    }
    for arrow in &outline.arrows {
        let label =
            if arrow.text.is_empty() { String::new() } else { format!(" [label={}]", quoted(&arrow.text)) };
        let _ = writeln!(text, "    {} -> {}{label};", quoted(&arrow.from), quoted(&arrow.to));
    }
    text.push_str("}\n");
    text
}

/// Nodes by worker, in the order of their first node.
fn by_worker(outline: &Outline) -> Vec<(Option<&str>, Vec<&Node>)> {
    let mut groups: Vec<(Option<&str>, Vec<&Node>)> = Vec::new();
    for node in &outline.nodes {
        let worker = node.worker.as_deref();
        match groups.iter_mut().find(|(other, _)| *other == worker) {
            Some((_, nodes)) => nodes.push(node),
            None => groups.push((worker, vec![node])),
        }
    }
    groups
}

/// Id and text of a box, on two lines.
fn both(node: &Node, line_break: &str) -> String {
    if node.text.is_empty() { node.id.clone() } else { format!("{}{line_break}{}", node.id, node.text) }
}

/// A name that Mermaid takes: `end` and others mean something there, and only word characters are safe.
fn name(prefix: &str, id: &str) -> String {
    let safe: String = id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("{prefix}{safe}_")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
