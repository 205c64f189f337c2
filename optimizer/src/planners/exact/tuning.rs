//! All constants of the search, each with the series of problems that determined it: `docs/benchmarks/README.md` has
//! the series. A constant without a series of its own has that of its section. Several were determined with `microlp`
//! and kept for HiGHS.

// Numerics: tolerances of solvers and of sums. They follow from double precision, not from a series.

/// Values this close to a whole number are whole.
pub(super) const WHOLE: f64 = 1e-6;

/// Relative tolerance within which costs are equal.
pub(super) const EQUAL_COST: f64 = 1e-9;

/// Relative tolerance of costs of programs, which are rounded more.
pub(super) const EQUAL_PROGRAM_COST: f64 = 1e-6;

/// Largest distance of an integer from a whole number: shares of unchosen variants then stay below the tolerance of a
/// worker's cap.
pub(super) const INTEGER_TOLERANCE: f64 = 1e-8;

/// Part of a row's right side below which a coefficient is dropped: tiny ones cause numerical failures.
pub(super) const NEGLIGIBLE_COEFFICIENT: f64 = 1e-7;

/// Differences of activities below this, relative to the largest term, are rounding.
pub(super) const ACTIVITY_ROUNDING: f64 = 1e-12;

/// Least violation of an impossible row, relative to the largest term.
pub(super) const ROW_VIOLATION: f64 = 1e-7;

/// Most workers that an operator may need in one column, as a multiple of those available: a slower one could take less
/// than a thousandth of the records. Effective service times grow exponentially, and a solver's rounding of a share
/// times such a number is more than workers can do.
pub(super) const MOST_LOAD: f64 = 1_000.0;

/// Factors for all loads, one after the other, where a point's plan does not fit.
pub(super) const STRICTER: [f64; 3] = [1.0 + 1e-5, 1.0 + 1e-3, 1.02];

// Without latency limits. Series: the published case, 6 operators and 30 workers (also with one operator per worker), 12 and
// 50 operators.

/// Most columns for whole routes. Where streams are split and joined too often for that, flows per link are planned,
/// which bounds the cost from below, and made into routes afterwards (50 operators).
pub(super) const MOST_ROUTE_COLUMNS: f64 = 6_000.0;

/// Most joint variants to list.
pub(super) const MOST_LISTED: u64 = 100_000;

/// Most joint variants to compare pairwise.
pub(super) const MOST_COMPARED: usize = 3_000;

/// Most joint variants as rows of one program (6 operators).
pub(super) const MOST_ROWS_OF_VARIANTS: usize = 20_000;

/// Most joint variants that get a program each (published case).
pub(super) const FEW: usize = 20;

/// Most joint variants that get a program each, with one operator per worker (6 operators).
pub(super) const FEW_EXCLUSIVE: usize = 1_000;
/// Most joint variants that get a program each, with memory in the program (6 operators).
pub(super) const FEW_MEMORY: usize = 100;

/// Nodes of `microlp` before HiGHS is used (6 operators under latency limits, 50 operators).
pub(super) const FEW_NODES: u64 = 150;

/// Divisor of the nodes for an incumbent (6 operators).
pub(super) const PART_FOR_INCUMBENT: u64 = 100;

/// Nodes before variants are probed (50 operators).
pub(super) const NODES_BEFORE_PROBING: u64 = 150;
/// Most variants to probe (50 operators).
pub(super) const MOST_PROBED: usize = 300;
/// Longest probe of a variant in seconds; usually some milliseconds (50 operators).
pub(super) const LONGEST_PROBE: f64 = 1.0;

/// Part of the gap by which a plan must be cheaper for probing to keep its variants (50 operators).
pub(super) const PART_OF_GAP_PROBED: f64 = 0.7;

/// Least number of operators for choosing whole workers before variants (50 operators).
pub(super) const MANY_OPERATORS: usize = 20;

/// Nodes of the programs with whole workers and mixed variants (50 operators).
pub(super) const NODES_MIXED: u64 = 300;

/// Operators freed at a time (50 operators).
pub(super) const FREED: usize = 6;
/// Nodes of a program with freed operators (50 operators).
pub(super) const NODES_FREED: u64 = 40;
/// Passes over all operators (50 operators).
pub(super) const PASSES_FREED: usize = 3;

