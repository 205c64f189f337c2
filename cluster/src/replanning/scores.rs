//! Applies measured accuracy to the models that it was measured with.
use super::Late;
use std::collections::BTreeMap;
use tidemill_app::measured::Scored;
use tidemill_spec::plan::Plan;
use tidemill_spec::profile::Profile;
use tidemill_spec::units::Percent;

/// Models by operator.
type Variants = BTreeMap<String, String>;

/// Judged answers, by the models that gave them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores(BTreeMap<Variants, Scored>);

fn variants(plan: &Plan) -> Variants {
    let stages = plan.stages.iter().filter(|stage| stage.stands_in_for.is_none());
    stages.filter_map(|stage| Some((stage.operator.clone(), stage.variant.clone()?))).collect()
}

impl Scores {
    /// Records the measurements under a plan. Counts are cumulative, so the last ones replace earlier ones.
    pub fn see(&mut self, plan: &Plan, late: &Late) {
        let variants = variants(plan);
        if let Some(scored) = late.measured.scored.filter(|_| !variants.is_empty()) {
            self.0.insert(variants, scored);
        }
    }
}

/// Lowers the profile's accuracy where the measured interval lies below it. Other models keep the profile's value until they have run.
pub fn with_scores(profile: &mut Profile, scores: &Scores) {
    let Some(accuracy) = &mut profile.accuracy else { return };
    for (variants, scored) in &scores.0 {
        let Some((low, high)) = scored.interval_percent() else { continue };
        // Without a row the profile derives accuracy from its operators; a row for one would replace all of these.
        let known = accuracy.end_to_end.iter_mut().find(|row| row.variants == *variants);
        if let Some(row) = known.filter(|row| high < row.accuracy.0) {
            row.accuracy = Percent(scored.percent());
            row.interval = Some((Percent(low), Percent(high)));
            row.samples = Some(scored.independent.min(scored.all));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_app::measured::Measured;
    use tidemill_spec::plan::{PlanWorkflow, Stage};

    const PROFILE: &str = "version: 1\nworkflow: {name: flow}\nmachines: [{worker_type: small, how: measured}]\nservices: []\n\
        accuracy:\n  metric: right answers\n  end_to_end:\n    - {variants: {see: tiny}, accuracy: 80%}\n    - {variants: {see: big}, accuracy: 90%}\n";

    #[test]
    fn many_answers_that_are_worse_than_the_profile_says_count() {
        let stage = Stage { variant: Some("tiny".into()), ..Stage::new("see", "see", "a") };
        let plan =
            Plan { stages: vec![stage], ..Plan::new(PlanWorkflow { name: "flow".into(), digest: None }) };
        let of_few = |correct, all, independent| {
            let mut profile = Profile::parse(PROFILE, "profile.yaml").unwrap();
            let scored = Scored { correct, all, independent };
            let measured = Measured { scored: Some(scored), ..Measured::default() };
            let mut scores = Scores::default();
            scores.see(&plan, &Late { measured, ..Late::default() });
            with_scores(&mut profile, &scores);
            let rows = profile.accuracy.unwrap().end_to_end;
            rows.iter().map(|row| row.accuracy.0).collect::<Vec<_>>()
        };
        let of = |correct, all| of_few(correct, all, all);
        assert_eq!(of(6, 10), [80.0, 90.0], "a few");
        assert_eq!(of_few(600, 1000, 10), [80.0, 90.0], "a few texts of many characters");
        assert_eq!(of(600, 1000), [60.0, 90.0]);
        assert_eq!(of(990, 1000), [80.0, 90.0], "better is no reason for anything");
    }
}
