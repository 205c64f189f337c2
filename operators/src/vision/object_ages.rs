//! Last sighting of each object, so that ended objects are found without a scan. An object ends as a whole: all its tracks
//! stay as long as one does, even if the others ended long ago.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Objects with their tracks. All operations take time logarithmic in their number.
#[derive(Debug, Default)]
pub(super) struct ObjectAges {
    /// Object of each track, and its end in milliseconds.
    tracks: BTreeMap<Arc<str>, (Arc<str>, i64)>,
    /// Ends of the tracks, by object.
    ends: HashMap<Arc<str>, BTreeSet<(i64, Arc<str>)>>,
    /// Objects by the latest of these ends.
    latest: BTreeSet<(i64, Arc<str>)>,
}

impl ObjectAges {
    /// The object of a track.
    pub(super) fn object(&self, track: &str) -> Option<&Arc<str>> {
        self.tracks.get(track).map(|(object, _)| object)
    }

    /// Sets object and end of a track, replacing earlier ones.
    pub(super) fn set(&mut self, track: Arc<str>, object: Arc<str>, end: i64) {
        if self.tracks.get(&track).is_some_and(|known| known.0 == object && known.1 == end) {
            return;
        }
        self.remove(&track);
        self.tracks.insert(track.clone(), (object.clone(), end));
        self.change(&object, |ends| {
            ends.insert((end, track));
        });
    }

    /// Removes a track.
    pub(super) fn remove(&mut self, track: &str) {
        if let Some((track, (object, end))) = self.tracks.remove_entry(track) {
            self.change(&object, |ends| {
                ends.remove(&(end, track));
            });
        }
    }

    /// Removes the object that ended first if that was before `horizon`, and returns its tracks.
    pub(super) fn take_before(&mut self, horizon: i64) -> Option<Vec<Arc<str>>> {
        let first = self.latest.first().filter(|(end, _)| *end < horizon)?.clone();
        self.latest.remove(&first);
        let tracks: Vec<Arc<str>> =
            self.ends.remove(&first.1).into_iter().flatten().map(|(_, track)| track).collect();
        for track in &tracks {
            self.tracks.remove(track);
        }
        Some(tracks)
    }

    /// Changes the ends of an object's tracks, and its position among the others.
    fn change(&mut self, object: &Arc<str>, change: impl FnOnce(&mut BTreeSet<(i64, Arc<str>)>)) {
        let ends = self.ends.entry(object.clone()).or_default();
        let before = ends.last().map(|(end, _)| *end);
        change(ends);
        let after = ends.last().map(|(end, _)| *end);
        if ends.is_empty() {
            self.ends.remove(object);
        }
        if before != after {
            if let Some(before) = before {
                self.latest.remove(&(before, object.clone()));
            }
            if let Some(after) = after {
                self.latest.insert((after, object.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a scan of all objects.
        #[test]
        fn objects_are_over_when_all_their_tracks_are(
            steps in prop::collection::vec((0..20usize, 0..6usize, 0..100i64, 0..5u8), 1..120)
        ) {
            let mut ages = ObjectAges::default();
            let mut known: BTreeMap<String, (String, i64)> = BTreeMap::new();
            for (track, object, end, what) in steps {
                let (track, object) = (format!("t{track}"), format!("o{object}"));
                match what {
                    0 => {
                        ages.remove(&track);
                        known.remove(&track);
                    }
                    1 => {
                        let mut gone: Vec<String> = Vec::new();
                        while let Some(tracks) = ages.take_before(end) {
                            prop_assert!(!tracks.is_empty());
                            gone.extend(tracks.iter().map(ToString::to_string));
                        }
                        gone.sort();
                        let lives = |object: &String| known.values().any(|(of, at)| of == object && *at >= end);
                        let expected: Vec<String> =
                            known.iter().filter(|(_, (of, _))| !lives(of)).map(|(track, _)| track.clone()).collect();
                        prop_assert_eq!(&gone, &expected);
                        known.retain(|track, _| !gone.contains(track));
                    }
                    _ => {
                        ages.set(track.as_str().into(), object.as_str().into(), end);
                        known.insert(track, (object, end));
                    }
                }
                prop_assert!(known.iter().all(|(track, (of, _))| ages.object(track).is_some_and(|it| **it == **of)));
                prop_assert_eq!(ages.tracks.len(), known.len());
                prop_assert_eq!(ages.latest.len(), ages.ends.len());
            }
        }
    }
}
