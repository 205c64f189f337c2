//! Keeps passwords in addresses out of findings, which show the line of the workflow file where they are.
use crate::address::Address;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Span;
use tidemill_spec::value::{Node, Value};

/// Returns the findings without the place where it would show an address with secrets, and without the text where that has
/// one.
pub(super) fn without_secrets(findings: Diagnostics, options: &Value) -> Diagnostics {
    let mut secrets = Vec::new();
    collect(options, &mut secrets);
    findings.into_iter().map(|finding| hidden(finding, &secrets)).collect()
}

/// Collects texts that are addresses with secrets, or may be.
fn collect<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
    match &value.node {
        Node::Text(text) => {
            let may_hide = match Address::parse(&text.value) {
                Ok(address) => address.has_secrets(),
                Err(_) => text.value.contains("//") || text.value.contains('@'),
            };
            if may_hide {
                into.push(&text.value);
            }
        }
        Node::List(items) => items.iter().for_each(|item| collect(item, into)),
        Node::Map(entries) => entries.iter().for_each(|entry| collect(&entry.value, into)),
        _ => {}
    }
}

fn hidden(finding: Diagnostic, secrets: &[&str]) -> Diagnostic {
    let shows = |text: &str| secrets.iter().any(|secret| text.contains(secret));
    if !shows(&finding.render(false)) && !finding.snippet().is_some_and(shows) {
        return finding;
    }
    let line = finding.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let message = if shows(&finding.message) { "it does not fit".to_owned() } else { finding.message };
    let help = finding.help.filter(|help| !shows(help));
    Diagnostic {
        message: format!("{line}{message}"),
        span: Span::nowhere(),
        label: String::new(),
        related: Vec::new(),
        help,
        ..finding
    }
}
