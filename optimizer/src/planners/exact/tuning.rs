//! All constants of the search, each with the series of problems that chose it: `docs/benchmarks/README.md` has the series. A
//! constant without a series of its own has that of its part. Several of them were chosen by `microlp` and kept with HiGHS.

// Numbers: tolerances of solvers and of sums. They follow from double precision and were chosen by no series.

/// Values this close to a whole number are whole.
pub(super) const WHOLE: f64 = 1e-6;

/// Relative tolerance within which costs are equal.
pub(super) const EQUAL_COST: f64 = 1e-9;

/// The same for costs of programs, which are rounded more.
pub(super) const EQUAL_PROGRAM_COST: f64 = 1e-6;

/// By how much an integer may miss a whole number: shares of variants that are not chosen stay below what a worker's cap
/// notices.
pub(super) const INTEGER_TOLERANCE: f64 = 1e-8;

/// Part of a row's right side below which a coefficient is left out: tiny ones cause numerical failures.
pub(super) const NEGLIGIBLE_COEFFICIENT: f64 = 1e-7;

/// Differences of activities below this, relative to the largest term, are rounding.
pub(super) const ACTIVITY_ROUNDING: f64 = 1e-12;

/// By so much, relative to the largest term, a row must be violated to be impossible.
pub(super) const ROW_VIOLATION: f64 = 1e-7;

/// Most workers that the whole of an operator may need in one column, as a multiple of those there are: what is slower
/// could take less than a thousandth of the records. Effective service times grow exponentially, and a solver's
/// rounding of a share times such a number is more than workers can do.
pub(super) const MOST_LOAD: f64 = 1_000.0;

/// By how much all loads are raised, one after the other, where a point's plan does not fit.
pub(super) const STRICTER: [f64; 3] = [1.0 + 1e-5, 1.0 + 1e-3, 1.02];

// Without latency limits. Series: the published case, 6 operators and 30 workers (also with one operator per worker), 12 and
// 50 operators.

/// Most columns for whole routes. Where streams are split and joined so often that there were more, flows per link are
/// planned, which bounds the cost from below, and made into routes afterwards (50 operators).
pub(super) const MOST_ROUTE_COLUMNS: f64 = 6_000.0;

/// Most joint variants that are listed one by one.
pub(super) const MOST_LISTED: u64 = 100_000;

/// Most joint variants that are compared each with each.
pub(super) const MOST_COMPARED: usize = 3_000;

/// Most joint variants that become rows of one program (6 operators).
pub(super) const MOST_ROWS_OF_VARIANTS: usize = 20_000;

/// Joint variants up to which each has a program of its own (published case).
pub(super) const FEW: usize = 20;

/// The same with one operator per worker, and with memory in the program (6 operators).
pub(super) const FEW_EXCLUSIVE: usize = 1_000;
/// See above.
pub(super) const FEW_MEMORY: usize = 100;

/// Nodes of `microlp` after which HiGHS is asked (6 operators under latency limits, 50 operators).
pub(super) const FEW_NODES: u64 = 150;

/// Nodes for an incumbent, as a part of all: one of so many (6 operators).
pub(super) const PART_FOR_INCUMBENT: u64 = 100;

/// Nodes after which variants are probed, most variants that are, and the longest seconds for one of them, usually some
/// milliseconds (50 operators).
pub(super) const NODES_BEFORE_PROBING: u64 = 150;
/// See above.
pub(super) const MOST_PROBED: usize = 300;
/// See above.
pub(super) const LONGEST_PROBE: f64 = 1.0;

/// Part of the gap by which a plan must be cheaper for which no variant is left out (50 operators).
pub(super) const PART_OF_GAP_PROBED: f64 = 0.7;

/// Operators from which on whole workers are chosen before variants (50 operators).
pub(super) const MANY_OPERATORS: usize = 20;

/// Nodes of the programs for that (50 operators).
pub(super) const NODES_MIXED: u64 = 300;

