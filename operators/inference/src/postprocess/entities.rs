//! Labelled parts of a text, from the scores of its tokens.
//!
//! ```
//! use tidemill_inference::origin::{TextPart, TextParts};
//! use tidemill_inference::postprocess::entities::EntityDecoder;
//! use tidemill_spec::manifest::EntityScheme;
//! let labels = ["O", "B-PER", "I-PER"].map(str::to_owned);
//! let decoder = EntityDecoder::new(&labels, EntityScheme::Bio, &["O".to_owned()]);
//! let part = |start, end| TextPart { start, end, word: None, is_added: false };
//! let text = TextParts { text: "Ann Lee sat".to_owned(), parts: vec![part(0, 3), part(4, 7), part(8, 11)], pads_left: false };
//! let scores = [0.0, 0.75, 0.25, 0.0, 0.5, 0.75, 1.0, 0.0, 0.0];
//! assert_eq!(decoder.decode(&scores, &text), r#"[{"start":0,"end":7,"label":"PER","score":0.75,"text":"Ann Lee"}]"#);
//! ```
use super::scores::argmax;
use crate::origin::{TextPart, TextParts};
use serde::Serialize;
use tidemill_spec::manifest::EntityScheme;

/// Joins tokens to labelled parts.
#[derive(Debug, Clone)]
pub struct EntityDecoder {
    labels: Vec<String>,
    scheme: EntityScheme,
    ignore: Vec<String>,
}

/// A labelled part of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entity<'a> {
    /// Its first character, counted from 0.
    pub start: usize,
    /// The character after its last one.
    pub end: usize,
    /// Its label.
    pub label: &'a str,
    /// Its score.
    pub score: f32,
    /// Its characters.
    pub text: &'a str,
}

/// Tokens of one label, before they are an entity.
struct Group<'a> {
    label: &'a str,
    first: TextPart,
    last: TextPart,
    scores: f32,
    count: usize,
    is_closed: bool,
}

/// The meaning of a token's label.
struct Tag<'a> {
    label: &'a str,
    begins: bool,
    ends: bool,
}

impl EntityDecoder {
    /// A decoder of these labels, in the order of the scores; parts whose label is one of `ignore` are left out.
    pub fn new(labels: &[String], scheme: EntityScheme, ignore: &[String]) -> Self {
        Self { labels: labels.to_vec(), scheme, ignore: ignore.to_vec() }
    }

    /// Returns the entities of a text as JSON; see [`EntityDecoder::entities`].
    pub fn decode(&self, scores: &[f32], text: &TextParts) -> String {
        serde_json::to_string(&self.entities(scores, text)).unwrap_or_default()
    }

