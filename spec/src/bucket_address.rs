//! The address of a state in a bucket.
use std::fmt;
use std::str::FromStr;

/// `s3://BUCKET/PREFIX`; the prefix may be empty.
///
/// ```
/// use tidemill_spec::bucket_address::Address;
///
/// let address: Address = "s3://runs/shop/state/".parse()?;
/// assert_eq!((address.bucket(), address.prefix()), ("runs", "shop/state"));
/// assert_eq!(address.to_string(), "s3://runs/shop/state");
/// assert!("s3://user:password@runs/shop".parse::<Address>().is_err());
/// # Ok::<(), tidemill_spec::bucket_address::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    bucket: String,
    prefix: String,
}

/// Why a text is no address of a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The scheme is not `s3://`.
    #[error("it does not start with `s3://`")]
    Scheme,
    /// The bucket's name has characters that S3 does not allow, or is too short or long.
    #[error(
        "the name of the bucket is 3 to 63 lower-case letters, digits, `-` and `.`; write a login in \
         AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Bucket,
    /// The prefix has empty parts, or ambiguous characters.
    #[error("the parts after the bucket are letters, digits, `-`, `_`, `.` and `=`, with `/` between them")]
    Prefix,
}

/// The scheme of every address.
const SCHEME: &str = "s3://";

impl Address {
    /// Whether a text is meant as a bucket address, valid or not: everything else is a folder.
    pub fn is_meant(text: &str) -> bool {
        text.get(..SCHEME.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(SCHEME))
    }

    /// Returns the bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the prefix of all names in the bucket, without `/` at the end; may be empty.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix(SCHEME).ok_or(AddressError::Scheme)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_of_bucket = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_of_bucket) || bucket.starts_with('.') {
            return Err(AddressError::Bucket);
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_of_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=');
        let is_part =
            |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(is_of_part);
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(AddressError::Prefix);
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, prefix } = self;
        match prefix.is_empty() {
            true => write!(f, "{SCHEME}{bucket}"),
            false => write!(f, "{SCHEME}{bucket}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_was() {
        for text in ["s3://abc", "s3://a.b-c/d", "s3://abc/d=1/E_f/.g"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn others_are_refused() {
        for text in ["state", "S3://abc", "s3:/abc", "https://abc/d"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError::Scheme), "{text}");
        }
        for text in ["s3://", "s3://ab", "s3:///d", "s3://Abc/d", "s3://key:secret@abc/d", "s3://abc?x=y"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError::Bucket), "{text}");
        }
        for text in ["s3://abc/d//e", "s3://abc/../d", "s3://abc/d e", "s3://abc/d?e=f"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError::Prefix), "{text}");
        }
        assert!(
            Address::is_meant("S3://Abc") && !Address::is_meant("s3") && !Address::is_meant("state/s3://")
        );
    }
}
