//! The reference pages of the book are generated from the JSON Schemas, so they match the program. `UPDATE_REFERENCE=1`
//! rewrites them.
use crate::command::root;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Schema, page, title, and the text before the tables.
const PAGES: &[(&str, &str, &str)] = &[
    (
        "workflow",
        "Workflow reference",
        "All keys of a workflow file. [Writing a workflow](../workflow.md) explains them by examples.",
    ),
    (
        "infrastructure",
        "Infrastructure reference",
        "All keys of an infrastructure file: machines, their prices and their links. \
         `tidemill validate` checks such a file; `profile`, `plan`, `explain`, `simulate` and `run --emulate` work with it.",
    ),
    (
        "model",
        "Manifest reference",
        "All keys of a model manifest, the file beside a model. [Bringing your own ONNX model](../own-model.md) \
         explains them by an example; `tidemill models inspect FILE.onnx` writes a manifest to start from.",
    ),
    (
        "plan",
        "Plan reference",
        "All keys of a plan file. [Writing a workflow](../workflow.md#plans) explains the use of plans.",
    ),
    (
        "profile",
        "Profile reference",
        "All keys of a profile: measurements of the operators of a workflow. `tidemill validate` checks such a \
         file, alone and against the workflow of its name.",
    ),
    (
        "test",
        "Test reference",
        "All keys of a file with tests of a workflow. [Testing a workflow](../testing.md) explains them by examples.",
    ),
    (
        "job",
        "Job reference",
        "All keys of a file with a job. [The queue of jobs](../job-queue.md) explains them by examples.",
    ),
];

#[test]
fn the_reference_is_up_to_date() {
    let folder = root().join("docs/reference");
    for (name, title, introduction) in PAGES {
        let text = std::fs::read_to_string(root().join(format!("spec/schemas/{name}.schema.json"))).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        let page = page(&schema, title, introduction);
        let path = folder.join(format!("{name}.md"));
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &page).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == page, "{} is out of date: run the test with UPDATE_REFERENCE=1", path.display());
    }
}

/// One page.
fn page(schema: &Value, title: &str, introduction: &str) -> String {
    let mut writer =
        Writer { defs: &schema["$defs"], out: String::new(), told: BTreeSet::new(), values: Vec::new() };
    let _ = writeln!(
        writer.out,
        "# {title}\n\n<!-- Made from the JSON Schema by cli/tests/reference.rs; changes here are lost. -->\n\n\
         {introduction}\n\nA key in **bold** is required. Units and other values are at the end of the page.\n"
    );
    writer.object(schema, "The file", 2);
    if !writer.values.is_empty() {
        let _ = writeln!(writer.out, "## Values\n\n| name | what it is | such as |\n|---|---|---|");
        writer.values.sort();
        writer.values.dedup();
        for line in std::mem::take(&mut writer.values) {
            let _ = writeln!(writer.out, "{line}");
        }
    }
    format!("{}\n", writer.out.trim_end())
}

struct Writer<'a> {
    defs: &'a Value,
    out: String,
    /// Sections already written.
    told: BTreeSet<String>,
    /// Rows of the table of values.
    values: Vec<String>,
}

impl<'a> Writer<'a> {
    /// A section with the keys of an object, then the sections of the definitions that its values refer to.
    fn object(&mut self, schema: &'a Value, title: &str, level: usize) {
        let text = sentence(schema);
        let _ = writeln!(self.out, "{} {title}\n\n{text}\n", "#".repeat(level));
        let mut next = Vec::new();
        self.keys(schema, &mut next);
        let kinds: Vec<(&str, &Value)> = schema["allOf"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|rule| {
                Some((
                    rule["if"]["properties"]["kind"]["const"].as_str()?,
                    &rule["then"]["properties"]["options"],
                ))
            })
            .collect();
        for (kind, options) in kinds {
            let none = options["properties"].as_object().is_none_or(serde_json::Map::is_empty);
            let _ = writeln!(self.out, "{} {title} of kind `{kind}`\n", "#".repeat(level + 1));
            match none {
                true => self.out.push_str("It has no options.\n\n"),
                false => {
                    self.out.push_str("Keys of `options`:\n\n");
                    self.keys(options, &mut next);
                }
            }
        }
        for name in next {
            self.definition(&name, level.max(2));
        }
    }

    fn keys(&mut self, schema: &'a Value, next: &mut Vec<String>) {
        let Some(properties) = schema["properties"].as_object() else { return };
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        self.out.push_str("| key | value | meaning |\n|---|---|---|\n");
        for (key, value) in properties {
            let shown = match required.contains(&key.as_str()) {
                true => format!("**`{key}`**"),
                false => format!("`{key}`"),
            };
            let kind = self.kind(value, next);
            let _ = writeln!(self.out, "| {shown} | {kind} | {}{} |", sentence(value), default(value));
        }
        self.out.push('\n');
    }

