//! Checks of texts that become parts of files: none may start a new line there, and labels of nodes have a format.
use super::Site;
use crate::error::DeployError;
use crate::request::{Request, Target};

/// Longest value of a label.
const LONGEST_LABEL: usize = 63;

/// Checks that all texts of a deployment can be written.
pub(super) fn check(request: &Request<'_>, sites: &[Site]) -> Result<(), DeployError> {
    let mut texts: Vec<(&'static str, &str)> = vec![
        ("name of the workflow", request.plan.plan.workflow.name.as_str()),
        ("image", request.image.as_str()),
    ];
    let mut labels: Vec<(&'static str, &str)> = Vec::new();
    for site in sites {
        texts.extend(site.served.iter().map(|served| ("id of a device", served.id.as_str())));
        labels.push(("tier", site.tier.as_str()));
        labels.extend(site.location.iter().map(|location| ("location", location.as_str())));
        for unit in &site.workers {
            texts.push(("type of a worker", unit.worker_type.as_str()));
            texts.extend(
                unit.reads.iter().chain(&unit.devices).map(|path| ("path of a source", path.as_str())),
            );
        }
    }
    if let Some(&(what, text)) = texts.iter().chain(&labels).find(|(_, text)| text.chars().any(breaks)) {
        return Err(DeployError::Unprintable { what, text: text.to_owned() });
    }
    match labels.iter().find(|(_, text)| request.target == Target::Kubernetes && !is_label(text)) {
        Some(&(what, text)) => Err(DeployError::NoLabel { what, text: text.to_owned() }),
        None => Ok(()),
    }
}

/// Whether a character ends a line for any reader of the files.
fn breaks(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether a text is a valid label value.
fn is_label(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_part = |c: char| is_end(c) || "-_.".contains(c);
    text.len() <= LONGEST_LABEL
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_nodes() {
        for label in ["edge", "rack_2.hall-3", "7", "a".repeat(63).as_str()] {
            assert!(is_label(label), "{label}");
        }
        for other in ["", "a b", "-a", "a.", "größe", "a/b", "a;id", "a".repeat(64).as_str()] {
            assert!(!is_label(other), "{other}");
        }
    }

    #[test]
    fn what_ends_a_line_is_known() {
        assert!(
            ["a\nb", "a\rb", "a\u{85}b", "a\u{2028}b", "\u{7}"].iter().all(|text| text.chars().any(breaks))
        );
        assert!(!"größe $1 'a' \"b\"".chars().any(breaks));
    }
}
