//! Condenses findings of a cluster for people: one line per healthy worker, and equal findings of several workers once.
use super::{Finding, State};
use std::borrow::Cow;

/// Most names that are listed individually.
const MOST_NAMES: usize = 4;

/// Splits a name into the worker, or other subject, and the part.
fn parts(name: &str) -> Option<(&str, &str)> {
    name.split_once(": ")
}

/// Returns fewer, equivalent lines.
pub(super) fn folded(findings: &[Finding]) -> Vec<Finding> {
    same_once(well_in_a_line(findings))
}

/// Merges healthy parts into the line of their subject, if that is healthy too.
fn well_in_a_line(findings: &[Finding]) -> Vec<Finding> {
    let mut lines: Vec<Finding> = Vec::new();
    for finding in findings {
        if let Some((of, part)) = parts(&finding.name).filter(|_| finding.state == State::Ok)
            && let Some(line) = lines.iter_mut().find(|line| line.name == of && line.state == State::Ok)
        {
            line.detail.push_str(&format!("; {part} {}", finding.detail));
            continue;
        }
        lines.push(finding.clone());
    }
    lines
}

/// Merges equal findings of several subjects.
fn same_once(findings: Vec<Finding>) -> Vec<Finding> {
    let mut lines: Vec<(Finding, Vec<String>)> = Vec::new();
    for finding in findings {
        let found = parts(&finding.name).map(|(of, part)| (of.to_owned(), part.to_owned()));
        let same = lines.iter_mut().find(|(line, _)| {
            let part = parts(&line.name).map(|(_, part)| part);
            finding.state != State::Ok
                && found.as_ref().is_some_and(|(_, own)| part == Some(own))
                && (line.state, &line.detail, &line.fix) == (finding.state, &finding.detail, &finding.fix)
        });
        match (same, found) {
            (Some((_, names)), Some((of, _))) => names.push(of),
            (_, found) => lines.push((finding, found.into_iter().map(|(of, _)| of).collect())),
        }
    }
    let lines = lines.into_iter().map(|(finding, names)| {
        let Some((_, part)) = parts(&finding.name).filter(|_| names.len() > 1) else { return finding };
        let all = match names.len() {
            ..=MOST_NAMES => names.join(", "),
            more => format!("{} and {} more", names[..MOST_NAMES - 1].join(", "), more - (MOST_NAMES - 1)),
        };
        let (name, detail) = (Cow::Owned(part.to_owned()), format!("{all}: {}", finding.detail));
        Finding { name, detail, ..finding }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_well_takes_a_line_and_what_all_lack_is_told_once() {
        let note = |name: &'static str| Finding::note(name, "cannot be limited").fix("Delegate=cpu");
        let findings = [
            Finding::ok("edge", "10.0.0.5, heard in time"),
            Finding::ok("edge: clock", "+0.1 s"),
            note("edge: control groups"),
            Finding::problem("hub", "was not heard"),
            Finding::ok("hub: clock", "-0.1 s"),
            note("hub: control groups"),
        ];
        let found: Vec<(State, String, String)> = folded(&findings)
            .into_iter()
            .map(|finding| (finding.state, finding.name.into_owned(), finding.detail))
            .collect();
        let line = |state, name: &str, detail: &str| (state, name.to_owned(), detail.to_owned());
        assert_eq!(
            found,
            [
                line(State::Ok, "edge", "10.0.0.5, heard in time; clock +0.1 s"),
                line(State::Note, "control groups", "edge, hub: cannot be limited"),
                line(State::Problem, "hub", "was not heard"),
                line(State::Ok, "hub: clock", "-0.1 s"),
            ]
        );
        let many: Vec<Finding> =
            (0..20).map(|n| Finding::note(format!("w{n:02}: disk"), "is full").fix("remove runs")).collect();
        let found = folded(&many);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].detail, "w00, w01, w02 and 17 more: is full");
    }
}
