//! Address and credentials of the service.
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use std::collections::BTreeMap;
use std::fmt;

/// The variables `AWS_*`, by their names. Displays names only, because some are secrets.
#[derive(Clone, Default)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Returns the variables of this process.
    pub fn of_environment() -> Self {
        // Values that are not text are ignored.
        let texts = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        texts.filter(|(name, _)| name.starts_with("AWS_")).collect()
    }

    /// Configures a client; ignores unknown names.
    pub(crate) fn builder(&self) -> AmazonS3Builder {
        let known = self.0.iter().filter_map(|(name, value)| {
            Some((name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>().ok()?, value))
        });
        known.fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value))
    }
}

impl FromIterator<(String, String)> for Settings {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> Self {
        Self(variables.into_iter().collect())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_shown() {
        let variable = ("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden".to_owned());
        let settings: Settings = [variable].into_iter().collect();
        assert_eq!(format!("{settings:?}"), "{\"AWS_SECRET_ACCESS_KEY\"}");
        let secret = AmazonS3ConfigKey::SecretAccessKey;
        assert_eq!(settings.builder().get_config_value(&secret).as_deref(), Some("hidden"));
    }
}
