//! The text form of metrics, as far as samples go.
use std::collections::BTreeMap;

/// A value with its name and labels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

impl Sample {
    /// A label's value; empty: it has none.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// All samples of a text; lines that are none are left out.
pub(super) fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Labels, and what follows them.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        loop {
            match characters.next()? {
                (at, '"') => {
                    rest = &after[at + 1..];
                    break;
                }
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        }
        labels.insert(name.trim().to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn samples_are_read_with_their_labels() {
        let text = "# TYPE a counter\na_total{x=\"1\",y=\"say \\\"no\\\"\\n\"} 5\nb 2.5e3\nc{} +Inf\n# EOF\n";
        let samples = parse(text);
        assert_eq!(samples.len(), 3);
        assert_eq!((samples[0].label("x"), samples[0].label("y")), ("1", "say \"no\"\n"));
        assert_eq!((samples[0].label("z"), samples[0].value), ("", 5.0));
        assert_eq!((samples[1].value, samples[2].value), (2500.0, f64::INFINITY));
    }

    proptest! {
        /// Whatever is served, reading it ends.
        #[test]
        fn any_text_is_read(text in "\\PC{0,200}", more in "[a-z{}=\",\\\\ 0-9\n]{0,200}") {
            parse(&text);
            parse(&more);
        }
    }
}
