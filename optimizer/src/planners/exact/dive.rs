//! Finds a feasible point by rounding the relaxation step by step (diving, Achterberg 2007, chapter 9).
use super::live::{Live, NotLive};
use super::program::{Column, Program, SolverForm};
use super::tuning::WHOLE;

/// Values of all columns with whole numbers in `stages`, rounded stage by stage; none in a dead end or when no seconds
/// are left. Within a stage the column nearest to a whole number is fixed first. The result is a point, never a bound.
pub(super) fn dive(program: &Program, stages: &[Vec<Column>], seconds: impl Fn() -> f64) -> Option<Vec<f64>> {
    let form = SolverForm::of(program, true)?;
    if form.is_decided() {
        return Some(form.values(|_| 0.0));
    }
    let live = Live::new(&form, seconds()).ok()?;
    rounded(&form, live, stages, seconds).ok().map(|live| live.values(&form))
}

fn rounded(
    form: &SolverForm,
    mut live: Live,
    stages: &[Vec<Column>],
    seconds: impl Fn() -> f64,
) -> Result<Live, NotLive> {
    for stage in stages {
        loop {
            let fraction = |column: &Column| {
                let value = live.value(form, *column)?;
                let distance = (value - value.round()).abs();
                (distance > WHOLE).then_some((distance, *column, value))
            };
            let nearest = stage.iter().filter_map(fraction).min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((_, column, value)) = nearest else { break };
            if seconds() <= 0.0 {
                return Err(NotLive::Unknown);
            }
            let near = value.round();
            let other = if near > value { near - 1.0 } else { near + 1.0 };
            live = match live.clone().fixed(form, column, near) {
                Ok(live) => live,
                Err(_) => live.fixed(form, column, other)?,
            };
        }
        // Values that are whole now stay so while later stages are rounded.
        for &column in stage {
            if let Some(value) = live.value(form, column) {
                live = live.fixed(form, column, value.round())?;
            }
        }
    }
    Ok(live)
}
