//! Policies look at frames of records that pass through the service.
//!
//! A policy is one file in `policies` that implements [`Policy`], and one line in [`kinds`].
use crate::passage::Passage;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// The decision of a policy about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The frame passes, with the rows that are left.
    Pass,
    /// The policy looks at the frame again after this time. Frames of the same channel wait behind it, so their order stays.
    Wait(Duration),
    /// The connection is cut. The channel makes it again, and sends again what was not durable.
    Cut,
}

/// A policy. One instance looks at the frames of all channels that it is attached to on a host, one at a time.
pub trait Policy: Send {
    /// Looks at a frame of records before it leaves.
    ///
    /// # Errors
    /// Why it cannot judge the frame, for people. The frame is not sent: the connection is cut, and made again after a pause.
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String>;

    /// Checks at the time of attaching that it can judge records with these columns.
    ///
    /// # Errors
    /// Why not, for people.
    fn fits(&mut self, columns: &tidemill_spec::types::StreamType) -> Result<(), String> {
        let _ = columns;
        Ok(())
    }

    /// Its state, for the instance that replaces it.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Continues with the state of the instance before, which may be of another version.
    ///
    /// # Errors
    /// Why it cannot, for people. The instance before stays then.
    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let _ = state;
        Ok(())
    }
}

/// The place where a policy is made.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// The id of the policy.
    pub id: String,
    /// A folder for its files.
    pub folder: PathBuf,
    /// The person who attaches it may have the service load libraries: the user of the service, or root.
    pub may_load: bool,
}

/// Makes an instance from the options of a policy.
pub type Make = fn(&Value, &Site) -> Result<Box<dyn Policy>, String>;

/// A kind of policies.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Its name in YAML.
    pub name: &'static str,
    /// One line for people: what it does.
    pub help: &'static str,
    /// An example of its options.
    pub example: &'static str,
    /// Makes an instance.
    pub make: Make,
}

/// All kinds.
pub fn kinds() -> &'static [Kind] {
    use crate::policies::{acl, balance, compress, fault, foreign, log, null, qos, rate_limit};
    &[
        rate_limit::KIND,
        acl::KIND,
        qos::KIND,
        log::KIND,
        fault::KIND,
        compress::KIND,
        balance::KIND,
        foreign::KIND,
        null::KIND,
    ]
}

/// Characters that the id of a policy may have.
const LONGEST_ID: usize = 64;

/// Checks the id of a policy, which names files, too.
///
/// # Errors
/// It is none, and what to write.
pub fn check_id(id: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    match !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(format!(
            "`{}` is no id of a policy: write at most {LONGEST_ID} letters, digits, `_` and `-`",
            id.chars().take(LONGEST_ID).collect::<String>().escape_debug()
        )),
    }
}

/// Makes an instance of a kind.
///
/// # Errors
/// The kind does not exist, or its options are wrong; for people, with what to write.
pub fn make(kind: &str, options: &Value, site: &Site) -> Result<Box<dyn Policy>, String> {
    let Some(found) = kinds().iter().find(|one| one.name == kind) else {
        let names: Vec<&str> = kinds().iter().map(|kind| kind.name).collect();
        return Err(format!("there is no policy `{kind}`; there are {}", names.join(", ")));
    };
    let options = if options.is_null() { &Value::Object(serde_json::Map::new()) } else { options };
    (found.make)(options, site).map_err(|error| format!("{kind}: {error}; for example `{}`", found.example))
}

/// Reads the options of a policy.
///
/// # Errors
/// What is wrong with them.
pub fn options<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_name_and_no_path() {
        for id in ["cap-cam3", "rate_limit-1", "7"] {
            assert_eq!(check_id(id), Ok(()));
        }
        for id in ["", "../x", "a/b", "a b", "a\n", ".", "ä", &"x".repeat(65)] {
            assert!(check_id(id).is_err(), "{id}");
        }
    }

    #[test]
    fn every_example_is_taken_and_mistakes_are_explained() {
        let site = Site::default();
        for kind in kinds().iter().filter(|kind| kind.name != "library") {
            let example: Value = serde_json::from_str(kind.example).expect("an example is JSON");
            make(kind.name, &example, &site).map(drop).expect(kind.name);
            let wrong = make(kind.name, &serde_json::json!({"no_such_option": 1}), &site).map(drop);
            let wrong = wrong.expect_err(kind.name);
            assert!(wrong.contains("no_such_option") && wrong.contains("for example"), "{wrong}");
        }
        let error = make("acls", &Value::Null, &site).map(drop).expect_err("no such kind");
        assert!(error.contains("`acls`") && error.contains("rate_limit"), "{error}");
    }
}
