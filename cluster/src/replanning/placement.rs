//! Chooses a new worker for a role whose worker is lost.

/// A candidate worker of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spare {
    /// Its name.
    pub name: String,
    /// Its tier, if known.
    pub tier: Option<String>,
    /// Its location, if known.
    pub location: Option<String>,
    /// Its type, if known.
    pub worker_type: Option<String>,
    /// Number of roles that it has.
    pub duties: usize,
}

/// Preferences of a worker of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerPreferences {
    /// Its tier.
    pub tier: Option<String>,
    /// Its location.
    pub location: Option<String>,
    /// Its type.
    pub worker_type: Option<String>,
}

/// The best worker, by tier, location, type and then the fewest duties. `None` if there are no candidates.
pub fn best(spares: &[Spare], wanted: &WorkerPreferences) -> Option<String> {
    let least = spares.iter().min_by_key(|spare| {
        let is_elsewhere = (spare.tier != wanted.tier, spare.location != wanted.location);
        (is_elsewhere, spare.worker_type != wanted.worker_type, spare.duties, spare.name.clone())
    });
    least.map(|spare| spare.name.clone())
}

/// The workers that are as good as the best one by tier, location and type.
pub fn equals<'a>(spares: &'a [Spare], wanted: &WorkerPreferences) -> Vec<&'a Spare> {
    let key = |spare: &Spare| {
        (
            spare.tier != wanted.tier,
            spare.location != wanted.location,
            spare.worker_type != wanted.worker_type,
        )
    };
    let least = spares.iter().map(key).min();
    spares.iter().filter(|spare| Some(key(spare)) == least).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_before_a_type_and_that_before_what_there_is_to_do() {
        let spare = |name: &str, tier: &str, worker_type: &str, duties| Spare {
            name: name.into(),
            tier: Some(tier.into()),
            location: None,
            worker_type: Some(worker_type.into()),
            duties,
        };
        let all = [
            spare("a", "cloud", "small", 0),
            spare("b", "edge", "large", 0),
            spare("c", "edge", "small", 2),
            spare("d", "edge", "small", 1),
        ];
        let wanted = WorkerPreferences {
            tier: Some("edge".into()),
            location: None,
            worker_type: Some("small".into()),
        };
        assert_eq!(best(&all, &wanted).as_deref(), Some("d"));
        assert_eq!(equals(&all, &wanted).iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["c", "d"]);
        assert_eq!(best(&all[..2], &wanted).as_deref(), Some("b"));
        assert_eq!(best(&all[..1], &wanted).as_deref(), Some("a"));
        assert_eq!(best(&[], &wanted), None);
    }
}
