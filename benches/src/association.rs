//! Measures an update of one track in the association of 10,000, against recomputing all of them, alternating within a
//! minute; also with a share of late tracks, where the result must equal that of all tracks at once.
use crate::result::{Answer, Measurement};
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_incremental::chains::{Item, Membership, Rules, batch, view};
use tidemill_incremental::view::{Change, View};
use tidemill_random::Random;

const TRACKS: usize = 10_000;
const CAMERAS: usize = 8;
const DIMENSIONS: usize = 64;
const UPDATES: usize = 400;
const RECOMPUTATIONS: usize = 7;
/// Longest time of a vehicle between two cameras, milliseconds.
const LONGEST_GAP: i64 = 60_000;

fn rules() -> Rules {
    Rules { least_likeness: 0.8, shortest_gap: 0, longest_gap: LONGEST_GAP, transitions: Vec::new() }
}

/// Returns a vector near another one.
fn near(random: &mut Random, centre: &[f32], noise: f32) -> Vec<f32> {
    centre.iter().map(|value| value + noise * (random.unit() as f32 - 0.5)).collect()
}

/// Generates vehicles, one a second, that pass three cameras each and look a little different in each.
fn tracks() -> Vec<Item> {
    let mut random = Random::of_seed(22);
    let mut items = Vec::with_capacity(TRACKS + 2);
    let none = vec![0.0; DIMENSIONS];
    for vehicle in 0.. {
        if items.len() >= TRACKS {
            break;
        }
        let looks = near(&mut random, &none, 2.0);
        let mut time = vehicle * 1000;
        let mut camera = random.below(CAMERAS);
        for _ in 0..3 {
            let end = time + 3000 + random.below(4000) as i64;
            let vector = near(&mut random, &looks, 0.6);
            items.push(Item::new(
                format!("{:06}", items.len()),
                format!("camera-{camera}"),
                time,
                end,
                &vector,
            ));
            time = end + 2000 + random.below(LONGEST_GAP as usize - 2000) as i64;
            camera = (camera + 1 + random.below(CAMERAS - 1)) % CAMERAS;
        }
    }
    items.truncate(TRACKS);
    items
}

fn microseconds(clock: &WallClock, from: i64) -> f64 {
    (clock.now() - from) as f64 / 1e3
}

/// Measures each change alone and undoes it afterwards, unmeasured.
fn updates(
    clock: &WallClock,
    view: &mut View<Item, Membership>,
    changes: impl Iterator<Item = Vec<Change<Item>>>,
) -> anyhow::Result<Vec<f64>> {
    let mut samples = Vec::with_capacity(UPDATES);
    for change in changes.take(UPDATES) {
        let undo: Vec<Change<Item>> = change.iter().map(|(item, count)| (item.clone(), -count)).collect();
        let start = clock.now();
        view.update(change)?;
        samples.push(microseconds(clock, start));
        view.update(undo)?;
    }
    Ok(samples)
}

/// Percentages of late tracks.
const LATE: [usize; 3] = [1, 10, 50];
/// Tracks in one update where nothing is measured.
const TOGETHER: usize = 100;

/// Adds up changes of memberships.
fn add(known: &mut BTreeMap<Membership, isize>, changes: Vec<Change<Membership>>) {
    for (row, count) in changes {
        *known.entry(row).or_default() += count;
    }
    known.retain(|_, count| *count != 0);
}

