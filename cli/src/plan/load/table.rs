//! Plans for a load, for people.
use super::candidates::workers_of;
use super::{Level, LoadPlan, Totals, saved};
use crate::plan::table::{percent, rate, trimmed};
use crate::plan::{dollars, status_word};
use crate::table::{Side, Table};
use std::io::{self, Write};
use std::path::Path;
use tidemill_optimizer::solution::Status;

/// A length of time in its largest unit: `24 h`, `5 min`, `90 s`.
fn span(seconds: f64) -> String {
    let whole = |unit: f64| seconds >= unit && (seconds / unit).fract().abs() < 1e-9;
    match () {
        () if whole(3600.0) => format!("{} h", seconds / 3600.0),
        () if whole(60.0) => format!("{} min", seconds / 60.0),
        () => format!("{} s", trimmed(seconds, 3)),
    }
}

/// Sums of money, small ones too.
fn money(value: f64) -> String {
    if value.abs() >= 1.0 { format!("{value:.2} $") } else { format!("{value:.4} $") }
}

/// A small part in percent, with more places the smaller it is.
fn small(part: f64) -> String {
    match part {
        0.0 => "0 %".to_owned(),
        part if part < 5e-6 => "< 0.001 %".to_owned(),
        part if part < 0.01 => format!("{} %", trimmed(part * 100.0, 3)),
        part => percent(part),
    }
}

impl LoadPlan<'_> {
    /// Writes the whole answer.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(super) fn write_table(&self, file: &Path, out: &mut dyn Write) -> io::Result<()> {
        let (least, mean, most) = self.rates();
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        writeln!(
            out,
            "{} on {}, {name}: {} of {} to {}, {} on average, by {}\n",
            self.case.workflow.name,
            self.case.infrastructure.name,
            span(self.trace.seconds()),
            rate(least),
            rate(most),
            rate(mean),
            self.candidates.planner
        )?;
        if let Some(fleet) = &self.candidates.fleet {
            writeln!(
                out,
                "workers for {}, all the time: {} for {}; they carry {} and keep the levels\n",
                fleet.bought_for,
                fleet.workers,
                dollars(fleet.price),
                rate(fleet.rate)
            )?;
        }
        self.write_levels(out)?;
        self.write_totals(out)?;
        self.write_method(out)
    }

    fn write_levels(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("level", Side::Right),
            ("rates up to", Side::Right),
            ("needed", Side::Right),
            ("used", Side::Right),
            ("plan", Side::Right),
            ("accuracy", Side::Right),
            ("workers", Side::Left),
            ("variants", Side::Left),
        ]);
        let seconds = self.schedule.seconds;
        for (index, (level, of)) in self.levels.iter().zip(&self.schedule.levels).enumerate() {
            let candidate = level.candidate;
            table.row([
                (index + 1).to_string(),
                rate(candidate.top * self.nominal),
                percent(of.needed / seconds),
                percent(of.seconds / seconds),
                dollars(candidate.cost.total()),
                candidate.accuracy.map_or_else(String::new, |value| format!("{} %", trimmed(value, 2))),
                match self.candidates.fleet {
                    None => workers_of(&candidate.assembly, &candidate.solution),
                    Some(_) => String::new(),
                },
                self.variants(level).join(", "),
            ]);
        }
        table.write(out)?;
        writeln!(out)
    }

    /// Chosen models, in the order of the workflow.
    pub(super) fn variants(&self, level: &Level<'_>) -> Vec<String> {
        let operators =
            level.candidate.assembly.problem.operators.iter().zip(&level.planned.solution.variants);
        let with_models = operators.filter(|(operator, _)| self.case.models.contains_key(&operator.id));
        with_models.map(|(operator, &variant)| operator.variants[variant].id.clone()).collect()
    }

    fn write_totals(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("over the trace", Side::Left),
            ("cost", Side::Right),
            ("a day", Side::Right),
            ("saved", Side::Right),
            ("switches a day", Side::Right),
            ("time over level", Side::Right),
            ("records over", Side::Right),
            ("accuracy", Side::Right),
            ("below the SLO", Side::Right),
        ]);
        let wants_accuracy = self.fixed.candidate.assembly.problem.limits.accuracy.is_some();
        let fixed = self.fixed();
        let is_day = (self.trace.seconds() - 86_400.0).abs() < 1.0;
        let row = |name: &str, totals: Totals| {
            let saved = saved(totals.cost, fixed.cost).filter(|_| totals != fixed);
            [
                name.to_owned(),
                money(totals.cost),
                if is_day { String::new() } else { money(totals.cost * 86_400.0 / self.trace.seconds()) },
                saved.map_or_else(|| "-".to_owned(), percent),
                trimmed(totals.switches_per_day, 1),
                small(totals.over_time),
                small(totals.over_load),
                totals.accuracy.map_or_else(String::new, |value| format!("{} %", trimmed(value, 2))),
                if wants_accuracy { small(totals.below_level) } else { String::new() },
            ]
        };
        table.row(row("one plan for the peak", fixed));
        let name = match self.candidates.fleet {
            None => "plans of the levels",
            Some(_) => "variants of the levels",
        };
        table.row(row(name, self.switched()));
        table.write(out)?;
        writeln!(out)
    }

    fn write_method(&self, out: &mut dyn Write) -> io::Result<()> {
        let plans: Vec<Status> =
            self.candidates.all.iter().flatten().map(|candidate| candidate.status).collect();
        let optimal = plans.iter().filter(|status| **status == Status::Optimal).count();
        let what = match self.candidates.fleet {
            None => "of least cost",
            Some(_) => "that lose least accuracy",
        };
        writeln!(
            out,
            "levels {what} by dynamic programming over {} plans ({optimal} optimal); {} between switches \
             and before a lower level, {} to react",
            plans.len(),
            span(self.switching.dwell),
            span(self.switching.reaction)
        )?;
        let weak: Vec<String> = self
            .levels
            .iter()
            .enumerate()
            .filter(|(_, level)| level.candidate.status != Status::Optimal)
            .map(|(index, level)| format!("level {} {}", index + 1, status_word(level.candidate.status)))
            .collect();
        if !weak.is_empty() {
            writeln!(out, "not proven optimal: {}", weak.join(", "))?;
        }
        if self.candidates.all.iter().any(Option::is_none) {
            let missing = self.candidates.all.iter().filter(|candidate| candidate.is_none()).count();
            writeln!(out, "no plan found for {missing} more loads; a higher level serves them")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [86_400.0, 300.0, 90.0, 0.0, 5400.0].map(span),
            ["24 h", "5 min", "90 s", "0 s", "90 min"]
        );
        assert_eq!([0.0, 1e-6, 0.00123, 0.25].map(small), ["0 %", "< 0.001 %", "0.123 %", "25 %"]);
        assert_eq!([0.012_34, 12.345].map(money), ["0.0123 $", "12.35 $"]);
    }
}