/// Operators that are freed at a time, nodes for it, and passes over all operators (50 operators).
pub(super) const FREED: usize = 6;
/// See above.
pub(super) const NODES_FREED: u64 = 40;
/// See above.
pub(super) const PASSES_FREED: usize = 3;

/// Part of an incumbent's gap that its workers may leave, once its variants are given (50 operators).
pub(super) const PART_FOR_VARIANTS: f64 = 0.2;

/// Part of what a plan may cost above its relaxation that its program may leave open, where models did not fit (8 times the
/// memory).
pub(super) const PART_OF_ENOUGH: f64 = 0.99;

/// Operators times workers up to which beams are searched: beyond, a single step of a beam takes longer than the whole
/// search may (12 operators).
pub(super) const BEAM_SIZE: u64 = 1_000;

/// The same for wide beams (6 operators).
pub(super) const WIDE_BEAM_SIZE: u64 = 300;

// More accurate plans at the same cost. Series: small problems with more accurate copies of their variants.

/// By how many percentage points a plan must be more accurate to be worth busier workers.
pub(super) const WORTHWHILE_ACCURACY: f64 = 0.5;

/// Most joint variants that are listed for it, and that are tried.
pub(super) const MOST_ACCURATE_LISTED: u64 = 20_000;
/// See above.
pub(super) const MOST_ACCURATE_TRIED: usize = 32;

/// Part of the time that is left for all of this.
pub(super) const PART_FOR_ACCURACY: f64 = 0.1;

// Relaxation over whole routes. Series: 6 operators and 30 workers under latency limits of 1.5 and 3 times the fastest path.

/// How much is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Labels of one operator that are followed; more are cut off, the dearest first, and then nothing is proven.
    pub(super) labels: usize,
    /// Routes that are wanted.
    pub(super) taken: usize,
}

/// Most rounds of pricing.
pub(super) const PRICING_ROUNDS: usize = 300;

/// The same where it is only asked whether the relaxation costs so much.
pub(super) const PROBING_ROUNDS: usize = 16;

/// Routes with which a relaxation begins.
pub(super) const FIRST_ROUTES: usize = 150;

/// How far a pricing looks.
pub(super) const PRICING: Look = Look { labels: 4_000, taken: 4 };

/// The same where joint variants are left out by prices: there are many.
pub(super) const SCREENING: Look = Look { labels: 1_000, taken: 1 };

/// Penalty for keys that are not served, in $/h: more than any plan.
pub(super) const UNSERVED: f64 = 1e6;

/// The same as a multiple of what all workers and streams cost, where that is more.
pub(super) const UNSERVED_OF_MOST_EXPENSIVE: f64 = 10.0;

/// The same as a multiple of the incumbent's cost: with smaller prices pricing ends sooner.
pub(super) const UNSERVED_OF_INCUMBENT: f64 = 50.0;

/// Nodes of a program over routes, and the gap that it may leave.
pub(super) const NODES_OF_ROUTES: u64 = 300;
/// See above.
pub(super) const GAP_OF_ROUTES: f64 = 0.003;

/// Entries of a table of least costs; with more, the oldest locations are not told apart.
pub(super) const MOST_TABLE_ENTRIES: usize = 4_096;

/// Routes that pay little more than the cheapest without times are looked for first: so much more, as parts of what is
/// asked for, or as a multiple of what that one pays.
pub(super) const PARTS_OF_ASKED: [f64; 2] = [0.05, 0.3];
/// See above.
pub(super) const FAR_ROUTE: f64 = 4.0;

// Joint variants one by one, under latency limits. Series: as before.

/// Joint variants that are met at most while there is no plan, where they are too many to list: a bound of memory, which the
/// clock usually forestalls.
pub(super) const MOST_WIDENED: usize = 20_000;

/// Joint variants for which a plan is made from their relaxation, before any is searched through.
pub(super) const MOST_PLANNED: usize = 3;

/// A relaxation that costs less than this part of the best plan asks for a plan at once.
pub(super) const MUCH_CHEAPER: f64 = 0.9;

