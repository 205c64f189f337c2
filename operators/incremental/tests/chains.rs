//! For any order and any number of corrections the chains are those of the remaining items.
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_incremental::chains::{Area, Item, Membership, Place, Rules, Transition, batch, view};
use tidemill_incremental::view::Change;
use tidemill_random::Random;

/// A grid that includes the edges of areas: many places are exactly on one.
fn spot(random: &mut Random) -> Option<Place> {
    random.chance(0.9).then(|| (10 * random.below(8) as i64, 10 * random.below(8) as i64))
}

fn area(random: &mut Random) -> Option<Area> {
    random.chance(0.6).then(|| {
        let (left, top) = (10 * random.below(5) as i64 - 10, 10 * random.below(5) as i64 - 10);
        let mut side = || 10 * (3 + random.below(5) as i64);
        Area { left, top, right: left + side(), bottom: top + side() }
    })
}

/// Items that pass places one after another with varying appearance.
fn items(random: &mut Random, count: usize, places: usize) -> Vec<Item> {
    let mut all = Vec::new();
    while all.len() < count {
        let looks = random.uniform(0.0, 6.3);
        let mut time = random.below(3000) as i64;
        for _ in 0..=random.below(5) {
            let place = random.below(places);
            let end = time + 5 + random.below(30) as i64;
            let angle = looks + random.uniform(-0.2, 0.2);
            let vector = [angle.cos() as f32, angle.sin() as f32];
            let item = Item::new(format!("{:04}", all.len()), format!("p{place}"), time, end, &vector);
            all.push(item.with_places(spot(random), spot(random)));
            time = end + random.below(80) as i64 - 10;
        }
    }
    all.truncate(count);
    all
}

fn rules(random: &mut Random, places: usize) -> Rules {
    let mut transitions = Vec::new();
    if random.chance(0.5) {
        for (from, to) in (0..places).flat_map(|from| (0..places).map(move |to| (from, to))) {
            for _ in 0..random.below(4) {
                let shortest_gap = random.below(30) as i64 - 10;
                let longest_gap = shortest_gap + random.below(60) as i64;
                transitions.push(Transition {
                    from: format!("p{from}").into(),
                    to: format!("p{to}").into(),
                    shortest_gap,
                    longest_gap,
                    leaves: area(random),
                    enters: area(random),
                });
            }
        }
    }
    Rules {
        least_likeness: random.uniform(0.7, 0.99),
        shortest_gap: -5,
        longest_gap: random.below(90) as i64,
        transitions,
    }
}

/// Adds up the changes as a reader does.
fn add(known: &mut BTreeMap<Membership, isize>, changes: Vec<Change<Membership>>) {
    for (row, count) in changes {
        assert_ne!(count, 0);
        *known.entry(row).or_default() += count;
    }
    known.retain(|_, count| *count != 0);
}

fn rows(known: &BTreeMap<Membership, isize>) -> Vec<Membership> {
    assert!(known.values().all(|count| *count == 1), "each item is in one chain");
    known.keys().cloned().collect()
}

