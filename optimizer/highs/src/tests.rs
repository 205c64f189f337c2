//! Tests with the library from `make setup`.
use super::*;
use proptest::prelude::*;

fn library() -> Highs {
    let fetched = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tidemill/lib/libhighs.so.1.15.1");
    let path = std::env::var("TIDEMILL_HIGHS").unwrap_or_else(|_| fetched.to_owned());
    Highs::open(path.as_ref()).expect("`make setup` fetches HiGHS")
}

fn solve(program: &Program, settings: &Settings<'_>) -> Solved {
    library().solve(program, settings).expect("it takes the program")
}

/// Least cost of covering `need` by whole numbers of items.
fn covering(items: &[(f64, f64, u32)], need: f64, integer: bool) -> Program {
    let mut program = Program::default();
    let columns: Vec<Column> =
        items.iter().map(|(cost, _, most)| program.column(*cost, 0.0, f64::from(*most), integer)).collect();
    program.row(need, f64::INFINITY, columns.iter().zip(items).map(|(column, item)| (*column, item.1)));
    program
}

#[test]
fn a_file_that_is_no_library_is_refused_with_its_name() {
    let missing =
        Highs::open("/no/such/libhighs.so".as_ref()).expect_err("there is no such file").to_string();
    assert!(missing.starts_with("cannot load `/no/such/libhighs.so`"), "{missing}");
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert!(matches!(Highs::open(other.as_ref()), Err(HighsError::Load { .. })));
}

#[test]
fn one_handle_a_file() {
    let (first, second) = (library(), library());
    assert_eq!(first, second);
    assert!(first.version().starts_with(char::is_numeric), "{}", first.version());
}

#[test]
fn what_cannot_be_is_infeasible_and_what_has_no_end_is_unknown() {
    let items = [(1.0, 1.0, 3)];
    let solved = solve(&covering(&items, 4.0, true), &Settings::default());
    assert_eq!((solved.status, solved.values), (Status::Infeasible, None));
    let mut endless = Program::default();
    endless.column(-1.0, 0.0, f64::INFINITY, false);
    let solved = solve(&endless, &Settings::default());
    assert_eq!(solved.status, Status::Unknown);
}

#[test]
fn numbers_that_are_none_are_refused() {
    let mut program = Program::default();
    let column = program.column(1.0, 0.0, 1.0, true);
    program.row(0.0, 1.0, [(column, f64::NAN)]);
    assert!(library().solve(&program, &Settings::default()).is_err());
}

#[test]
fn a_limit_of_nodes_ends_a_search_with_a_bound() {
    // Equal sums of many similar numbers: hard for a search tree.
    let mut program = Program::default();
    let columns: Vec<Column> =
        (0..40).map(|n| program.column(f64::from(1000 + n * 37 % 101), 0.0, 1.0, true)).collect();
    for row in 0..4 {
        let weight = |n: usize| f64::from(u32::try_from((n * (31 + row * 17)) % 97).unwrap_or(0)) + 50.0;
        let terms: Vec<(Column, f64)> = columns.iter().map(|n| (*n, weight(*n))).collect();
        program.row(1501.0, 1502.0, terms);
    }
    let settings = Settings { nodes: Some(1), ..Settings::default() };
    let solved = solve(&program, &settings);
    assert_eq!(solved.status, Status::NodeLimit);
    assert!(solved.bound.is_some_and(|bound| bound > 1000.0), "{solved:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Agrees with all combinations; the relaxation is a bound; neither a start nor a second solve changes the answer.
    #[test]
    fn the_best_of_all_combinations(
        items in prop::collection::vec((0.1f64..10.0, 0.5f64..5.0, 0u32..4), 1..5),
        need in 0.5f64..30.0,
    ) {
        let mut best: Option<f64> = None;
        let total: u32 = items.iter().map(|(_, _, most)| most + 1).product();
        for mut code in 0..total {
            let (mut cost, mut gain) = (0.0, 0.0);
            for (price, size, most) in &items {
                let count = f64::from(code % (most + 1));
                code /= most + 1;
                (cost, gain) = (cost + price * count, gain + size * count);
            }
            if gain >= need - 1e-9 && best.is_none_or(|best| cost < best) {
                best = Some(cost);
            }
        }
        let program = covering(&items, need, true);
        let solved = solve(&program, &Settings::default());
        match best {
            None => prop_assert_eq!(solved.status, Status::Infeasible),
            Some(best) => {
                prop_assert_eq!(solved.status, Status::Optimal);
                prop_assert!((solved.objective - best).abs() <= 1e-6 * best.max(1.0), "{} {best}", solved.objective);
                prop_assert!(solved.bound.is_some_and(|bound| bound <= best + 1e-6 * best.max(1.0)));
                let values = solved.values.clone().unwrap_or_default();
                let settings = Settings { start: Some(&values), ..Settings::default() };
                let again = solve(&program, &settings);
                prop_assert!((again.objective - best).abs() <= 1e-6 * best.max(1.0));
                prop_assert_eq!(&solve(&program, &Settings::default()), &solved);
                let relaxed = solve(&covering(&items, need, false), &Settings::default());
                prop_assert!(relaxed.objective <= best + 1e-6 * best.max(1.0));
                prop_assert_eq!(relaxed.bound, Some(relaxed.objective));
            }
        }
    }
}
