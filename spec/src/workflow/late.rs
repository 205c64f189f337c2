//! Inputs of late rows: `ID.late` of a window adds an operator `ID.late` of kind `late` with the input and the options of that window,
//! so that whatever plans, runs or moves operators handles late rows too.
use crate::value::{Entry, Node, Value};

/// The kind whose late rows can be read.
const WINDOW: &str = "window";
/// The kind that sends them.
const KIND: &str = "late";
/// End of the ids of operators of that kind.
const END: &str = ".late";

/// Whether an id is one of late rows: that of a window, and the end.
pub(super) fn of_window(id: &str) -> Option<&str> {
    id.strip_suffix(END)
}

/// Adds the operators of late rows that something reads.
pub(super) fn add(tree: &mut Value) {
    let mut read = Vec::new();
    for section in ["operators", "sinks"] {
        for reader in items(tree, section) {
            let inputs = reader.get("inputs").and_then(Value::as_list).into_iter().flatten();
            let inputs = reader.get("input").into_iter().chain(inputs);
            let names = inputs.filter_map(|input| input.get("from").unwrap_or(input).as_str());
            read.extend(names.filter(|name| of_window(name).is_some()).map(str::to_owned));
        }
    }
    read.sort_unstable();
    read.dedup();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    for id in read {
        let is_there = items(tree, "operators").any(|operator| text(operator, "id").as_ref() == Some(&id));
        let Some(Node::List(operators)) = entry(tree, "operators").filter(|_| !is_there) else { continue };
        let window = operators.iter_mut().find(|operator| {
            text(operator, "id").as_deref() == of_window(&id)
                && text(operator, "kind").as_deref() == Some(WINDOW)
        });
        let Some(window) = window else { continue };
        let place = window.entry("id").map(|entry| entry.value.span.clone()).unwrap_or_default();
        let new = |text: &str| Value { node: Node::Text(text.into()), span: place.clone() };
        let Node::Map(entries) = &mut window.node else { continue };
        let kept =
            entries.iter().filter(|entry| ["input", "inputs", "options"].contains(&entry.key.as_str()));
        let mut late: Vec<Entry> =
            vec![Entry { key: "id".into(), value: new(&id) }, Entry { key: "kind".into(), value: new(KIND) }];
        late.extend(kept.cloned());
        if let Some(options) = entries.iter_mut().find(|entry| entry.key == "options")
            && let Node::Map(options) = &mut options.value.node
            && options.iter().all(|option| option.key != KIND)
        {
            options.push(Entry { key: KIND.into(), value: new("pass") });
        }
        operators.push(Value { node: Node::Map(late), span: place.clone() });
    }
}

fn items<'a>(tree: &'a Value, section: &str) -> impl Iterator<Item = &'a Value> {
    tree.get(section).and_then(Value::as_list).into_iter().flatten()
}

fn entry<'a>(tree: &'a mut Value, section: &str) -> Option<&'a mut Node> {
    let Node::Map(entries) = &mut tree.node else { return None };
    entries.iter_mut().find(|entry| entry.key == section).map(|entry| &mut entry.value.node)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use crate::workflow::Workflow;

    const TEXT: &str = "
version: 1
name: counts
sources: [{id: readings, kind: csv, options: {path: in.csv}}]
operators: [{id: counts, kind: window, input: readings, options: {size: 10s, aggregates: [{function: count}]}}]
sinks:
  - {id: out, kind: jsonl, input: counts, options: {path: out.jsonl}}
  - {id: too_late, kind: jsonl, input: counts.late, options: {path: late.jsonl}}
";

    #[test]
    fn late_rows_come_from_an_operator_beside_the_window() {
        let workflow = Workflow::parse(TEXT, "w.yaml").unwrap();
        let ids: Vec<&str> = workflow.operators.iter().map(|operator| operator.id.as_str()).collect();
        assert_eq!(ids, ["counts", "counts.late"]);
        let late = &workflow.operators[1];
        assert_eq!((late.kind.as_str(), late.inputs[0].from.as_str()), ("late", "readings"));
        assert_eq!(late.options.get("size").unwrap().as_str(), Some("10s"));
        assert_eq!(late.options.get("late"), None);
        assert_eq!(workflow.operators[0].options.get("late").unwrap().as_str(), Some("pass"));
        let again = Workflow::parse(&workflow.to_yaml().unwrap(), "w.yaml").unwrap();
        assert_eq!((&again, again.digest()), (&workflow, workflow.digest()));
    }

    #[test]
    fn without_a_reader_there_is_none() {
        let workflow = Workflow::parse(&TEXT.replace("counts.late", "counts"), "w.yaml").unwrap();
        assert_eq!((workflow.operators.len(), workflow.operators[0].options.get("late")), (1, None));
    }

    #[test]
    fn only_windows_have_late_rows() {
        let text = TEXT.replace("counts.late", "readings.late");
        let error = Workflow::parse(&text, "w.yaml").unwrap_err();
        let finding = error.iter().next().unwrap();
        assert_eq!((finding.code, finding.line()), ("E0205", Some(8)), "{error}");
        assert!(
            finding.help.as_ref().unwrap().contains("only operators of kind `window` have late rows"),
            "{error}"
        );
        let dotted = Workflow::parse(&TEXT.replace("id: out,", "id: out.late,"), "w.yaml").unwrap_err();
        assert_eq!(dotted.iter().next().unwrap().code, "E0115");
    }
}
