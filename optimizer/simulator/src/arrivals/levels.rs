//! Levels of a changing load: a histogram of its factors is divided into few levels, each with one plan.
//!
//! Dynamic programming over the sorted load assigns plans to loads (the segmentation of Bellman 1961): the least cost
//! of the first `j` bins in `n` levels is the least over `i` of that of the first `i` bins in `n - 1` levels and of
//! bins `i + 1` to `j` with the plan for bin `j`.
use super::{Schedule, Switching, Trace};

/// Time that a load spends in a range of factors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadBin {
    /// The largest factor in it, above 0.
    pub factor: f64,
    /// Seconds at these factors.
    pub seconds: f64,
    /// Sum of factor times seconds: the load in seconds of the nominal rate.
    pub nominal: f64,
}

/// Cost of using a plan, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Price {
    /// Per second.
    pub of_time: f64,
    /// Per second's load at the nominal rate.
    pub of_load: f64,
}

impl Price {
    /// Returns the cost of this time with this load.
    pub fn of(&self, seconds: f64, nominal: f64) -> f64 {
        self.of_time * seconds + self.of_load * nominal
    }
}

/// Bins grouped into levels.
#[derive(Debug, Clone, PartialEq)]
pub struct Division {
    /// Last bin of each level, ascending; the last one is the last bin.
    pub lasts: Vec<usize>,
    /// Its cost.
    pub cost: f64,
}

/// Returns the factors of a trace in at most `most` bins of even width, without empty ones. Time without load counts to
/// the lowest.
pub fn histogram(trace: &Trace, most: usize) -> Vec<LoadBin> {
    let most = most.max(1);
    let largest = trace.largest_factor();
    let mut bins = vec![LoadBin { factor: 0.0, seconds: 0.0, nominal: 0.0 }; most];
    for (begin, end, factor) in trace.parts() {
        let at = (factor / largest * most as f64).ceil() as usize;
        let bin = &mut bins[at.clamp(1, most) - 1];
        bin.factor = bin.factor.max(factor);
        bin.seconds += end - begin;
        bin.nominal += factor * (end - begin);
    }
    bins.retain(|bin| bin.seconds > 0.0);
    if bins.len() > 1 && bins[0].factor == 0.0 {
        let idle = bins.remove(0);
        bins[0].seconds += idle.seconds;
    }
    bins
}

/// Merges bins to at most `most`, with the least sum over time of the excess of a bin's largest factor over the load.
pub fn coarsened(bins: &[LoadBin], most: usize) -> Vec<LoadBin> {
    let prices: Vec<Option<Price>> =
        bins.iter().map(|bin| Some(Price { of_time: bin.factor, of_load: 0.0 })).collect();
    let Some(best) = divisions(bins, &prices, most).pop() else { return bins.to_vec() };
    let mut first = 0;
    let levels = best.lasts.into_iter().map(|last| {
        let of = &bins[first..=last];
        first = last + 1;
        LoadBin {
            factor: bins[last].factor,
            seconds: of.iter().map(|bin| bin.seconds).sum(),
            nominal: of.iter().map(|bin| bin.nominal).sum(),
        }
    });
    levels.collect()
}

/// Returns the cheapest division into one level, into at most two, and so on up to `most`. The plan of a level is that
/// of its last bin; a bin without a price has none. Empty where the last bin has no price.
pub fn divisions(bins: &[LoadBin], prices: &[Option<Price>], most: usize) -> Vec<Division> {
    let count = bins.len();
    let mut seconds = vec![0.0];
    let mut nominal = vec![0.0];
    for (index, bin) in bins.iter().enumerate() {
        seconds.push(seconds[index] + bin.seconds);
        nominal.push(nominal[index] + bin.nominal);
    }
    let cost = |first: usize, last: usize| match prices[last] {
        Some(price) => price.of(seconds[last + 1] - seconds[first], nominal[last + 1] - nominal[first]),
        None => f64::INFINITY,
    };
    // Cheapest cost of the first bins up to `last`, and the first bin of the last level.
    let mut layers: Vec<Vec<(f64, usize)>> = vec![(0..count).map(|last| (cost(0, last), 0)).collect()];
    for level in 1..most.min(count) {
        let before = &layers[level - 1];
        let layer = (0..count).map(|last| {
            // The fewest levels at equal cost.
            (1..=last).fold(before[last], |best, first| {
                let sum = before[first - 1].0 + cost(first, last);
                if sum < best.0 { (sum, first) } else { best }
            })
        });
        let layer = layer.collect();
        layers.push(layer);
    }
    let found = (0..layers.len()).filter_map(|layer| {
        let cost = layers[layer].last()?.0;
        cost.is_finite().then(|| Division { lasts: lasts(&layers[..=layer]), cost })
    });
    found.collect()
}

