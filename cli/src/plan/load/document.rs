//! Plans for a load, for programs.
use super::{LoadPlan, Totals, file_name, saved};
use crate::plan::status_word;
use serde_json::{Value, json};
use std::path::Path;
use tidemill_app::expectation::Expectation;

fn totals(of: Totals, seconds: f64) -> Value {
    json!({
        "cost": of.cost,
        "cost_per_day": of.cost * 86_400.0 / seconds,
        "switches_per_day": of.switches_per_day,
        "time_over_level": of.over_time,
        "records_over_level": of.over_load,
        "accuracy": of.accuracy,
        "records_below_accuracy_level": of.below_level,
    })
}

impl LoadPlan<'_> {
    /// Returns the whole answer. Costs are in $ unless they are per hour; shares are of 1.
    pub(super) fn document(&self, file: &Path) -> Value {
        let (least, mean, most) = self.rates();
        let seconds = self.trace.seconds();
        let levels = self.levels.iter().zip(&self.schedule.levels).enumerate().map(|(index, (level, of))| {
            let (candidate, summary) = (level.candidate, &level.planned.summary);
            let problem = &candidate.assembly.problem;
            let chosen = problem.operators.iter().zip(&level.planned.solution.variants);
            let variants = chosen.filter(|(operator, _)| self.case.models.contains_key(&operator.id));
            let variants: serde_json::Map<String, Value> = variants
                .map(|(operator, &variant)| (operator.id.clone(), json!(operator.variants[variant].id)))
                .collect();
            let expectation = match &level.expectation {
                Expectation::Known { latency, .. } => json!({"p50_ms": latency.p50 * 1e3, "p99_ms": latency.p99 * 1e3}),
                Expectation::Unknown(why) => json!({"why_not": why}),
            };
            json!({
                "plan": file_name(index),
                "rates_up_to": candidate.top * self.nominal,
                "needed": of.needed / seconds,
                "used": of.seconds / seconds,
                "status": status_word(candidate.status),
                "cost_per_hour": {
                    "total": candidate.cost.total(),
                    "compute": candidate.cost.compute,
                    "network": candidate.cost.network,
                },
                "accuracy": candidate.accuracy,
                "latency_bound_ms": summary.slowest().filter(|path| path.is_bounded).map(|path| path.total() * 1e3),
                "expectation": expectation,
                "workers": level.planned.workers,
                "variants": variants,
                "seconds_over": of.over_seconds,
                "records_over": of.over * self.nominal,
            })
        });
        let levels: Vec<Value> = levels.collect();
        let spells = self.schedule.spells.iter();
        let spells =
            spells.map(|spell| json!({"begin": spell.begin, "end": spell.end, "level": spell.level + 1}));
        let (fixed, switched) = (self.fixed(), self.switched());
        let peak = self.fixed.candidate;
        json!({
            "version": 1,
            "workflow": self.case.workflow.name.value,
            "infrastructure": self.case.infrastructure.name.value,
            "planner": self.candidates.planner,
            "trace": {
                "file": file.display().to_string(),
                "seconds": seconds,
                "rate": {"least": least, "mean": mean, "most": most},
            },
            "switching": {"dwell_seconds": self.switching.dwell, "reaction_seconds": self.switching.reaction},
            "fleet": self.candidates.fleet.as_ref().map(|fleet| json!({
                "bought_for": fleet.bought_for,
                "rate": fleet.rate,
                "cost_per_hour": fleet.price,
                "workers": fleet.workers,
            })),
            "plans": self.candidates.all.iter().flatten().count(),
            "levels": levels,
            "fixed": {
                "rate": peak.top * self.nominal,
                "cost_per_hour": peak.cost.total(),
                "totals": totals(fixed, seconds),
            },
            "switched": totals(switched, seconds),
            "saved": saved(switched.cost, fixed.cost),
            "schedule": spells.collect::<Vec<_>>(),
        })
    }
}