/// Part of an incumbent's gap that may remain for its workers, once its variants are given (50 operators).
pub(super) const PART_FOR_VARIANTS: f64 = 0.2;

/// Part of the allowed cost above its relaxation that a plan's program may leave open, where models did not fit (8
/// times the memory).
pub(super) const PART_OF_ENOUGH: f64 = 0.99;

/// Most operators times workers for beam searches: beyond, a single step of a beam takes longer than the whole search
/// may (12 operators).
pub(super) const BEAM_SIZE: u64 = 1_000;

/// Most operators times workers for wide beams (6 operators).
pub(super) const WIDE_BEAM_SIZE: u64 = 300;

// More accurate plans at the same cost. Series: small problems with more accurate copies of their variants.

/// Least gain in percentage points that is worth busier workers.
pub(super) const WORTHWHILE_ACCURACY: f64 = 0.5;

/// Most joint variants to list for it.
pub(super) const MOST_ACCURATE_LISTED: u64 = 20_000;
/// Most joint variants to try.
pub(super) const MOST_ACCURATE_TRIED: usize = 32;

/// Share of the remaining time for more accurate plans.
pub(super) const PART_FOR_ACCURACY: f64 = 0.1;

// Relaxation over whole routes. Series: 6 operators and 30 workers under latency limits of 1.5 and 3 times the fastest path.

/// Limits of a search for routes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Labels to follow per operator; more are cut off, the most expensive first, and then nothing is proven.
    pub(super) labels: usize,
    /// Routes to return.
    pub(super) taken: usize,
}

/// Most rounds of pricing.
pub(super) const PRICING_ROUNDS: usize = 300;

/// Most rounds of pricing where only a comparison of the relaxation's cost is needed.
pub(super) const PROBING_ROUNDS: usize = 16;

/// Initial routes of a relaxation.
pub(super) const FIRST_ROUTES: usize = 150;

/// Limits of pricing.
pub(super) const PRICING: Look = Look { labels: 4_000, taken: 4 };

/// Limits of screening by prices, as there are many joint variants.
pub(super) const SCREENING: Look = Look { labels: 1_000, taken: 1 };

/// Penalty for unserved keys, in $/h: more than any plan.
pub(super) const UNSERVED: f64 = 1e6;

/// Penalty as a multiple of the price of all workers and streams, where that is more.
pub(super) const UNSERVED_OF_MOST_EXPENSIVE: f64 = 10.0;

/// Penalty as a multiple of the incumbent's cost: with smaller prices pricing ends sooner.
pub(super) const UNSERVED_OF_INCUMBENT: f64 = 50.0;

/// Nodes of a program over routes.
pub(super) const NODES_OF_ROUTES: u64 = 300;
/// Gap of a program over routes.
pub(super) const GAP_OF_ROUTES: f64 = 0.003;

/// Entries of a table of least costs; with more, the oldest locations are merged.
pub(super) const MOST_TABLE_ENTRIES: usize = 4_096;

/// First price limits of a search for routes, as parts of the asked price above the cheapest route without times.
pub(super) const PARTS_OF_ASKED: [f64; 2] = [0.05, 0.3];
/// First price limit, as a multiple of the price of the cheapest route without times.
pub(super) const FAR_ROUTE: f64 = 4.0;

// Joint variants one by one, under latency limits. Series: as before.

/// Most joint variants to meet while there is no plan, where they are too many to list: a bound of memory, usually not
/// reached in time.
pub(super) const MOST_WIDENED: usize = 20_000;

/// Joint variants that get a plan from their relaxation before any is searched completely.
pub(super) const MOST_PLANNED: usize = 3;

/// A relaxation below this part of the best plan's cost gets a plan at once.
pub(super) const MUCH_CHEAPER: f64 = 0.9;

/// Share of the remaining time for completing one joint variant.
pub(super) const PART_OF_ONE: f64 = 0.7;
/// Seconds below which the remaining time is not divided.
pub(super) const SHORT_SECONDS: f64 = 1.5;

/// Divisor of the nodes under latency limits, where there are many programs.
pub(super) const PROGRAMS_UNDER_LATENCY: u64 = 200;

