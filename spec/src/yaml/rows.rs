//! Prints tables as readable YAML: everything that fits is on one line.
use serde_json::{Map, Value};

/// Longest line, unless one text alone is longer.
const WIDTH: usize = 110;

/// Words that YAML does not take for text.
const WORDS: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// Prints the document.
pub(super) fn print(tree: &Value) -> String {
    let mut out = String::new();
    match tree {
        Value::Object(map) if !map.is_empty() => block_map(map, 0, &mut out),
        other => {
            out.push_str(&flow(other));
            out.push('\n');
        }
    }
    out
}

fn block_map(map: &Map<String, Value>, indent: usize, out: &mut String) {
    for (index, (key, value)) in map.iter().enumerate() {
        // The first key of an item of a list follows the dash.
        if index > 0 || out.is_empty() || out.ends_with('\n') {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.push_str(&text(key));
        out.push(':');
        let line = flow(value);
        match value {
            Value::Array(items) if items.iter().any(Value::is_object) => block_list(items, indent + 2, out),
            Value::Array(items) if indent + key.len() + line.len() + 2 > WIDTH => {
                wrapped(items, indent + 2, out);
            }
            Value::Object(inner) if !inner.is_empty() && indent + key.len() + line.len() + 2 > WIDTH => {
                out.push('\n');
                block_map(inner, indent + 2, out);
            }
            Value::Object(inner) if inner.values().any(has_rows) => {
                out.push('\n');
                block_map(inner, indent + 2, out);
            }
            _ => {
                out.push(' ');
                out.push_str(&line);
                out.push('\n');
            }
        }
    }
}

fn has_rows(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().any(Value::is_object))
}

fn block_list(items: &[Value], indent: usize, out: &mut String) {
    out.push('\n');
    for item in items {
        out.extend(std::iter::repeat_n(' ', indent));
        out.push_str("- ");
        let line = flow(item);
        match item {
            Value::Object(map) if !map.is_empty() && indent + line.len() + 2 > WIDTH => {
                block_map(map, indent + 2, out);
            }
            _ => {
                out.push_str(&line);
                out.push('\n');
            }
        }
    }
}

/// A list of short items over several lines.
fn wrapped(items: &[Value], indent: usize, out: &mut String) {
    out.push_str(" [");
    let mut column = WIDTH;
    for (index, item) in items.iter().enumerate() {
        let mut piece = flow(item);
        if index + 1 < items.len() {
            piece.push(',');
        }
        if column + piece.len() + 1 > WIDTH {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else {
            out.push(' ');
            column += 1;
        }
        column += piece.len();
        out.push_str(&piece);
    }
    out.push_str("]\n");
}

fn flow(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Number(number) => match (number.is_f64(), number.as_f64()) {
            // `Display` of a float never has an exponent, which some readers reject without a sign.
            (true, Some(x)) => format!("{x}"),
            _ => number.to_string(),
        },
        Value::String(content) => text(content),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{}: {}", text(key), flow(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Plain where every reader of YAML takes it for text, else in quotes.
fn text(content: &str) -> String {
    if is_plain(content) {
        return content.to_string();
    }
    let mut out = String::from("\"");
    for c in content.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FEFF}') => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn is_plain(content: &str) -> bool {
    let may_follow = |c: char| c.is_ascii_alphanumeric() || " _./%+@-".contains(c);
    if !content.chars().all(may_follow) || content.ends_with(' ') {
        return false;
    }
    if content.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return !WORDS.contains(&content.to_ascii_lowercase().as_str());
    }
    // A quantity: a number and its unit.
    let unit = content.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &content[..content.len() - unit.len()];
    let starts = unit.starts_with(|c: char| c.is_ascii_alphabetic() && !"eExXob".contains(c) || c == '%');
    number.starts_with(|c: char| c.is_ascii_digit())
        && starts
        && unit.chars().all(|c| c.is_ascii_alphabetic() || c == '%')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn short_things_stand_on_a_line() {
        let tree = json!({
            "version": 1,
            "workflow": {"name": "vqa"},
            "rows": [{"a": "12ms", "b": 0.5}, {"a": "yes", "b": "a: b"}],
            "long": [{"name": "x".repeat(70), "again": "y".repeat(70), "points": vec!["1.25ms"; 30]}],
            "none": [],
        });
        let x = "x".repeat(70);
        let y = "y".repeat(70);
        let points = |n: usize| vec!["1.25ms"; n].join(", ");
        let expected = format!(
            "version: 1\nworkflow: {{name: vqa}}\nrows:\n  - {{a: 12ms, b: 0.5}}\n  - {{a: \"yes\", b: \"a: b\"}}\n\
             long:\n  - name: {x}\n    again: {y}\n    points: [\n      {},\n      {},\n      {}]\nnone: []\n",
            points(13),
            points(13),
            points(4)
        );
        assert_eq!(print(&tree), expected);
    }
}
