//! What an upgrade may go back to: it lies in the folder of the deployment until the upgrade has come to its end, so that whoever goes
//! on after an interrupt knows what there was before.
use crate::cause::OperateError;
use crate::site::Site;
use crate::upgrade::runs::Doing;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;

/// An upgrade that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The image that was wanted last.
    pub(crate) image: String,
    /// Images that were wanted before, by an upgrade that did not come to its end either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) before: Vec<String>,
    /// What services had before the first of them was changed.
    pub(crate) services: Vec<Old>,
    /// What runs did then.
    pub(crate) runs: Doing,
}

/// What a service had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Old {
    pub(crate) location: String,
    pub(crate) service: String,
    /// The image by its name of then.
    pub(crate) image: String,
    /// The same by what it is: the name may be another image's by now.
    pub(crate) id: String,
}

impl Record {
    /// The upgrade that has not come to its end; none: there is none.
    pub(crate) fn read(site: &Site) -> Result<Option<Self>, OperateError> {
        let path = site.upgrade_record();
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| OperateError::Deployment { path, text: error.to_string() }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(OperateError::File { path, source }),
        }
    }

    pub(crate) fn write(&self, site: &Site) -> Result<(), OperateError> {
        let path = site.upgrade_record();
        let next = path.with_extension("json.next");
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        let written = fs::write(&next, text).and_then(|()| fs::rename(&next, &path));
        written.map_err(|source| OperateError::File { path, source })
    }

    pub(crate) fn remove(site: &Site) -> Result<(), OperateError> {
        let path = site.upgrade_record();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(OperateError::File { path, source: error })
            }
            _ => Ok(()),
        }
    }

    /// What a service had; none: it was not there then.
    pub(crate) fn old(&self, location: &str, service: &str) -> Option<&Old> {
        self.services.iter().find(|old| old.location == location && old.service == service)
    }

    /// Goes on with what is there now: an upgrade that has begun knows more of what there was before, of services that still have that or
    /// an image which it gave them. Another image came from elsewhere: then what it knows of before is two images ago.
    pub(crate) fn begin(before: Option<Self>, image: &str, services: Vec<Old>, runs: Doing) -> Self {
        let Some(mut record) = before else {
            return Self { image: image.to_owned(), before: Vec::new(), services, runs };
        };
        let mut is_outdated = false;
        let mut known = Vec::new();
        for now in services {
            known.push(match record.old(&now.location, &now.service) {
                Some(old) if old.id == now.id || record.has_given(&now.image) => old.clone(),
                old => {
                    is_outdated |= old.is_some();
                    now
                }
            });
        }
        record.services = known;
        match is_outdated {
            true => record.runs = runs,
            false => record.runs.add(runs),
        }
        if record.image != image {
            let last = std::mem::replace(&mut record.image, image.to_owned());
            record.before.push(last);
        }
        record
    }

    /// Whether it wanted an image, so that services may have it.
    fn has_given(&self, image: &str) -> bool {
        self.image == image || self.before.iter().any(|one| one == image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::tests::written;

    #[test]
    fn what_there_was_before_stays_known_over_an_interrupt() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let site = Site::load(folder.path()).unwrap();
        assert_eq!(Record::read(&site).unwrap(), None);
        let old = |service: &str, image: &str| Old {
            location: "hub".into(),
            service: service.into(),
            image: image.into(),
            id: format!("sha256:{image}"),
        };
        let doing = |run: &str, role: &str| Doing([(run.to_owned(), [role.to_owned()].into())].into());
        let first = Record::begin(None, "t:2", vec![old("a", "t:1"), old("b", "t:1")], doing("night", "hub"));
        first.write(&site).unwrap();
        // `a` has the new image by now, under which the run does nothing any more.
        let again = Record::begin(
            Record::read(&site).unwrap(),
            "t:3",
            vec![old("a", "t:2"), old("b", "t:1"), old("c", "t:1")],
            doing("day", "edge"),
        );
        assert_eq!(again.old("hub", "a").unwrap().image, "t:1");
        assert_eq!((again.image.as_str(), again.services.len()), ("t:3", 3));
        assert!(again.runs.0.contains_key("night") && again.runs.0.contains_key("day"), "{again:?}");
        // What the first one gave is still known as that when a third one begins.
        let third =
            Record::begin(Some(again), "t:4", vec![old("a", "t:2"), old("b", "t:1")], doing("day", "edge"));
        assert_eq!(third.old("hub", "a").unwrap().image, "t:1");
        Record::remove(&site).unwrap();
        assert_eq!(Record::read(&site).unwrap(), None);
    }

    /// Deployed anew with an image of its own between the interrupt and the next upgrade.
    #[test]
    fn what_was_replaced_since_then_is_nothing_to_go_back_to() {
        let old = |service: &str, image: &str| Old {
            location: "hub".into(),
            service: service.into(),
            image: image.into(),
            id: format!("sha256:{image}"),
        };
        let doing = |run: &str| Doing([(run.to_owned(), ["hub".to_owned()].into())].into());
        let first = Record::begin(None, "t:2", vec![old("a", "t:1"), old("gone", "t:1")], doing("night"));
        let next = Record::begin(Some(first), "t:4", vec![old("a", "t:3")], doing("day"));
        assert_eq!(next.services, [old("a", "t:3")]);
        assert_eq!(next.runs, doing("day"), "a run of then that has ended since would fail this upgrade");
    }
}
