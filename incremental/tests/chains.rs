//! Whatever comes in whatever order, and is corrected however often: the chains are those of the items that are left.
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_incremental::chains::{Item, Membership, Rules, Transition, batch, view};
use tidemill_incremental::view::Change;
use tidemill_random::Random;

/// Items that pass places one after another and look more or less as before.
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
            all.push(Item::new(format!("{:04}", all.len()), format!("p{place}"), time, end, &vector));
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
            if random.chance(0.6) {
                let shortest_gap = random.below(30) as i64 - 10;
                let longest_gap = shortest_gap + random.below(60) as i64;
                transitions.push(Transition {
                    from: format!("p{from}").into(),
                    to: format!("p{to}").into(),
                    shortest_gap,
                    longest_gap,
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

/// What a reader has who adds up the changes.
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

/// Items come in an order of their own, that part of them late or corrected later, in updates of any size; after each
/// update the chains are those of the items that are there.
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
        match random.below(4) {
            0 => script.push((after(&mut random), vec![(item, 1)])),
            1 => {
                // It comes and goes.
                script.push((time, vec![(item.clone(), 1)]));
                script.push((after(&mut random), vec![(item, -1)]));
            }
            _ => {
                let (group, angle) = (format!("p{}", random.below(places)), random.uniform(0.0, 6.3));
                let shift = random.below(60) as i64 - 30;
                let looks = [angle.cos() as f32, angle.sin() as f32];
                let other =
                    Item::new(item.key.clone(), group, item.start + shift, item.end + shift.max(0), &looks);
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
        // A correction is not torn apart: two items of one name are a mistake.
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
    // What is left says it all: a view that is made from it tells the same at once.
    let mut anew = BTreeMap::new();
    let mut second = tidemill_incremental::chains::view(rules).expect("a thread");
    add(&mut anew, second.update(there).expect("it goes on"));
    assert_eq!(anew, known, "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

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
    // It looks more like b than a does: the whole chain from b on is its own now.
    let changes = view.update([(item("late", "north", 5, 0.1), 1)]).expect("it goes on");
    let told: Vec<(&str, &str, isize)> = changes.iter().map(|(m, n)| (&*m.key, &*m.chain, *n)).collect();
    assert_eq!(
        told,
        [("b", "a", -1), ("b", "late", 1), ("c", "a", -1), ("c", "late", 1), ("late", "late", 1)]
    );
}
