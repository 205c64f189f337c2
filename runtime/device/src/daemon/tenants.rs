//! Tenants and their limits.
use std::collections::BTreeMap;

/// The tenant of all clients whose own one is not listed.
pub const DEFAULT: &str = "default";
/// Rounding of shares: 33.3 % three times and 0.1 % are not too much.
const ROUNDING: f64 = 1e-9;

/// Limits of a tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tenant {
    /// Part of the device's time while others want it, 0 < share <= 1.
    pub share: f64,
    /// Bytes that its sessions may hold together; none: not limited.
    pub memory: Option<u64>,
}

/// The tenants of a device. Their shares add to at most 100 %: [`DEFAULT`] has what the listed ones leave, unless it is listed itself.
///
/// ```
/// use tidemill_device::daemon::tenants::{Tenant, Tenants};
/// let listed = [("vision".to_owned(), Tenant { share: 0.7, memory: None })];
/// let tenants = Tenants::new(listed, false)?;
/// assert_eq!(tenants.of("vision").map(|(name, _)| name), Ok("vision"));
/// assert_eq!(tenants.of("other").map(|(name, _)| name), Ok("default"));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tenants {
    all: BTreeMap<String, Tenant>,
    only_listed: bool,
    /// The default tenant is not listed: its share follows from the others.
    has_rest: bool,
}

impl Tenants {
    /// The listed ones, and [`DEFAULT`] for all others, with the share that is left, unless `only_listed`.
    ///
    /// # Errors
    /// If a name is listed twice, a share is none, or they add to too much.
    pub fn new(
        listed: impl IntoIterator<Item = (String, Tenant)>,
        only_listed: bool,
    ) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for (name, tenant) in listed {
            check(tenant.share)?;
            if name.is_empty() || all.insert(name.clone(), tenant).is_some() {
                return Err(format!("the tenant `{name}` is listed twice, or has no name"));
            }
        }
        let has_rest = !only_listed && !all.contains_key(DEFAULT);
        if has_rest {
            all.insert(DEFAULT.to_owned(), Tenant { share: 0.0, memory: None });
        }
        let mut tenants = Self { all, only_listed, has_rest };
        tenants.share_rest()?;
        Ok(tenants)
    }

    /// Gives the default tenant what is left.
    fn share_rest(&mut self) -> Result<(), String> {
        let is_counted = |name: &str| !(self.has_rest && name == DEFAULT);
        let taken: f64 =
            self.all().filter(|(name, _)| is_counted(name)).map(|(_, tenant)| tenant.share).sum();
        let percent = |share: f64| (share * 1e4).round() / 100.0;
        if taken > 1.0 + ROUNDING {
            let shares = self.all().filter(|(name, _)| is_counted(name));
            let shares: Vec<String> =
                shares.map(|(name, tenant)| format!("{name} {} %", percent(tenant.share))).collect();
            return Err(format!(
                "the shares add to {} % ({}), at most 100 % are possible",
                percent(taken),
                shares.join(", ")
            ));
        }
        if !self.has_rest {
            return Ok(());
        }
        let left = 1.0 - taken;
        if left <= ROUNDING {
            return Err(format!(
                "the shares add to 100 %, and nothing is left for the tenant `{DEFAULT}`, which all other clients are: lower one of them, or refuse other clients with `--only-tenants`"
            ));
        }
        if let Some(rest) = self.all.get_mut(DEFAULT) {
            rest.share = left;
        }
        Ok(())
    }

    /// Returns the tenant of a client that says it computes for this one.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub fn of(&self, name: &str) -> Result<(&str, &Tenant), String> {
        let found = self.all.get_key_value(name);
        let found = found.or_else(|| self.all.get_key_value(DEFAULT).filter(|_| !self.only_listed));
        found.map(|(name, tenant)| (name.as_str(), tenant)).ok_or_else(|| {
            format!("the tenant `{name}` is not one of this device; start it with `--tenant {name}=SHARE`")
        })
    }

    /// Returns the limits of a listed tenant.
    pub fn get(&self, name: &str) -> Option<&Tenant> {
        self.all.get(name)
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Tenant)> {
        self.all.iter().map(|(name, tenant)| (name.as_str(), tenant))
    }

    /// Changes limits; none: they stay. `new`: lists a tenant instead.
    ///
    /// # Errors
    /// If it is not listed, or listed already, or the shares are none or add to too much. Nothing is changed then.
    pub fn change(
        &mut self,
        name: &str,
        share: Option<f64>,
        memory: Option<Option<u64>>,
        new: bool,
    ) -> Result<(), String> {
        share.map(check).transpose()?;
        let before = match (self.all.get(name), share) {
            (Some(_), _) if new => {
                return Err(format!("the tenant `{name}` is listed already: leave `--new` out"));
            }
            (Some(tenant), _) => *tenant,
            (None, Some(share)) if new && !name.is_empty() => Tenant { share, memory: None },
            (None, _) if new => {
                return Err(format!("the tenant `{name}` is not listed: give it a name and a share, too"));
            }
            (None, _) => {
                let known: Vec<&str> = self.all().map(|(name, _)| name).collect();
                return Err(format!(
                    "the device has no tenant `{name}`; it has {}: name one of them, or add `--new` to list another one",
                    known.join(", ")
                ));
            }
        };
        let mut changed = self.clone();
        let after = Tenant { share: share.unwrap_or(before.share), memory: memory.unwrap_or(before.memory) };
        changed.all.insert(name.to_owned(), after);
        // One with a share of its own has no longer what is left.
        changed.has_rest &= name != DEFAULT || share.is_none();
        changed.share_rest()?;
        *self = changed;
        Ok(())
    }
}