    /// A definition that has its own section.
    fn definition(&mut self, name: &str, level: usize) {
        if !self.told.insert(short(name).to_owned()) {
            return;
        }
        let defs = self.defs;
        let schema = &defs[name];
        if schema["properties"].is_object() {
            self.object(schema, &words(name), level);
            return;
        }
        let _ = writeln!(self.out, "{} {}\n\n{}\n", "#".repeat(level), words(name), sentence(schema));
        let mut next = Vec::new();
        let choices = ["oneOf", "anyOf"].iter().find_map(|key| schema[*key].as_array());
        if let Some(long) = long_form(schema) {
            self.keys(long, &mut next);
        }
        for choice in choices.into_iter().flatten().filter(|_| long_form(schema).is_none()) {
            let line = match (choice["const"].as_str(), choice["properties"].as_object()) {
                (Some(text), _) => format!("- `{text}`: {}", sentence(choice)),
                (None, Some(properties)) => {
                    let of = |(key, value): (&String, &'a Value)| {
                        let inner = value["properties"].as_object();
                        let keys: Vec<String> = inner
                            .into_iter()
                            .flatten()
                            .map(|(key, value)| {
                                let kind = self.kind(value, &mut next);
                                format!("`{key}` ({kind}): {}", sentence(value))
                            })
                            .collect();
                        let more = match (keys.is_empty(), value["type"] == "object") {
                            (false, _) => format!("\n  - {}", keys.join("\n  - ")),
                            (true, true) => " It is written with `{}`.".to_owned(),
                            (true, false) => format!(" {}.", self.kind(value, &mut next)),
                        };
                        format!("- `{key}`: {}{more}", sentence(choice))
                    };
                    properties.iter().map(of).collect::<Vec<_>>().join("\n")
                }
                (None, None) => format!("- {}: {}", self.kind(choice, &mut next), sentence(choice)),
            };
            let _ = writeln!(self.out, "{}", line.trim_end_matches([':', ' ']));
        }
        self.out.push('\n');
        for name in next {
            self.definition(&name, level);
        }
    }

    /// A value's type in words; adds the definitions that it refers to to `next`.
    fn kind(&mut self, schema: &'a Value, next: &mut Vec<String>) -> String {
        if let Some(name) = schema["$ref"].as_str().and_then(|target| target.strip_prefix("#/$defs/")) {
            return self.reference(name, next);
        }
        if let Some(choices) = ["anyOf", "oneOf"].iter().find_map(|key| schema[*key].as_array()) {
            let some = choices.iter().filter(|choice| choice["type"] != "null");
            return some.map(|choice| self.kind(choice, next)).collect::<Vec<_>>().join(" or ");
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.iter().map(|value| format!("`{}`", plain(value))).collect::<Vec<_>>().join(", ");
        }
        if !schema["const"].is_null() {
            return format!("`{}`", plain(&schema["const"]));
        }
        let kind = schema["type"].as_array().and_then(|all| all.iter().find(|kind| *kind != "null"));
        match kind.unwrap_or(&schema["type"]).as_str() {
            Some("array") => match schema["prefixItems"].as_array() {
                Some(items) => format!("list of {}", items.len()),
                None => format!("list of {}", self.kind(&schema["items"], next)),
            },
            Some("object") if schema["additionalProperties"].is_object() => {
                format!("map of names to {}", self.kind(&schema["additionalProperties"], next))
            }
            Some("object") => "map".to_owned(),
            Some("string") => "text".to_owned(),
            Some("integer") => "whole number".to_owned(),
            Some("number") => "number".to_owned(),
            Some("boolean") => "`true` or `false`".to_owned(),
            _ => "see the kinds below".to_owned(),
        }
    }

    fn reference(&mut self, name: &str, next: &mut Vec<String>) -> String {
        let defs = self.defs;
        let schema = &defs[name];
        let choices = ["oneOf", "anyOf"].iter().find_map(|key| schema[*key].as_array());
        let described = choices.is_some_and(|all| all.iter().any(|choice| !sentence(choice).is_empty()));
        if schema["properties"].is_object() || described || long_form(schema).is_some() {
            next.push(name.to_owned());
            return format!("[{}](#{})", lower(name), words(name).to_lowercase().replace(' ', "-"));
        }
        if schema["type"] == "string" && schema["enum"].is_null() {
            let examples: Vec<String> = schema["examples"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|e| format!("`{}`", plain(e)))
                .collect();
            self.values.push(format!("| {} | {} | {} |", lower(name), sentence(schema), examples.join(", ")));
            return match examples.first() {
                Some(example) => format!("[{}](#values) such as {example}", lower(name)),
                None => format!("[{}](#values)", lower(name)),
            };
        }
        self.kind(schema, next)
    }
}

/// The form with keys of a value that may also be written without them, such as `{column: age}` for `age`.
fn long_form(schema: &Value) -> Option<&Value> {
    let keys = |choice: &&Value| choice["properties"].as_object().is_some_and(|keys| keys.len() > 1);
    schema["anyOf"].as_array()?.iter().find(keys)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The description in the form for a table.
fn sentence(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|")
}

/// The default, unless the description has it.
fn default(schema: &Value) -> String {
    let told = sentence(schema);
    match &schema["default"] {
        Value::Null => String::new(),
        _ if told.contains("efault") => String::new(),
        Value::Array(items) if items.is_empty() => " Default: none.".to_owned(),
        Value::Object(map) if map.is_empty() => " Default: none.".to_owned(),
        value => format!(" Default: `{}`.", plain(value)),
    }
}

/// `Source_csv_TimeSpan` is `TimeSpan`: kinds have definitions of their own, which are equal.
fn short(name: &str) -> &str {
    name.rsplit('_').next().unwrap_or(name)
}

/// `LatencySlo` as `Latency slo`.
fn words(name: &str) -> String {
    let mut out = String::new();
    for c in short(name).chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push(' ');
            out.extend(c.to_lowercase());
        } else {
            out.push(c);
        }
    }
    out
}

fn lower(name: &str) -> String {
    words(name).to_lowercase()
}
