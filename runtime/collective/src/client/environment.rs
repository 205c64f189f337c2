//! How the environment of a program says which rank it is.
use super::JoinOptions;
use std::env::VarError;

/// Name of the group where nothing names it.
const DEFAULT_GROUP: &str = "default";

/// Why the environment does not say which rank a program is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// There is no such variable.
    #[error(
        "no {what}: set {variable}; `tidemill job submit` sets it, and torchrun sets {other}, which works too"
    )]
    Missing {
        /// The rank or the size.
        what: &'static str,
        /// Name of the variable.
        variable: &'static str,
        /// Name of the variable of torchrun.
        other: &'static str,
    },
    /// Its value is no number.
    #[error("{variable} is `{value}`, which is no number from 0 on")]
    NoNumber {
        /// Name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The ranks are 0 to the size less 1.
    #[error("rank {rank} of {size}: the first rank is 0")]
    NoRank {
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
}

impl JoinOptions {
    /// The usual ones for the rank that the environment names: `TIDEMILL_GROUP`, `TIDEMILL_RANK` and `TIDEMILL_SIZE`, as tasks of a job
    /// have them, or `RANK` and `WORLD_SIZE`, as torchrun sets them. The service is that of `TIDEMILL_NET`, or the usual one.
    ///
    /// ```no_run
    /// # use tidemill_collective::client::{Group, JoinOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let group = Group::join(&JoinOptions::of_environment()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A variable is missing, or is wrong.
    pub fn of_environment() -> Result<Self, EnvironmentError> {
        Self::of_variables(|name| match std::env::var(name) {
            Ok(value) => Some(value),
            Err(VarError::NotUnicode(value)) => Some(value.to_string_lossy().into_owned()),
            Err(VarError::NotPresent) => None,
        })
    }

    fn of_variables(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let named = |name| variable(name).filter(|value| !value.is_empty());
        let number = |what, [own, other]: [&'static str; 2]| {
            let found = [own, other].into_iter().find_map(|name| Some((name, named(name)?)));
            let (name, value) = found.ok_or(EnvironmentError::Missing { what, variable: own, other })?;
            value.trim().parse().map_err(|_| EnvironmentError::NoNumber { variable: name, value })
        };
        let rank = number("rank", ["TIDEMILL_RANK", "RANK"])?;
        let size = number("size", ["TIDEMILL_SIZE", "WORLD_SIZE"])?;
        if rank >= size {
            return Err(EnvironmentError::NoRank { rank, size });
        }
        let group = named("TIDEMILL_GROUP").or_else(|| named("TORCHELASTIC_RUN_ID"));
        Ok(Self::new(group.unwrap_or_else(|| DEFAULT_GROUP.to_owned()), rank, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<(String, u32, u32), String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let found = JoinOptions::of_variables(|name| find(name).map(|(_, value)| (*value).to_owned()));
        found.map(|of| (of.group, of.rank, of.size)).map_err(|error| error.to_string())
    }

    #[test]
    fn own_variables_come_before_those_of_torchrun() {
        let torchrun = [("RANK", "3"), ("WORLD_SIZE", "4"), ("TORCHELASTIC_RUN_ID", "run")];
        assert_eq!(of(&torchrun), Ok(("run".to_owned(), 3, 4)));
        let own = [("TIDEMILL_RANK", "0"), ("TIDEMILL_SIZE", "2"), ("TIDEMILL_GROUP", "train-7-1")];
        assert_eq!(of(&[&own[..], &torchrun].concat()), Ok(("train-7-1".to_owned(), 0, 2)));
        assert_eq!(of(&own[..2]), Ok(("default".to_owned(), 0, 2)));
    }

    #[test]
    fn mistakes_name_the_variable() {
        for (variables, words) in [
            (&[][..], "no rank: set TIDEMILL_RANK"),
            (&[("RANK", "0")], "no size: set TIDEMILL_SIZE"),
            (&[("TIDEMILL_RANK", "one")], "TIDEMILL_RANK is `one`, which is no number"),
            (&[("TIDEMILL_RANK", "2"), ("TIDEMILL_SIZE", "2")], "rank 2 of 2"),
        ] {
            let error = of(variables).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
