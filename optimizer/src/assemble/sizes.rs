//! Bytes per record of every stream, by the models chosen.
use super::streams::Models;
use super::{Inputs, profile_command};
use crate::problem::Sizes;
use tidemill_spec::diagnostic::Diagnostic;

/// Most joint variants whose sizes are computed, per stream.
const MOST_ASKED: usize = 65_536;

/// The senders, and what their sizes may depend on.
pub(super) struct Senders<'a> {
    pub(super) inputs: &'a Inputs<'a>,
    /// By operator of the problem.
    pub(super) models: &'a [Models],
    /// Whether nothing depends on sizes.
    pub(super) is_free: bool,
}

impl Senders<'_> {
    /// Sizes of the records of an edge of the workflow (from, to, input), sent by an operator of the problem or by a
    /// source.
    pub(super) fn sizes(
        &self,
        edge: (&str, &str, u32),
        sender: Option<usize>,
        position: usize,
        notes: &mut Vec<String>,
    ) -> Result<Sizes, Diagnostic> {
        let profile = self.inputs.profile;
        let counts: Vec<usize> =
            self.models.iter().map(|(_, models)| models.as_ref().map_or(1, Vec::len)).collect();
        if !self.is_free && !self.is_known(edge, sender) {
            let message = format!("the size of the messages from `{}` to `{}` is not known", edge.0, edge.1);
            return Err(Diagnostic::error("E0904", message).with_help(profile_command(self.inputs.workflow)));
        }
        let matters = |operator: &usize| {
            let is_named =
                profile.messages_of(edge).any(|of| of.variants.contains_key(&self.models[*operator].0));
            counts[*operator] > 1 && is_named
        };
        let operators: Vec<usize> = (0..counts.len()).filter(matters).collect();
        let asked =
            operators.iter().fold(1usize, |product, operator| product.saturating_mul(counts[*operator]));
        if asked > MOST_ASKED {
            let message = format!(
                "the size of the messages from `{}` to `{}` depends on {asked} combinations of models, but at most {MOST_ASKED} are possible",
                edge.0, edge.1
            );
            let help = "name fewer operators in the `variants` of its sizes in the profile";
            return Err(Diagnostic::error("E0909", message).with_help(help));
        }
        let mut unknown = 0;
        let bytes_of = |joint: Vec<usize>| {
            let mut variants = vec![0; counts.len()];
            operators.iter().zip(&joint).for_each(|(operator, variant)| variants[*operator] = *variant);
            let chosen = self.models.iter().zip(&variants).filter_map(|((id, models), variant)| {
                Some((id.clone(), models.as_ref()?.get(*variant)?.clone()))
            });
            let chosen = chosen.collect();
            unknown += usize::from(!profile.knows_bytes_per_record(edge, &chosen));
            profile.bytes_per_record(edge, &chosen).map_or(0.0, |bytes| bytes.0 as f64)
        };
        let sizes = Sizes::of(position, operators.clone(), &counts, bytes_of);
        if unknown > 0 && !self.is_free {
            notes.push(format!(
                "the size of the messages from `{}` to `{}` is not known for {unknown} of {asked} combinations of models: using the size for the most similar one there",
                edge.0, edge.1
            ));
        }
        Ok(sizes)
    }

    /// Whether some size applies to every model of the sender.
    fn is_known(&self, edge: (&str, &str, u32), sender: Option<usize>) -> bool {
        let may_hold = |known: Option<(&str, &str)>| {
            let agrees = |(operator, variant): (&String, &String)| {
                known.is_none_or(|(head, chosen)| operator != head || variant == chosen)
            };
            self.inputs.profile.messages_of(edge).any(|of| of.variants.iter().all(agrees))
        };
        match sender.map(|sender| &self.models[sender]) {
            Some((head, Some(models))) => models.iter().all(|model| may_hold(Some((head, model)))),
            _ => may_hold(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::assemble::tests::{Case, INFRASTRUCTURE, PROFILE, WORKFLOW};

    fn with_messages(messages: &str) -> Case {
        let size = "  - {from: questions, to: speech, bytes_per_record: 100kB}\n";
        assert!(PROFILE.contains(size));
        Case::new(WORKFLOW, INFRASTRUCTURE, &PROFILE.replace(size, &format!("{size}{messages}")))
    }

    /// The join is fused with the operator after it, and its edge from the speech is its own.
    #[test]
    fn the_size_that_names_most_models_counts() {
        let case = with_messages(
            "  - {from: speech, to: pair, input: 1, variants: {features: small}, bytes_per_record: 70B}\n",
        );
        let assembly = case.assembled();
        let bytes = |variants: &[usize]| assembly.problem.edge_bytes(3, variants);
        assert_eq!((bytes(&[0, 0, 0]), bytes(&[1, 0, 0])), (70.0, 100.0));
        assert_eq!(assembly.problem.edges[3].bytes, [100.0], "the most of any");
        assert_eq!(assembly.notes, vqa_notes());
    }

    #[test]
    fn where_a_combination_has_no_size_the_most_similar_counts_and_is_named() {
        let mut case = with_messages("");
        let speech =
            case.profile.messages.iter_mut().find(|message| message.from == "speech").expect("it is there");
        speech.variants = [("features".to_owned(), "small".to_owned())].into();
        let assembly = case.assembled();
        assert_eq!(assembly.problem.edge_bytes(3, &[1, 0, 0]), 100.0);
        let said: Vec<&String> = assembly.notes.iter().filter(|note| !vqa_notes().contains(note)).collect();
        assert_eq!(
            said,
            [
                "the size of the messages from `speech` to `pair` is not known for 1 of 2 combinations of models: using the size for the most similar one there"
            ]
        );
    }

    #[test]
    fn more_combinations_than_can_be_listed_are_refused() {
        use crate::assemble::Models;
        let mut case = with_messages("");
        let message = case.profile.messages.iter_mut().find(|message| message.from == "speech");
        let named = ["features", "speech", "answer"].map(|operator| (operator.to_owned(), "m0".to_owned()));
        message.expect("it is there").variants = named.into();
        let many = |id: &String| (id.clone(), Some((0..41).map(|n| format!("m{n}")).collect()));
        let models: Vec<_> = Models::keys(&case.models).map(many).collect();
        let senders = super::Senders { inputs: &case.inputs(), models: &models, is_free: true };
        let refused = senders.sizes(("speech", "pair", 1), None, 3, &mut Vec::new()).expect_err("too many");
        assert_eq!(refused.code, "E0909");
        assert!(refused.to_string().contains("68921 combinations"), "{refused}");
    }

    fn vqa_notes() -> Vec<String> {
        with_messages("").assembled().notes
    }
}
