//! A map whose parts are shared with its copies: a copy costs a pointer for each part, and changes are found by comparing pointers.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module. A shared part is copied when it changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Keyed<T>(BTreeMap<String, Arc<T>>);

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Keyed<T> {
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.0.get(name).map(|part| &**part)
    }

    pub(crate) fn contains_key(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.0.iter().map(|(name, part)| (name, &**part))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values().map(|part| &**part)
    }

    pub(crate) fn insert(&mut self, name: String, part: T) {
        self.0.insert(name, Arc::new(part));
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// Names of parts that differ from an earlier map, removed ones included.
    pub(super) fn changed<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'a String, Option<&'a T>)> {
        let is_same =
            |name: &String, part: &Arc<T>| before.0.get(name).is_some_and(|old| Arc::ptr_eq(old, part));
        let new = self.0.iter().filter(move |(name, part)| !is_same(name, part));
        let gone = before.0.keys().filter(|name| !self.0.contains_key(*name));
        new.map(|(name, part)| (name, Some(&**part))).chain(gone.map(|name| (name, None)))
    }
}

impl<T: Clone> Keyed<T> {
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.0.get_mut(name).map(Arc::make_mut)
    }

    /// Mutable access to all parts; each visited one counts as changed.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().map(Arc::make_mut)
    }

    /// The part of this name, this one if there is none.
    pub(crate) fn or_insert(&mut self, name: &str, part: T) -> &mut T {
        Arc::make_mut(self.0.entry(name.to_owned()).or_insert_with(|| Arc::new(part)))
    }
}

impl<T> std::ops::Index<&str> for Keyed<T> {
    type Output = T;

    fn index(&self, name: &str) -> &T {
        &self.0[name]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_since_is_known() {
        let mut before = Keyed::default();
        for name in ["a", "b", "c"] {
            before.insert(name.to_owned(), 1);
        }
        let mut now = before.clone();
        let changed = |now: &Keyed<i32>| -> Vec<(String, Option<i32>)> {
            now.changed(&before).map(|(name, part)| (name.clone(), part.copied())).collect()
        };
        assert_eq!((now.get("a"), now["b"], now.contains_key("d")), (Some(&1), 1, false));
        assert_eq!(changed(&now), []);
        *now.get_mut("b").unwrap() = 2;
        assert!(now.remove("c") && !now.remove("z"));
        *now.or_insert("d", 4) += 1;
        let expected = [("b", Some(2)), ("d", Some(5)), ("c", None)];
        assert_eq!(changed(&now), expected.map(|(name, part)| (name.to_owned(), part)));
        assert_eq!(before["b"], 1, "the copy before is what it was");
    }
}