fn check(share: f64) -> Result<(), String> {
    if share > 0.0 && share <= 1.0 {
        Ok(())
    } else {
        Err(format!("{share} is no share: it is above 0 % and at most 100 %"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(listed: &[(&str, f64)], only_listed: bool) -> Result<Tenants, String> {
        let tenant = |share| Tenant { share, memory: None };
        Tenants::new(listed.iter().map(|(name, share)| ((*name).to_owned(), tenant(*share))), only_listed)
    }

    fn share(tenants: &Tenants, name: &str) -> f64 {
        (tenants.of(name).unwrap().1.share * 1000.0).round() / 1000.0
    }

    #[test]
    fn the_default_tenant_has_what_is_left() {
        let listed = [("a", 0.5), ("b", 0.3)];
        let mut all = tenants(&listed, false).unwrap();
        assert!((share(&all, "c") - 0.2).abs() < 1e-9);
        all.change("a", Some(0.1), None, false).unwrap();
        assert!((share(&all, "c") - 0.6).abs() < 1e-9);
        // With a share of its own it keeps it.
        all.change(DEFAULT, Some(0.2), None, false).unwrap();
        all.change("a", Some(0.2), None, false).unwrap();
        assert!((share(&all, "c") - 0.2).abs() < 1e-9);
        assert!(tenants(&listed, true).unwrap().of("c").unwrap_err().contains("--tenant c=SHARE"));
        assert!(tenants(&[("a", 0.0)], false).is_err());
    }

    #[test]
    fn shares_add_to_at_most_the_whole() {
        let told = tenants(&[("a", 0.7), ("b", 0.5)], true).unwrap_err();
        assert_eq!(told, "the shares add to 120 % (a 70 %, b 50 %), at most 100 % are possible");
        let thirds = [("a", 1.0 / 3.0), ("b", 1.0 / 3.0), ("c", 1.0 / 3.0)];
        assert!(tenants(&thirds, true).is_ok());
        assert!(tenants(&thirds, false).unwrap_err().contains("--only-tenants"));
        assert!(tenants(&[("a", 0.6), (DEFAULT, 0.4)], false).is_ok());
        let mut all = tenants(&[("a", 0.5), ("b", 0.3)], false).unwrap();
        assert!(all.change("a", Some(0.8), None, false).is_err());
        assert!(all.change("c", Some(0.3), None, true).unwrap_err().contains("110 %"));
        assert!((share(&all, "a"), share(&all, "c")) == (0.5, 0.2), "nothing has changed");
    }

    #[test]
    fn a_tenant_is_listed_only_on_purpose() {
        let mut all = tenants(&[("vision", 0.5)], true).unwrap();
        let told = all.change("visoin", Some(0.2), None, false).unwrap_err();
        assert!(told.contains("it has vision") && told.contains("--new"), "{told}");
        assert!(all.change("c", None, Some(Some(1)), true).unwrap_err().contains("a share"));
        assert!(all.change("c", Some(1.5), None, true).is_err());
        all.change("c", Some(0.2), Some(Some(1)), true).unwrap();
        assert_eq!(all.of("c"), Ok(("c", &Tenant { share: 0.2, memory: Some(1) })));
        assert!(all.change("c", Some(0.3), None, true).unwrap_err().contains("already"));
    }
}
