//! Boxes and arrows as text, Mermaid, Graphviz or SVG.
mod layout;
pub(crate) mod picture;
pub(crate) mod svg;

use crate::outline::{Node, Outline, Role};
use std::collections::HashSet;
use std::fmt::Write;

/// Returns a tree from each source. A node with several predecessors is drawn once, at its last occurrence, so that
/// everything before it is above.
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

/// Mermaid, left to right. Boxes are numbered: some ids are keywords of Mermaid, such as `end`, and without invalid
/// characters two of them may be equal.
pub(crate) fn mermaid(outline: &Outline) -> String {
    let mut text = String::from("flowchart LR\n");
    let number = |id: &str| outline.nodes.iter().position(|node| node.id == id);
    for (at, (worker, nodes)) in by_worker(outline).into_iter().enumerate() {
        let indent = if let Some(worker) = worker {
            let _ = writeln!(text, "    subgraph w{at}[\"{worker}\"]");
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
            let Some(number) = number(&node.id) else { continue };
            let _ = writeln!(text, "{indent}n{number}{open}\"{label}\"{close}");
        }
        if worker.is_some() {
            text.push_str("    end\n");
        }
    }
    for arrow in &outline.arrows {
        let label = if arrow.text.is_empty() { String::new() } else { format!("|{}|", arrow.text) };
        let (Some(from), Some(to)) = (number(&arrow.from), number(&arrow.to)) else { continue };
        let _ = writeln!(text, "    n{from} -->{label} n{to}");
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

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline::Arrow;

    #[test]
    fn boxes_of_similar_ids_stay_apart() {
        let node = |id: &str, worker: &str| Node {
            id: id.to_owned(),
            role: Role::Operator,
            text: String::new(),
            worker: Some(worker.to_owned()),
        };
        let arrow = Arrow { from: "a-b".to_owned(), to: "a_b".to_owned(), text: String::new() };
        let nodes = vec![node("a-b", "x-1"), node("a_b", "x_1"), node("end", "x_1")];
        let outline = Outline { name: "o".to_owned(), nodes, arrows: vec![arrow] };
        let expected = "flowchart LR
    subgraph w0[\"x-1\"]
        n0[\"a-b\"]
    end
    subgraph w1[\"x_1\"]
        n1[\"a_b\"]
        n2[\"end\"]
    end
    n0 --> n1
";
        assert_eq!(mermaid(&outline), expected);
    }
}