/// Part of the time that is left for searching one through; less than so many seconds are not divided.
pub(super) const PART_OF_ONE: f64 = 0.7;
/// See above.
pub(super) const SHORT_SECONDS: f64 = 1.5;

/// Under latency limits there are many programs: each gets one of so many parts of the nodes.
pub(super) const PROGRAMS_UNDER_LATENCY: u64 = 200;

/// Relaxations before the first integer program, and integer programs.
pub(super) const MOST_RELAXATIONS: usize = 40;
/// See above.
pub(super) const MOST_PROGRAMS: usize = 40;

/// Integer programs in the first, quick search of a joint variant.
pub(super) const QUICK_PROGRAMS: usize = 2;

/// Relaxations after which an integer program is solved, where each raises the bound by less than this part only.
pub(super) const SLOW_RELAXATIONS: usize = 2;
/// See above.
pub(super) const PROGRESS: f64 = 1e-4;

/// Part of the gap that one integer program may leave.
pub(super) const PART_OF_GAP: f64 = 0.5;

/// The same as a part of what is open between the bound and the cheapest plan: points that are not plans need not be the
/// cheapest ones.
pub(super) const PART_OF_OPEN: f64 = 0.2;

/// The next such part, where nothing new came of a program.
pub(super) const CLOSER: f64 = 0.25;

/// Nodes of one integer program, as a multiple of those of other programs under latency limits: it decides.
pub(super) const MORE_NODES: u64 = 20;

/// By how much more than a program's point the relaxation over routes must cost for its prices to become a row.
pub(super) const VIOLATED: f64 = 1e-5;

/// Relaxations with given whole numbers by which the points of time are refined after an integer program.
pub(super) const RELAXATIONS_WITH_NUMBERS: usize = 30;

/// Passes over all workers by probing, and the part of the time for it.
pub(super) const PROBING_PASSES: usize = 2;
/// See above.
pub(super) const PART_FOR_PROBING: f64 = 0.25;

/// Points of time of each node and location to begin with.
pub(super) const FIRST_POINTS: usize = 3;

/// Parts of the longest limit to which durations are rounded down, so that nearly equal ones are one.
pub(super) const QUANTA: f64 = 512.0;

/// Times closer than this, as a part of the longest limit, are the same.
pub(super) const SAME_TIME: f64 = 1e-9;

/// A share of the keys that is rounding.
pub(super) const NEGLIGIBLE_SHARE: f64 = 1e-6;

// Waits, where a bound holds for all of them. Series: small problems under latency limits without waits to choose from.

/// A wait in seconds that stands for all longer ones, of workers that no limit looks at.
pub(super) const LONGEST_WAIT: f64 = 1e5;

/// How often intervals of waits are cut, for given variants: before others have their turn, and at most.
pub(super) const SPLITS_AT_ONCE: usize = 3;
/// See above.
pub(super) const MOST_SPLITS: usize = 24;

/// The same for all variants of a search together.
pub(super) const SPLITS_OF_A_SEARCH: usize = 40;

/// Nodes of an integer program once intervals were cut as often as they are.
pub(super) const NODES_OF_INTERVALS: u64 = 1_000;

/// Cuts after which neither the bound nor the plan moved by more than `PROGRESS`, and no more are made.
pub(super) const STALLED_SPLITS: usize = 3;

/// Intervals of a kind of worker up to which all are halved, where no point says which.
pub(super) const MOST_HALVED: usize = 16;

/// Plans are made with waits that are longer or shorter than those that a relaxation needs by so many steps of so large a part
/// of them; each step is so much smaller after each cut.
pub(super) const STEPS_OF_WAITS: i32 = 4;
/// See above.
pub(super) const NEAR_WAITS: f64 = 0.15;
/// See above.
pub(super) const NEARER_WAITS: f64 = 0.6;

/// Waits closer than this, as a part of the longest limit, are one.
pub(super) const SAME_WAIT: f64 = 1e-8;

/// Halvings of the part of the waits that a path has time for.
pub(super) const SPLIT_HALVINGS: usize = 30;