/// Relaxations before the first integer program.
pub(super) const MOST_RELAXATIONS: usize = 40;
/// Most integer programs of a joint variant.
pub(super) const MOST_PROGRAMS: usize = 40;

/// Integer programs in the first, quick search of a joint variant.
pub(super) const QUICK_PROGRAMS: usize = 2;

/// Slow relaxations before an integer program.
pub(super) const SLOW_RELAXATIONS: usize = 2;
/// A relaxation is slow if it raises the bound by less than this part.
pub(super) const PROGRESS: f64 = 1e-4;

/// Part of the gap that one integer program may leave.
pub(super) const PART_OF_GAP: f64 = 0.5;

/// Gap of an integer program as a part of the difference between the bound and the cheapest plan: points that are not
/// plans need not be the cheapest ones.
pub(super) const PART_OF_OPEN: f64 = 0.2;

/// Factor of that part after a program without progress.
pub(super) const CLOSER: f64 = 0.25;

/// Nodes of one integer program, as a multiple of those of other programs under latency limits, because it decides.
pub(super) const MORE_NODES: u64 = 20;

/// Least relative difference between the relaxation over routes and a program's point for its prices to become a row.
pub(super) const VIOLATED: f64 = 1e-5;

/// Relaxations with given whole numbers that refine the points of time after an integer program.
pub(super) const RELAXATIONS_WITH_NUMBERS: usize = 30;

/// Passes over all workers by probing.
pub(super) const PROBING_PASSES: usize = 2;
/// Share of the time for probing.
pub(super) const PART_FOR_PROBING: f64 = 0.25;

/// Initial points of time of each node and location.
pub(super) const FIRST_POINTS: usize = 3;

/// Durations are rounded down to this fraction of the longest limit, which merges nearly equal ones.
pub(super) const QUANTA: f64 = 512.0;

/// Times closer than this, as a part of the longest limit, are equal.
pub(super) const SAME_TIME: f64 = 1e-9;

/// Shares of the keys below this are rounding errors.
pub(super) const NEGLIGIBLE_SHARE: f64 = 1e-6;

// Waits, where a bound holds for all of them. Series: small problems under latency limits without waits to choose from.

/// A wait in seconds that covers all longer ones, of workers without a limit.
pub(super) const LONGEST_WAIT: f64 = 1e5;

/// Splits of intervals of waits for given variants, before others get their turn.
pub(super) const SPLITS_AT_ONCE: usize = 3;
/// Most splits for given variants.
pub(super) const MOST_SPLITS: usize = 24;

/// Most splits for all variants of a search together.
pub(super) const SPLITS_OF_A_SEARCH: usize = 40;

/// Nodes of an integer program after the last split.
pub(super) const NODES_OF_INTERVALS: u64 = 1_000;

/// Splits without a change of bound or plan by more than `PROGRESS`, after which no more are made.
pub(super) const STALLED_SPLITS: usize = 3;

/// Most intervals of a kind of worker for halving all, where no point selects one.
pub(super) const MOST_HALVED: usize = 16;

/// Steps above and below the waits of a relaxation, with which plans are made.
pub(super) const STEPS_OF_WAITS: i32 = 4;
/// Size of a step, as a part of the wait.
pub(super) const NEAR_WAITS: f64 = 0.15;
/// Factor of the step after each split.
pub(super) const NEARER_WAITS: f64 = 0.6;

/// Waits closer than this, as a part of the longest limit, are equal.
pub(super) const SAME_WAIT: f64 = 1e-8;

/// Bisection steps for the share of the waits that fits into the time of a path.
pub(super) const SPLIT_HALVINGS: usize = 30;

// Plans that survive losses. No series yet: sizes at which a program of `microlp` still takes seconds.

/// Most whole routes to list.
pub(super) const MOST_TUPLES: usize = 4_000;

/// Most columns of the program over all losses.
pub(super) const MOST_LOSS_COLUMNS: usize = 60_000;

/// Most workers of a class with limited memory that are groups of their own.
pub(super) const MOST_SINGLE_WORKERS: u32 = 6;

/// Most sets of lost workers that a plan has fallbacks for.
pub(super) const MOST_LOSS_SETS: usize = 2_000;
