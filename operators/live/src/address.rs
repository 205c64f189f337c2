//! Addresses of cameras: the only holder of their users and passwords.
//!
//! An address is shown without user, password and query, and without parts of its path that look like a setting
//! (`user=admin`), because many cameras take passwords there. Texts of others pass through [`Address::redact`] before
//! anybody sees them.
//!
//! ```
//! use tidemill_live::address::Address;
//! let gate = Address::parse("rtsp://viewer:s%40cret@10.0.0.7:8554/stream1?token=abc").unwrap();
//! assert_eq!(gate.to_string(), "rtsp://***@10.0.0.7:8554/stream1?***");
//! assert_eq!(gate.redact("401 for viewer"), "(the text is left out: it has parts of the address that may be secret)");
//! ```
use percent_encoding::percent_decode_str;
use retina::client::Credentials;
use std::fmt;
use url::Url;

/// Text in place of one with secrets.
const LEFT_OUT: &str = "(the text is left out: it has parts of the address that may be secret)";

/// Reason why a text is no address of a camera. It never has a part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a URL, or without a host.
    #[error(
        "it is not an address: write `rtsp://HOST/PATH`, with odd characters of user and password as `%40` for `@`, `%3A` for `:`, `%2F` for `/`"
    )]
    Malformed,
    /// Another scheme.
    #[error(
        "it does not begin with `rtsp://`, or `rtsps://` for a camera that encrypts: write `rtsp://HOST/PATH`"
    )]
    Scheme,
    /// Characters that no address has, or `@` after the host: the rest of a password that is not encoded.
    #[error(
        "it has characters that an address does not have there: write the odd ones of user, password and path as `%40` for `@`, `%3A` for `:`, `%2F` for `/`, `%23` for `#`, `%3F` for `?`, or give the password by `password_env`"
    )]
    Characters,
    /// A password without a user.
    #[error("it has a password and no user: write `user` too")]
    NoUser,
    /// User and password both within the address and beside it.
    #[error("it has a user, and `user` is given beside it: write one of them")]
    Twice,
}

/// Address of a camera, see the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// Without user and password.
    url: Url,
    login: Option<Login>,
    shown: String,
    /// Texts that are never shown, lower case, none empty.
    secrets: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
struct Login {
    user: String,
    password: String,
}

impl Address {
    /// Parses `rtsp://USER:PASSWORD@HOST:PORT/PATH?QUERY`; all but the host may be left out.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.chars().any(|character| character.is_control() || character.is_whitespace()) {
            return Err(AddressError::Characters);
        }
        let mut url = Url::parse(text).map_err(|_| AddressError::Malformed)?;
        if !["rtsp", "rtsps"].contains(&url.scheme()) {
            return Err(AddressError::Scheme);
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(AddressError::Malformed);
        }
        // `rtsp://user:1/2@host/`: the address of a host `user` with the port 1.
        let is_odd = |text: &str| text.contains('@');
        if url.fragment().is_some() || is_odd(url.path()) || url.query().is_some_and(is_odd) {
            return Err(AddressError::Characters);
        }
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            ("", Some(_)) => return Err(AddressError::NoUser),
            (user, password) => Some((decoded(user)?, decoded(password.unwrap_or_default())?)),
        };
        let written = [Some(url.username().to_owned()), url.password().map(str::to_owned)];
        url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| AddressError::Malformed)?;
        let address = Self { url, login: None, shown: String::new(), secrets: Vec::new() };
        let address = match login {
            Some((user, password)) => address.filled(Some(Login { user, password })),
            None => address.filled(None),
        };
        Ok(address.with_secrets(written.into_iter().flatten()))
    }

    /// Adds user and password.
    ///
    /// # Errors
    /// The address has a user already, the user is empty, or a control character is in it.
    pub fn with_login(self, user: &str, password: &str) -> Result<Self, AddressError> {
        if self.login.is_some() {
            return Err(AddressError::Twice);
        }
        if user.is_empty() {
            return Err(AddressError::NoUser);
        }
        if user.chars().chain(password.chars()).any(char::is_control) {
            return Err(AddressError::Characters);
        }
        Ok(self.filled(Some(Login { user: user.to_owned(), password: password.to_owned() })))
    }

    fn filled(mut self, login: Option<Login>) -> Self {
        self.login = login;
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let is_setting =
            |part: &str| part.contains(['=', '&', ';']) || part.to_ascii_lowercase().contains("%3d");
        let path: Vec<&str> =
            self.url.path().split('/').map(|part| if is_setting(part) { "***" } else { part }).collect();
        let query = if self.url.query().is_some() { "?***" } else { "" };
        let user = if self.login.is_some() { "***@" } else { "" };
        let scheme = self.url.scheme();
        self.shown = format!("{scheme}://{user}{host}{port}{}{query}", path.join("/"));
        let hidden = self.url.path().split('/').filter(|part| is_setting(part)).map(str::to_owned);
        let mut secrets: Vec<String> = hidden.collect();
        secrets.extend(self.url.query().map(str::to_owned));
        if let Some(Login { user, password }) = &self.login {
            secrets.extend([user.clone(), password.clone()]);
        }
        self.with_secrets(secrets.into_iter())
    }

    /// Adds texts to those that are never shown, each as written and decoded, and the values of settings alone.
    fn with_secrets(mut self, texts: impl Iterator<Item = String>) -> Self {
        for text in texts {
            let values = text.split(['&', ';', '=']).skip(1).map(str::to_owned).collect::<Vec<_>>();
            for part in values.into_iter().chain([text]) {
                for form in
                    [percent_decode_str(&part).decode_utf8_lossy().to_lowercase(), part.to_lowercase()]
                {
                    if !form.is_empty() && !self.secrets.contains(&form) {
                        self.secrets.push(form);
                    }
                }
            }
        }
        self
    }

    /// Returns a text, or a remark in its place where it has anything that [`Address`] hides.
    pub fn redact(&self, text: &str) -> String {
        let lower = text.to_lowercase();
        let decoded = percent_decode_str(&lower).decode_utf8_lossy();
        let is_told = |secret: &String| lower.contains(secret) || decoded.contains(secret);
        if self.secrets.iter().any(is_told) { LEFT_OUT.to_owned() } else { text.to_owned() }
    }

    /// Whether a part of it is hidden.
    pub fn has_secrets(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// Whether it has a user.
    pub fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// Whether the camera encrypts.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.url.scheme() == "rtsps"
    }

    /// The URL with user and password: only for a connection that another program makes.
    pub(crate) fn secret_url(&self) -> String {
        let mut url = self.url.clone();
        if let Some(Login { user, password }) = &self.login {
            // It has a host, so both are taken.
            let _ = url.set_username(user).and_then(|()| url.set_password(Some(password)));
        }
        url.into()
    }

    /// The URL without user and password, with the query: only for the connection.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// User and password: only for the connection.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let Login { user, password } = self.login.as_ref()?;
        Some(Credentials { username: user.clone(), password: password.clone() })
    }
}