    /// Returns the entities of a text in its order. `scores`: one for each label, for each token and for padding.
    pub fn entities<'a>(&'a self, scores: &[f32], text: &'a TextParts) -> Vec<Entity<'a>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let is_words = self.scheme == EntityScheme::Words;
        for (part, row) in text.values(scores, self.labels.len()) {
            let best = argmax(row);
            let (Some(label), Some(score)) = (self.labels.get(best), row.get(best)) else { break };
            let tag = self.tag(label);
            match groups.last_mut() {
                // The label of a word is that of its first token.
                Some(group) if is_words && part.word.is_some() && part.word == group.last.word => {
                    group.last = *part;
                    continue;
                }
                Some(group) if !is_words && group.label == tag.label && !tag.begins && !group.is_closed => {
                    group.last = *part;
                    group.scores += score;
                    group.count += 1;
                    group.is_closed = tag.ends;
                    continue;
                }
                _ => {}
            }
            let (label, is_closed) = (tag.label, tag.ends);
            groups.push(Group { label, first: *part, last: *part, scores: *score, count: 1, is_closed });
        }
        let kept = groups.into_iter().filter(|group| !self.ignore.iter().any(|label| label == group.label));
        let entity = |group: Group<'a>| Entity {
            start: group.first.start,
            end: group.last.end,
            label: group.label,
            score: group.scores / group.count as f32,
            text: text.part(group.first.start, group.last.end),
        };
        kept.map(entity).collect()
    }

    fn tag<'a>(&self, label: &'a str) -> Tag<'a> {
        let known = match self.scheme {
            EntityScheme::Bio => "BI",
            EntityScheme::Bioes => "BIESLU",
            EntityScheme::Words => "",
        };
        let prefix = label.split_once('-').filter(|(prefix, _)| prefix.len() == 1 && known.contains(prefix));
        match prefix {
            Some((prefix, label)) => {
                Tag { label, begins: "BSU".contains(prefix), ends: "ESLU".contains(prefix) }
            }
            None => Tag { label, begins: false, ends: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tokens of a text at blanks, two characters each; all tokens of a word have its number.
    fn tokens(text: &str) -> TextParts {
        let (mut parts, mut word) = (Vec::new(), 0);
        let characters: Vec<char> = text.chars().collect();
        let mut start = 0;
        while start < characters.len() {
            if characters[start] == ' ' {
                (start, word) = (start + 1, word + 1);
                continue;
            }
            let one = characters.get(start + 1).is_none_or(|next| *next == ' ');
            let end = start + if one { 1 } else { 2 };
            parts.push(TextPart { start, end, word: Some(word), is_added: false });
            start = end;
        }
        TextParts { text: text.to_owned(), parts, pads_left: false }
    }

    fn found(
        labels: &[&str],
        scheme: EntityScheme,
        text: &str,
        best: &[usize],
    ) -> Vec<(String, String, f32)> {
        let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
        let decoder = EntityDecoder::new(&labels, scheme, &["O".to_owned()]);
        let text = tokens(text);
        assert_eq!(text.parts.len(), best.len());
        let scores = best.iter().enumerate().flat_map(|(at, best)| {
            let width = labels.len();
            (0..width).map(move |label| if label == *best { 1.0 + at as f32 } else { 0.0 })
        });
        let scores: Vec<f32> = scores.collect();
        let entities = decoder.entities(&scores, &text);
        entities.iter().map(|it| (it.label.to_owned(), it.text.to_owned(), it.score)).collect()
    }

    fn entity(label: &str, text: &str, score: f32) -> (String, String, f32) {
        (label.to_owned(), text.to_owned(), score)
    }

    #[test]
    fn names_of_several_tokens_are_one() {
        let labels = ["O", "B-PER", "I-PER", "B-LOC"];
        let all = found(&labels, EntityScheme::Bio, "Änne in Ulm", &[1, 2, 0, 3, 3]);
        let expected = [entity("PER", "Änne", 1.5), entity("LOC", "Ul", 4.0), entity("LOC", "m", 5.0)];
        assert_eq!(all, expected, "each B- begins one");
        let all = found(&labels, EntityScheme::Bio, "ab cd ef", &[2, 2, 1]);
        assert_eq!(all, [entity("PER", "ab cd", 1.5), entity("PER", "ef", 3.0)]);
    }

    #[test]
    fn other_schemes_end_parts_at_their_own_labels() {
        let labels = ["O", "B-X", "I-X", "E-X", "S-X"];
        let all = found(&labels, EntityScheme::Bioes, "a b c d e", &[1, 2, 3, 2, 4]);
        assert_eq!(all, [entity("X", "a b c", 2.0), entity("X", "d", 4.0), entity("X", "e", 5.0)]);
        let all = found(&["NOUN", "O", "VERB"], EntityScheme::Words, "dogs bark now", &[0, 2, 2, 0, 1, 1]);
        assert_eq!(all, [entity("NOUN", "dogs", 1.0), entity("VERB", "bark", 3.0)]);
    }

    #[test]
    fn a_text_without_tokens_has_no_entities() {
        let decoder = EntityDecoder::new(&["O".to_owned(), "X".to_owned()], EntityScheme::Bio, &[]);
        assert_eq!(decoder.decode(&[], &TextParts::default()), "[]");
        assert_eq!(
            decoder.decode(&[0.0, 1.0], &tokens("ab cd")),
            r#"[{"start":0,"end":2,"label":"X","score":1.0,"text":"ab"}]"#
        );
    }

    /// The grouping of the pipelines, written down once more: labels of tokens to ranges of tokens.
    fn grouped(labels: &[&str]) -> Vec<(usize, usize, String)> {
        let tag = |label: &str| match (label.strip_prefix("B-"), label.strip_prefix("I-")) {
            (Some(tag), _) => (true, tag.to_owned()),
            (_, Some(tag)) => (false, tag.to_owned()),
            _ => (false, label.to_owned()),
        };
        let mut all: Vec<(usize, usize, String)> = Vec::new();
        for (at, label) in labels.iter().enumerate() {
            let (begins, tag) = tag(label);
            let continues = at > 0 && !begins && all.last().is_some_and(|last| last.2 == tag);
            match all.last_mut() {
                Some(last) if continues => last.1 = at,
                _ => all.push((at, at, tag)),
            }
        }
        all.into_iter().filter(|group| group.2 != "O").collect()
    }

    proptest! {
        #[test]
        fn groups_are_those_of_the_pipelines(best in prop::collection::vec(0..5_usize, 0..20)) {
            let labels = ["O", "B-A", "I-A", "B-B", "I-B"];
            let text = vec!["ab"; best.len()].join(" ");
            let names: Vec<&str> = best.iter().map(|best| labels[*best]).collect();
            let expected: Vec<(String, String)> = grouped(&names)
                .into_iter()
                .map(|(from, to, label)| (label, vec!["ab"; to - from + 1].join(" ")))
                .collect();
            let all = found(&labels, EntityScheme::Bio, &text, &best);
            prop_assert_eq!(all.into_iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(), expected);
        }
    }
}