/// Adds a share of the tracks after all others, one by one and in random order. Returns the time of each, and the times
/// per hundred tracks that arrive in order. After each fifth of the late tracks, and at the end, the reported changes
/// must add up to the result computed from all tracks present.
fn late(clock: &WallClock, items: &[Item], percent: usize) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let mut random = Random::of_seed(percent as u64);
    let (mut behind, mut before): (Vec<Item>, Vec<Item>) =
        items.iter().cloned().partition(|_| random.chance(percent as f64 / 100.0));
    before.sort_by_key(|item| item.end);
    for place in (1..behind.len()).rev() {
        behind.swap(place, random.below(place + 1));
    }
    let mut view = view(rules())?;
    let mut known = BTreeMap::new();
    let mut in_time = Vec::new();
    for part in before.chunks(TOGETHER) {
        let start = clock.now();
        let changes = view.update(part.iter().cloned().map(|item| (item, 1)))?;
        in_time.push(microseconds(clock, start));
        add(&mut known, changes);
    }
    let mut samples = Vec::with_capacity(behind.len());
    let look = behind.len().div_ceil(5).max(1);
    let mut there = before;
    for (index, item) in behind.iter().enumerate() {
        let start = clock.now();
        let changes = view.update([(item.clone(), 1)])?;
        samples.push(microseconds(clock, start));
        add(&mut known, changes);
        there.push(item.clone());
        if (index + 1) % look == 0 || index + 1 == behind.len() {
            let all = batch::chains(&there, &rules());
            let told: Vec<&Membership> = known.keys().collect();
            let is_same = known.values().all(|count| *count == 1) && told.iter().copied().eq(all.iter());
            anyhow::ensure!(
                is_same,
                "{percent} % late: after {} of them the view says something else",
                index + 1
            );
        }
    }
    anyhow::ensure!(there.len() == items.len() && !samples.is_empty(), "tracks are missing");
    Ok((samples, in_time))
}

pub(crate) fn run() -> anyhow::Result<Answer> {
    let clock = WallClock::new();
    let items = tracks();
    let rules = rules();
    let mut recomputed = Vec::new();
    let mut anew = Vec::new();
    for _ in 0..RECOMPUTATIONS {
        let start = clock.now();
        let all = batch::chains(&items, &rules);
        recomputed.push(microseconds(&clock, start));
        anyhow::ensure!(all.len() == TRACKS, "an item is in no chain");
        let mut view = view(rules.clone())?;
        let start = clock.now();
        let mut loaded: Vec<Membership> = view
            .update(items.iter().cloned().map(|item| (item, 1)))?
            .into_iter()
            .map(|(row, _)| row)
            .collect();
        anew.push(microseconds(&clock, start));
        loaded.sort_unstable();
        anyhow::ensure!(loaded == all, "the view says something else");
    }
    let mut view = view(rules)?;
    let (earlier, newest) = items.split_at(TRACKS - UPDATES);
    view.update(earlier.iter().cloned().map(|item| (item, 1)))?;
    // Let background merges finish.
    std::thread::sleep(Duration::from_millis(100));
    let new = updates(&clock, &mut view, newest.iter().map(|item| vec![(item.clone(), 1)]))?;
    view.update(newest.iter().cloned().map(|item| (item, 1)))?;
    let mut random = Random::of_seed(7);
    let places: Vec<usize> = (0..UPDATES).map(|_| random.below(TRACKS)).collect();
    // All later tracks are already present, as if this one were late.
    let gone = updates(&clock, &mut view, places.iter().map(|place| vec![(items[*place].clone(), -1)]))?;
    let corrected = updates(
        &clock,
        &mut view,
        places.iter().map(|place| {
            let old = &items[*place];
            let other = Item::new(
                old.key.clone(),
                old.group.clone(),
                old.start,
                old.end + 500,
                &near(&mut random, &vec![0.0; DIMENSIONS], 2.0),
            );
            vec![(old.clone(), -1), (other, 1)]
        }),
    )?;
    let mut of_late = Vec::new();
    for percent in LATE {
        let (samples, in_time) = late(&clock, &items, percent)?;
        let name =
            format!("{percent} % of the tracks come late, each result equal to computing anew: a late track");
        of_late.push(Measurement::new(&name, "us", samples));
        of_late.push(Measurement::new(format!("{percent} % late: {TOGETHER} tracks in time"), "us", in_time));
    }
    let recomputing = Measurement::new("all chains computed anew", "us", recomputed).baseline();
    let whole = recomputing.median();
    let times = |samples: &[f64]| samples.iter().map(|sample| whole / sample).collect::<Vec<f64>>();
    let mut measurements = vec![
        Measurement::new("a new track", "us", new.clone()),
        Measurement::new("an old track goes", "us", gone),
        Measurement::new("an old track is corrected", "us", corrected.clone()),
        Measurement::new("computing anew over a new track", "times", times(&new)).goal(20.0),
        Measurement::new("computing anew over a correction", "times", times(&corrected)).goal(20.0),
        Measurement::new("a view made from all tracks, as after a restart", "us", anew),
    ];
    measurements.extend(of_late);
    measurements.push(recomputing);
    Ok(Answer::new(
        "association",
        "What does a change of one track cost in the association of 10,000?",
        measurements,
    ))
}