fn decoded(text: &str) -> Result<String, AddressError> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| AddressError::Characters)?;
    // A header with them would be another header.
    if text.chars().any(char::is_control) {
        return Err(AddressError::Characters);
    }
    Ok(text.into_owned())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    #[test]
    fn nothing_but_place_and_path_is_shown() {
        for (text, shown) in [
            ("rtsp://10.0.0.7/stream1", "rtsp://10.0.0.7/stream1"),
            ("rtsp://u:p@10.0.0.7/stream1", "rtsp://***@10.0.0.7/stream1"),
            ("rtsp://u:p%40q@[fe80::1]:8554/a/b", "rtsp://***@[fe80::1]:8554/a/b"),
            ("rtsp://u:p@q@host/a", "rtsp://***@host/a"),
            ("rtsp://host/user=admin_password=tl_channel=1.sdp", "rtsp://host/***"),
            ("rtsp://host/cam/realmonitor?channel=1&token=x", "rtsp://host/cam/realmonitor?***"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), format!("Address({shown})"));
        }
        let login = Address::parse("rtsp://u:p%40%3a@h/").unwrap().credentials().unwrap();
        assert_eq!((login.username.as_str(), login.password.as_str()), ("u", "p@:"));
        let login = Address::parse("rtsp://u:p@q@h/").unwrap().credentials().unwrap();
        assert_eq!(login.password, "p@q");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        use AddressError::{Characters, Malformed, NoUser, Scheme};
        for (text, error) in [
            ("10.0.0.7", Malformed),
            ("http://10.0.0.7/", Scheme),
            ("rtmp://10.0.0.7/", Scheme),
            ("rtsp:///path", Malformed),
            ("rtsp:host", Malformed),
            ("rtsp://:p@host/", NoUser),
            ("rtsp://u:12/3@host/", Characters),
            ("rtsp://u:12#3@host/", Characters),
            ("rtsp://u:12?3@host/", Characters),
            ("rtsp://u:a/b@host/", Malformed),
            ("rtsp://u:p q@host/", Characters),
            ("rtsp://u:p%0d%0aq@host/", Characters),
        ] {
            assert_eq!(Address::parse(text), Err(error), "{text}");
        }
        let address = Address::parse("rtsp://u:p@host/").unwrap();
        assert_eq!(address.with_login("u", "p"), Err(AddressError::Twice));
        assert_eq!(Address::parse("rtsp://host/").unwrap().with_login("", "p"), Err(NoUser));
        assert_eq!(Address::parse("rtsp://host/").unwrap().with_login("u", "p\n"), Err(Characters));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Letters of the secrets are not those of the rest, so that a leak is told from a coincidence.
        #[test]
        fn secrets_stay_in(
            user in "[J-N@:/?#%&= é]{1,8}", password in "[P-Z@:/?#%&= é\\[\\]]{1,12}", token in "[6-9]{4,8}",
            host in "(cam\\.example|10\\.0\\.0\\.1|\\[2001:db8::1\\])", beside in any::<bool>(),
        ) {
            let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let address = if beside {
                Address::parse(&format!("rtsp://{host}/a?t={token}")).unwrap().with_login(&user, &password)
            } else {
                Address::parse(&format!("rtsp://{}:{}@{host}/a?t={token}", encoded(&user), encoded(&password)))
            };
            let address = address.unwrap();
            let login = address.credentials().unwrap();
            prop_assert_eq!((&login.username, &login.password), (&user, &password));
            let shown = format!("rtsp://***@{host}/a?***");
            prop_assert_eq!(address.to_string(), &*shown);
            prop_assert_eq!(format!("{address:?}"), format!("Address({shown})"));
            prop_assert!(address.url().username().is_empty() && address.url().password().is_none());
            for secret in [&user, &password, &token, &encoded(&user), &encoded(&password), &password.to_lowercase()] {
                let text = format!("it said <{secret}> and more");
                prop_assert_eq!(address.redact(&text), LEFT_OUT);
            }
        }

        #[test]
        fn errors_repeat_nothing(text in "rtsp://[P-Z@:/?#%\\[\\]]{1,20}") {
            match Address::parse(&text) {
                Err(error) => {
                    let told = format!("{error} {error:?}");
                    prop_assert!(!told.contains(&text));
                }
                Ok(address) => prop_assert!(
                    address.login.is_none() || !address.shown.contains(&address.login.as_ref().unwrap().password)
                        || address.login.as_ref().unwrap().password.len() < 2
                ),
            }
        }
    }
}