/// Items come in random order, some of them late or corrected later, in updates of any size; after each update the
/// chains are those of the present items.
fn check(seed: u64, late: f64) {
    let mut random = Random::of_seed(seed);
    let places = 2 + random.below(4);
    let count = 5 + random.below(60);
    let rules = rules(&mut random, places);
    let mut script: Vec<(i64, Vec<Change<Item>>)> = Vec::new();
    for item in items(&mut random, count, places) {
        let time = item.end;
        if !random.chance(late) {
            script.push((time, vec![(item, 1)]));
            continue;
        }
        let after = |random: &mut Random| time + random.below(4000) as i64;
        match random.below(5) {
            0 => script.push((after(&mut random), vec![(item, 1)])),
            1 => {
                // It is added and removed.
                script.push((time, vec![(item.clone(), 1)]));
                script.push((after(&mut random), vec![(item, -1)]));
            }
            2 => {
                // A correction of its place.
                let other = item.clone().with_places(spot(&mut random), spot(&mut random));
                script.push((time, vec![(item.clone(), 1)]));
                script.push((after(&mut random), vec![(item, -1), (other, 1)]));
            }
            _ => {
                let (group, angle) = (format!("p{}", random.below(places)), random.uniform(0.0, 6.3));
                let shift = random.below(60) as i64 - 30;
                let looks = [angle.cos() as f32, angle.sin() as f32];
                let other =
                    Item::new(item.key.clone(), group, item.start + shift, item.end + shift.max(0), &looks)
                        .with_places(spot(&mut random), spot(&mut random));
                script.push((time, vec![(item.clone(), 1)]));
                script.push((after(&mut random), vec![(item, -1), (other, 1)]));
            }
        }
    }
    script.sort_by_key(|(time, _)| *time);
    let mut view = view(rules.clone()).expect("a thread");
    let mut there: BTreeMap<Item, isize> = BTreeMap::new();
    let mut known = BTreeMap::new();
    let mut updates = script.into_iter().flat_map(|(_, changes)| changes).peekable();
    while updates.peek().is_some() {
        let size = 1 + random.below(8);
        let mut update: Vec<Change<Item>> = updates.by_ref().take(size).collect();
        // A correction is not split: two items with one name are invalid.
        while updates.peek().is_some_and(|(item, count)| {
            *count == 1 && update.last().is_some_and(|(last, n)| *n == -1 && last.key == item.key)
        }) {
            update.extend(updates.next());
        }
        for (item, count) in &update {
            *there.entry(item.clone()).or_default() += count;
        }
        there.retain(|_, count| *count != 0);
        add(&mut known, view.update(update).expect("it goes on"));
        let items: Vec<Item> = there.keys().cloned().collect();
        assert_eq!(rows(&known), batch::chains(&items, &rules), "seed {seed}");
    }
    // A view created from the remaining items has the same content.
    let mut anew = BTreeMap::new();
    let mut second = tidemill_incremental::chains::view(rules).expect("a thread");
    add(&mut anew, second.update(there.clone()).expect("it goes on"));
    assert_eq!(anew, known, "seed {seed}");
    // Removing a whole chain changes no other one.
    if let Some(gone) = known.keys().nth(random.below(known.len())).map(|row| row.chain.clone()) {
        let of_it = |item: &Item| {
            let row = Membership { key: item.key.clone(), chain: gone.clone() };
            known.contains_key(&row)
        };
        let changes: Vec<Change<Item>> = there.into_keys().filter(of_it).map(|item| (item, -1)).collect();
        let told = second.update(changes).expect("it goes on");
        assert!(told.iter().all(|(row, count)| row.chain == gone && *count == -1), "seed {seed}: {told:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 16))]

    #[test]
    fn one_in_a_hundred_late_or_corrected(seed in any::<u64>()) {
        check(seed, 0.01);
    }

    #[test]
    fn one_in_ten_late_or_corrected(seed in any::<u64>()) {
        check(seed, 0.1);
    }

    #[test]
    fn one_in_two_late_or_corrected(seed in any::<u64>()) {
        check(seed, 0.5);
    }
}

#[test]
fn a_late_item_takes_over_a_link() {
    let rules = Rules { least_likeness: 0.5, shortest_gap: 0, longest_gap: 100, transitions: Vec::new() };
    let item = |key: &str, group: &str, start, angle: f32| {
        Item::new(key, group, start, start + 10, &[angle.cos(), angle.sin()])
    };
    let mut view = view(rules).expect("a thread");
    view.update([
        (item("a", "north", 0, 0.4), 1),
        (item("b", "south", 50, 0.0), 1),
        (item("c", "west", 100, 0.0), 1),
    ])
    .expect("it goes on");
    // It is more similar to b than a is: the chain from b on is its own now.
    let changes = view.update([(item("late", "north", 5, 0.1), 1)]).expect("it goes on");
    let told: Vec<(&str, &str, isize)> = changes.iter().map(|(m, n)| (&*m.key, &*m.chain, *n)).collect();
    assert_eq!(
        told,
        [("b", "a", -1), ("b", "late", 1), ("c", "a", -1), ("c", "late", 1), ("late", "late", 1)]
    );
}

/// A transition from north to south.
fn way(gaps: (i64, i64), leaves: Option<Area>, enters: Option<Area>) -> Transition {
    let (from, to) = ("north".into(), "south".into());
    Transition { from, to, shortest_gap: gaps.0, longest_gap: gaps.1, leaves, enters }
}

/// Whether an item last at `last` is linked with one that arrived at `first` 50 later.
fn linked(transitions: &[Transition], last: Option<Place>, first: Option<Place>) -> bool {
    let rules =
        Rules { least_likeness: 0.5, shortest_gap: 0, longest_gap: 100, transitions: transitions.to_vec() };
    // The other ends are far away: they do not count.
    let far = Some((-1000, -1000));
    let before = Item::new("a", "north", 0, 10, &[1.0, 0.0]).with_places(far, last);
    let behind = Item::new("b", "south", 60, 70, &[1.0, 0.0]).with_places(first, far);
    let items = [before, behind];
    let chains = batch::chains(&items, &rules);
    let mut told = BTreeMap::new();
    let mut view = view(rules).expect("a thread");
    add(&mut told, view.update(items.map(|item| (item, 1))).expect("it goes on"));
    assert_eq!(rows(&told), chains);
    *chains[1].chain == *"a"
}

#[test]
fn the_left_and_the_upper_edge_belong_to_an_area() {
    let area = Area { left: 10, top: 20, right: 30, bottom: 40 };
    let (out, into) = ([way((0, 100), Some(area.clone()), None)], [way((0, 100), None, Some(area))]);
    for (place, is_in) in [
        ((10, 20), true),
        ((29, 39), true),
        ((9, 20), false),
        ((10, 19), false),
        ((30, 39), false),
        ((29, 40), false),
    ] {
        assert_eq!(linked(&out, Some(place), None), is_in, "left at {place:?}");
        assert_eq!(linked(&into, None, Some(place)), is_in, "came at {place:?}");
    }
    // An item without known place is in no area; without areas it is linked as before.
    assert!(!linked(&out, None, None) && !linked(&into, None, None));
    assert!(linked(&[way((0, 100), None, None)], None, None));
    assert!(linked(&[], None, None));
}

#[test]
fn any_of_the_ways_between_two_groups_will_do() {
    let half = |left| Some(Area { left, top: 0, right: left + 10, bottom: 10 });
    // The gap is 50: the first of these is too short.
    assert!(linked(&[way((0, 40), None, None), way((40, 60), None, None)], None, None));
    let ways = [way((0, 60), half(0), half(10)), way((40, 60), half(10), half(0))];
    let (left, right) = (Some((5, 5)), Some((15, 5)));
    assert!(linked(&ways, left, right) && linked(&ways, right, left));
    // Both ends must fit one transition.
    assert!(!linked(&ways, left, left) && !linked(&ways, right, right));
}