/// Levels with the schedule that follows a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels {
    /// Last bin of each level, ascending: its plan is the level's.
    pub lasts: Vec<usize>,
    /// The level in service over time.
    pub schedule: Schedule,
    /// Cost over the trace.
    pub cost: f64,
}

/// More levels must be cheaper by this share.
const WORTH: f64 = 1e-3;

/// Returns the division into up to `most` levels whose schedule costs least; at about equal cost, the one with the
/// fewest levels. A division ignores dwell times, so more levels are not always cheaper. `missed` is the cost of load
/// above a level. None where the last bin has no price.
pub fn cheapest_levels(
    trace: &Trace,
    bins: &[LoadBin],
    prices: &[Option<Price>],
    most: usize,
    switching: Switching,
    missed: f64,
) -> Option<Levels> {
    let mut best: Option<Levels> = None;
    for division in divisions(bins, prices, most) {
        let tops: Vec<f64> = division.lasts.iter().map(|last| bins[*last].factor).collect();
        let schedule = Schedule::new(trace, &tops, switching);
        let each = division.lasts.iter().zip(&schedule.levels).map(|(last, level)| {
            prices[*last].unwrap_or_default().of(level.seconds, level.served) + missed * level.over
        });
        let cost = each.sum();
        if best.as_ref().is_none_or(|best| cost < best.cost * (1.0 - WORTH)) {
            best = Some(Levels { lasts: division.lasts, schedule, cost });
        }
    }
    best
}

