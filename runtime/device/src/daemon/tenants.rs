//! Tenants and their limits.
use std::collections::BTreeMap;

/// The tenant of all clients whose own one is not listed.
pub const DEFAULT: &str = "default";
/// Share of the default tenant where the others leave nothing.
const LEFT: f64 = 0.05;

/// Limits of a tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tenant {
    /// Part of the device's time while others want it, 0 < share <= 1.
    pub share: f64,
    /// Bytes that its sessions may hold together; none: not limited.
    pub memory: Option<u64>,
}

/// The tenants of a device.
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
}

impl Tenants {
    /// The listed ones, and [`DEFAULT`] for all others, with the share that is left, unless `only_listed`.
    ///
    /// # Errors
    /// If a name is listed twice, or a share is none.
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
        if !only_listed && !all.contains_key(DEFAULT) {
            let taken: f64 = all.values().map(|tenant| tenant.share).sum();
            all.insert(DEFAULT.to_owned(), Tenant { share: (1.0 - taken).max(LEFT), memory: None });
        }
        Ok(Self { all, only_listed })
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

    /// Changes limits, or lists a tenant; none: it stays. Returns the new limits.
    ///
    /// # Errors
    /// If the share is none.
    pub fn change(
        &mut self,
        name: &str,
        share: Option<f64>,
        memory: Option<Option<u64>>,
    ) -> Result<Tenant, String> {
        share.map(check).transpose()?;
        let before = match (self.all.get(name), share) {
            (Some(tenant), _) => *tenant,
            (None, Some(share)) => Tenant { share, memory: None },
            (None, None) => return Err(format!("the tenant `{name}` is not listed: give it a share, too")),
        };
        let after = Tenant { share: share.unwrap_or(before.share), memory: memory.unwrap_or(before.memory) };
        self.all.insert(name.to_owned(), after);
        Ok(after)
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

    #[test]
    fn the_default_tenant_has_what_is_left() {
        let tenant = |share| Tenant { share, memory: None };
        let listed = [("a".to_owned(), tenant(0.5)), ("b".to_owned(), tenant(0.3))];
        let tenants = Tenants::new(listed.clone(), false).unwrap();
        assert!((tenants.of("c").unwrap().1.share - 0.2).abs() < 1e-9);
        let mut only = Tenants::new(listed, true).unwrap();
        assert!(only.of("c").unwrap_err().contains("--tenant c=SHARE"));
        assert!(only.change("c", None, Some(Some(1))).is_err());
        assert!(only.change("c", Some(1.5), None).is_err());
        only.change("c", Some(0.2), Some(Some(1))).unwrap();
        assert_eq!(only.of("c"), Ok(("c", &Tenant { share: 0.2, memory: Some(1) })));
        assert!(Tenants::new([("a".to_owned(), tenant(0.0))], false).is_err());
    }
}
