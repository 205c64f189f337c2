//! Limits of memory and programs: of all users together, and of each user, so that none takes everything.
use super::locked;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Programs of a user that are in groups.
const MOST_PROGRAMS: usize = 1024;
/// Buffers of a user.
const MOST_BUFFERS: usize = 8192;

/// Things that a user has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Taken {
    bytes: u64,
    buffers: usize,
    programs: usize,
}

/// Memory and programs of all groups of the service.
#[derive(Debug)]
pub(super) struct Budget {
    taken: Mutex<BTreeMap<u32, Taken>>,
    most: u64,
}

impl Budget {
    pub(super) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::default(), most })
    }

    /// Bytes of one user, at most: others find some, too.
    fn most_of_user(&self) -> u64 {
        self.most / 4 * 3
    }

    /// Lets a program of a user in.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn enter(self: &Arc<Self>, user: u32) -> Result<Share, String> {
        let mut taken = locked(&self.taken);
        let mine = taken.entry(user).or_default();
        if mine.programs >= MOST_PROGRAMS {
            return Err(format!(
                "{MOST_PROGRAMS} programs of this user are in groups of this host, no more may be"
            ));
        }
        mine.programs += 1;
        Ok(Share { budget: Arc::clone(self), user })
    }

    fn give_back(&self, user: u32, change: impl FnOnce(&mut Taken)) {
        let mut taken = locked(&self.taken);
        if let Some(mine) = taken.get_mut(&user) {
            change(mine);
            if *mine == Taken::default() {
                taken.remove(&user);
            }
        }
    }
}

/// The part of a program in the budget of its user. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    user: u32,
}

impl Share {
    /// Takes memory for a buffer.
    ///
    /// # Errors
    /// The limit that is reached, with the fix.
    pub(super) fn take(&self, bytes: u64) -> Result<Granted, String> {
        let budget = &self.budget;
        let mut taken = locked(&budget.taken);
        let all: u64 = taken.values().map(|one| one.bytes).sum();
        let mine = taken.entry(self.user).or_default();
        let help = "free some, or call with smaller ones";
        let above = |used: u64, most: u64| used.checked_add(bytes).is_none_or(|sum| sum > most);
        if mine.buffers >= MOST_BUFFERS {
            return Err(format!("a user has {MOST_BUFFERS} buffers at most; {help}"));
        }
        let (most, of_user) = (budget.most, budget.most_of_user());
        if above(mine.bytes, of_user) {
            let used = mine.bytes;
            return Err(format!(
                "the buffers of one user have {of_user} bytes at most, {used} are taken; {help}"
            ));
        }
        if above(all, most) {
            return Err(format!("the buffers of all groups of a host have {most} bytes at most; {help}"));
        }
        mine.bytes += bytes;
        mine.buffers += 1;
        Ok(Granted { budget: Arc::clone(budget), user: self.user, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.user, |mine| mine.programs -= 1);
    }
}

/// Memory of a user. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Granted {
    budget: Arc<Budget>,
    user: u32,
    bytes: u64,
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.budget.give_back(self.user, |mine| {
            mine.bytes -= self.bytes;
            mine.buffers -= 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_something_to_others() {
        let budget = Budget::new(1 << 20);
        let (one, other) = (budget.enter(1).unwrap(), budget.enter(2).unwrap());
        let most = one.take(3 << 18).unwrap();
        let refused = one.take(4096).unwrap_err();
        assert!(refused.contains("one user") && refused.contains("786432"), "{refused}");
        let rest = other.take(1 << 18).unwrap();
        let refused = other.take(4096).unwrap_err();
        assert!(refused.contains("all groups") && refused.contains("1048576"), "{refused}");
        drop(most);
        other.take(4096).unwrap();
        assert!(one.take(u64::MAX).is_err());
        drop((one, other, rest));
        assert!(locked(&budget.taken).is_empty(), "nothing is left of users that are gone");
    }

    #[test]
    fn programs_and_buffers_of_a_user_are_counted() {
        let budget = Budget::new(1 << 40);
        let programs: Vec<Share> = (0..MOST_PROGRAMS).map(|_| budget.enter(1).unwrap()).collect();
        assert!(budget.enter(1).unwrap_err().contains("1024 programs"));
        budget.enter(2).unwrap();
        let buffers: Vec<Granted> = (0..MOST_BUFFERS).map(|_| programs[0].take(4096).unwrap()).collect();
        assert!(programs[1].take(4096).unwrap_err().contains("8192 buffers"));
        drop((buffers, programs));
        budget.enter(1).unwrap().take(4096).unwrap();
    }
}