/// Follows the layers back from the last bin.
fn lasts(layers: &[Vec<(f64, usize)>]) -> Vec<usize> {
    let mut all = Vec::new();
    let mut last = layers[0].len() - 1;
    let mut layer = layers.len() - 1;
    loop {
        // At equal cost, use the division with one level less.
        while layer > 0 && layers[layer][last].0 == layers[layer - 1][last].0 {
            layer -= 1;
        }
        all.push(last);
        match layers[layer][last].1 {
            0 => break,
            first => last = first - 1,
        }
        layer = layer.saturating_sub(1);
    }
    all.reverse();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(factors: &[f64]) -> Trace {
        let parts = factors.iter().enumerate().map(|(index, factor)| (10.0 * index as f64, *factor));
        Trace::new(parts.collect()).unwrap()
    }

    #[test]
    fn a_histogram_holds_all_the_time_and_all_the_load() {
        let trace = trace(&[0.0, 1.0, 0.98, 4.0, 0.0]);
        let bins = histogram(&trace, 4);
        assert_eq!(bins.len(), 2, "{bins:?}");
        assert_eq!((bins[0].factor, bins[0].seconds, bins[1].factor), (1.0, 40.0, 4.0));
        assert!((bins.iter().map(|bin| bin.nominal).sum::<f64>() - 59.8).abs() < 1e-9);
        let fine = histogram(&trace, 1000);
        assert_eq!((fine[0].factor, fine[0].seconds), (0.98, 30.0), "idle time is served by the lowest plan");
    }

    #[test]
    fn levels_are_those_of_least_cost() {
        let bins = histogram(&trace(&[1.0, 1.0, 1.0, 1.1, 3.0, 3.1, 10.0]), 1000);
        let coarse = coarsened(&bins, 3);
        assert_eq!(coarse.iter().map(|bin| bin.factor).collect::<Vec<_>>(), [1.1, 3.1, 10.0]);
        assert_eq!(coarse[0].seconds, 40.0);
        assert_eq!(coarsened(&bins, 99), bins);
    }

    /// Every division, one after the other.
    fn by_trying_all(bins: &[LoadBin], prices: &[Option<Price>], most: usize) -> f64 {
        let count = bins.len();
        let mut least = f64::INFINITY;
        for chosen in 0..1u32 << (count - 1) {
            let lasts: Vec<usize> =
                (0..count).filter(|at| at + 1 == count || chosen >> at & 1 == 1).collect();
            if lasts.len() > most {
                continue;
            }
            let mut first = 0;
            let mut sum = 0.0;
            for last in lasts {
                for bin in &bins[first..=last] {
                    sum += prices[last].map_or(f64::INFINITY, |price| price.of(bin.seconds, bin.nominal));
                }
                first = last + 1;
            }
            least = least.min(sum);
        }
        least
    }

    #[test]
    fn no_other_division_is_cheaper() {
        for seed in 0..200u32 {
            let number = |at: u32| f64::from((seed * 7919 + at * 104_729) % 101) / 10.0;
            let mut factor = 0.0;
            let bins: Vec<LoadBin> = (0..8)
                .map(|at| {
                    factor += 0.1 + number(at);
                    let seconds = 1.0 + number(at + 20);
                    LoadBin { factor, seconds, nominal: seconds * factor * 0.9 }
                })
                .collect();
            // Steps, as machines are bought whole; some loads without a plan.
            let prices: Vec<Option<Price>> = (0..8u32)
                .map(|at| {
                    let of_time = (bins[at as usize].factor / 5.0).ceil() + number(at + 40);
                    (at == 7 || number(at + 60) > 2.0).then_some(Price { of_time, of_load: number(at + 80) })
                })
                .collect();
            for most in 1..=8 {
                let found = divisions(&bins, &prices, most);
                let best = found.last().unwrap();
                let expected = by_trying_all(&bins, &prices, most);
                assert!((best.cost - expected).abs() < 1e-9 * expected, "{seed}, {most}: {best:?}");
                assert!(best.lasts.len() <= most && best.lasts.last() == Some(&7));
                assert!(best.lasts.windows(2).all(|two| two[0] < two[1]));
                assert!(best.lasts.iter().all(|last| prices[*last].is_some()));
            }
        }
        let bins = histogram(&trace(&[1.0, 2.0]), 10);
        assert_eq!(divisions(&bins, &[Some(Price::default()), None], 2), [], "no plan for the peak");
    }

    #[test]
    fn levels_that_a_dwell_time_makes_useless_are_left_out() {
        let trace = trace(&[1.0, 5.0, 1.0, 1.0, 1.0, 1.0]);
        let bins = histogram(&trace, 100);
        let prices = [1.0, 5.0].map(|of_time| Some(Price { of_time, of_load: 0.1 }));
        let with = |dwell| {
            let switching = Switching { dwell, reaction: 0.0 };
            cheapest_levels(&trace, &bins, &prices, 4, switching, 0.0).unwrap()
        };
        let quick = with(5.0);
        assert_eq!((quick.lasts, quick.schedule.switches), (vec![0, 1], 2));
        assert!((quick.cost - (45.0 + 15.0 * 5.0 + 10.0)).abs() < 1e-9, "{}", quick.cost);
        let slow = with(300.0);
        assert_eq!((slow.lasts, slow.schedule.switches), (vec![1], 0));
        assert!((slow.cost - (60.0 * 5.0 + 10.0)).abs() < 1e-9);
        let switching = Switching { dwell: 0.0, reaction: 0.0 };
        assert_eq!(cheapest_levels(&trace, &bins, &[prices[0], None], 4, switching, 0.0), None);
    }

    #[test]
    fn a_level_that_saves_nothing_is_none() {
        let bins = histogram(&trace(&[1.0, 2.0, 3.0]), 100);
        let same = Some(Price { of_time: 1.0, of_load: 0.5 });
        let found = divisions(&bins, &[same, same, same], 3);
        assert!(found.iter().all(|division| division.lasts == [2]), "{found:?}");
    }
}
