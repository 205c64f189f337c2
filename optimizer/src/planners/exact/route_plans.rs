//! Whole numbers of workers for the routes of given variants: those of the relaxation rounded one after the other, with
//! new routes after each step, then an integer program over all routes generated so far.
use super::program::{Answer, Effort};
use super::routes::{Routes, Workers};
use super::search::Search;
use super::tuning::{GAP_OF_ROUTES, NODES_OF_ROUTES};
use crate::realise::Placement;

impl Search {
    /// The cheapest placement found with the variants of these routes; without a rounded one, below a cost.
    pub(super) fn over_routes(&mut self, routes: &mut Routes<'_, '_>, most: f64) -> Option<Placement> {
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let seconds = || time.left_of(wall);
        let all = routes.all_workers();
        let numbers = self.rounded_workers(routes, &seconds);
        let (mut program, columns, counts) = routes.program(&all);
        let start = numbers.as_ref().map(|numbers| {
            let mut start = vec![0.0; program.len()];
            counts.iter().zip(numbers).for_each(|(column, number)| start[*column] = f64::from(*number));
            start
        });
        if numbers.is_none() && most.is_finite() {
            program.cheaper_than(most);
        }
        let effort = Effort {
            nodes: NODES_OF_ROUTES,
            gap: GAP_OF_ROUTES,
            start: start.as_deref(),
            ..self.effort(1.0)
        };
        let Answer::Found(point) = self.solve(&program, &effort) else { return None };
        Some(routes.placement(&columns, &counts, &point))
    }

    /// The cheapest placement found with these numbers of workers, by search class and operator, if it costs less than
    /// `most`.
    pub(super) fn with_workers(
        &mut self,
        routes: &mut Routes<'_, '_>,
        count: impl Fn(usize, Option<usize>) -> u32,
        most: f64,
    ) -> Option<Placement> {
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let numbers = routes.slots.iter().map(|&(class, operator)| f64::from(count(class, operator)));
        let numbers: Vec<f64> = numbers.collect();
        // Where the last keys are expensive to serve, the first price does not suffice.
        let prices = if most.is_finite() { &[most, f64::INFINITY][..] } else { &[most] };
        for &of_unserved in prices {
            let workers = Workers::exactly(numbers.clone(), of_unserved);
            if routes.generate(&workers, most, &|| time.left_of(wall)).is_none_or(|cost| cost >= most) {
                return None;
            }
            let (program, columns, counts) = routes.program(&workers);
            let effort = Effort { relaxed: true, ..self.effort(1.0) };
            if let Answer::Found(point) = self.solve(&program, &effort) {
                return Some(routes.placement(&columns, &counts, &point));
            }
        }
        None
    }

    /// Whole numbers of workers, by rounding those of the relaxation one after the other, with the routes then
    /// generated.
    fn rounded_workers(
        &mut self,
        routes: &mut Routes<'_, '_>,
        seconds: &impl Fn() -> f64,
    ) -> Option<Vec<u32>> {
        let mut workers = routes.all_workers();
        let mut before: Option<(usize, f64, Workers)> = None;
        for _ in 0..4 * routes.slots.len() {
            let cost = routes.generate(&workers, f64::INFINITY, seconds);
            let (program, _, counts) = routes.program(&workers);
            let effort = Effort { relaxed: true, ..self.effort(1.0) };
            let point = match cost.is_none_or(f64::is_infinite) {
                true => None,
                false => match self.solve(&program, &effort) {
                    Answer::Found(point) => Some(point),
                    _ => None,
                },
            };
            let Some(point) = point else {
                // Rounded to the wrong side: try the other one, once.
                let (slot, other, old) = before.take()?;
                workers = old;
                (workers.low[slot], workers.high[slot]) = (other, other.max(workers.low[slot]));
                if other > routes.all_workers().high[slot] {
                    return None;
                }
                continue;
            };
            let fraction = |slot: usize| {
                let value = point.values[counts[slot]];
                let distance = (value - value.round()).abs();
                (distance > 1e-6).then_some((distance, slot, value))
            };
            let nearest = (0..counts.len()).filter_map(fraction).min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((_, slot, value)) = nearest else {
                return Some(counts.iter().map(|c| point.values[*c].round() as u32).collect());
            };
            let (near, old) = (value.round(), workers.clone());
            let other = if near > value { near - 1.0 } else { near + 1.0 };
            if near > value {
                workers.low[slot] = near;
            } else {
                workers.high[slot] = near;
            }
            before = Some((slot, other, old));
        }
        None
    }
}
