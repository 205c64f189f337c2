//! Models of a run without a plan that continues from a state: those that it had, whatever would be chosen now.
use crate::choice::{Candidates, Chosen, Setting};
use crate::state::definition::Definition;
use crate::state::place::StatePlace;
use std::collections::BTreeMap;

/// Takes the models of a state that is there and returns true; models that were set stay. A state that cannot be read counts as absent: the
/// error is reported when the run opens it.
pub(crate) fn keep_models(
    place: &StatePlace,
    candidates: &Candidates,
    settings: &[Setting],
    chosen: &mut BTreeMap<String, Chosen>,
) -> bool {
    let Ok(state) = place.look() else { return false };
    let Some(definition) = state.manifest().and_then(|manifest| Definition::read(&manifest.definition))
    else {
        return false;
    };
    for stage in &definition.plan.stages {
        let is_set = settings.iter().any(|setting| setting.operator == stage.operator);
        let Some(variant) = stage.variant.as_ref().filter(|_| !is_set) else { continue };
        let is_there = candidates.get(&stage.operator).is_some_and(|list| {
            list.iter().any(|candidate| candidate.manifest.id == **variant && candidate.obstacle.is_none())
        });
        if let Some(own) = chosen.get_mut(&stage.operator).filter(|own| is_there && own.id != *variant) {
            *own = Chosen { id: variant.clone(), why: "as in the state".to_owned() };
        }
    }
    true
}
