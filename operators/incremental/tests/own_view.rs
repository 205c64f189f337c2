//! A custom view without chains: the number of vehicles on each road in each minute. Joins two collections and groups
//! the result; both the sightings of a camera and its road may be corrected.
use std::collections::{BTreeMap, BTreeSet};
use tidemill_incremental::view::{Change, View};
use tidemill_random::Random;

/// Both input collections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Input {
    /// A camera saw a vehicle from one minute to another.
    Seen { vehicle: String, camera: String, from: u64, to: u64 },
    /// The road of a camera.
    Looks { camera: String, road: String },
}

/// Road and minute with the number of different vehicles.
type Output = ((String, u64), isize);

fn vehicles_per_road_and_minute() -> View<Input, Output> {
    View::new("vehicles per road and minute", |input| {
        let seen = input.clone().flat_map(|row| match row {
            Input::Seen { vehicle, camera, from, to } => Some((camera, (vehicle, from, to))),
            Input::Looks { .. } => None,
        });
        let roads = input.flat_map(|row| match row {
            Input::Looks { camera, road } => Some((camera, road)),
            Input::Seen { .. } => None,
        });
        seen.join(roads)
            .flat_map(|(_, ((vehicle, from, to), road))| {
                (from..=to).map(move |minute| ((road.clone(), minute), vehicle.clone()))
            })
            .distinct()
            .map(|(place, _)| place)
            .count()
    })
    .unwrap()
}

/// Computes the result from all rows at once.
fn computed_anew(rows: &BTreeSet<Input>) -> BTreeMap<(String, u64), isize> {
    let mut vehicles: BTreeMap<(String, u64), BTreeSet<&str>> = BTreeMap::new();
    for row in rows {
        let Input::Seen { vehicle, camera, from, to } = row else { continue };
        for other in rows {
            let Input::Looks { camera: looks, road } = other else { continue };
            for minute in (*from..=*to).filter(|_| looks == camera) {
                vehicles.entry((road.clone(), minute)).or_default().insert(vehicle);
            }
        }
    }
    vehicles.into_iter().map(|(place, vehicles)| (place, vehicles.len() as isize)).collect()
}

fn random_row(random: &mut Random) -> Input {
    let camera = format!("camera-{}", random.below(4));
    if random.chance(0.2) {
        return Input::Looks { camera, road: format!("road-{}", random.below(3)) };
    }
    let from = random.below(5) as u64;
    let to = from + random.below(3) as u64;
    Input::Seen { vehicle: format!("vehicle-{}", random.below(12)), camera, from, to }
}

#[test]
fn a_joined_and_grouped_view_follows_its_rows() {
    let mut taken_back = 0;
    for seed in 0..20 {
        let mut random = Random::of_seed(seed);
        let mut view = vehicles_per_road_and_minute();
        let mut rows: BTreeSet<Input> = BTreeSet::new();
        let mut known: BTreeMap<Output, isize> = BTreeMap::new();
        for _ in 0..30 {
            let mut update: Vec<Change<Input>> = Vec::new();
            for _ in 0..=random.below(6) {
                // Removes a present row or adds a new one.
                let row = random_row(&mut random);
                let change = if rows.insert(row.clone()) { 1 } else { -1 };
                if change < 0 {
                    rows.remove(&row);
                }
                update.push((row, change));
            }
            for (row, count) in view.update(update).unwrap() {
                taken_back += usize::from(count < 0);
                *known.entry(row).or_default() += count;
            }
            known.retain(|_, count| *count != 0);
            assert!(known.values().all(|count| *count == 1), "each place has one number: {known:?}");
            let told: BTreeMap<(String, u64), isize> = known.keys().cloned().collect();
            assert_eq!(told, computed_anew(&rows), "seed {seed}");
        }
    }
    assert!(taken_back > 100, "numbers are taken back when they change: {taken_back}");
}
