//! The state that an upgrade may revert to. It is in the folder of the deployment until the upgrade has ended, so that a
//! repeated command after an interruption knows the earlier state.
use crate::cause::OperateError;
use crate::site::Site;
use crate::upgrade::runs::Doing;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;

/// An upgrade in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The latest new image.
    pub(crate) image: String,
    /// New images of earlier upgrades that did not end either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) before: Vec<String>,
    /// Images of services before the first change.
    pub(crate) services: Vec<Old>,
    /// Work of the runs at that time.
    pub(crate) runs: Doing,
}

/// Earlier image of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Old {
    pub(crate) location: String,
    pub(crate) service: String,
    /// Name of the image at that time.
    pub(crate) image: String,
    /// Its digest: the name may have moved to another image.
    pub(crate) id: String,
}

impl Record {
    /// Reads the upgrade in progress, if there is one.
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

    /// Returns the earlier image of a service; `None` if it did not exist then.
    pub(crate) fn old(&self, location: &str, service: &str) -> Option<&Old> {
        self.services.iter().find(|old| old.location == location && old.service == service)
    }

    /// Merges with an upgrade in progress, which knows the earlier state of services that are unchanged or have an image
    /// that it gave them. For a service with any other image, that state is outdated.
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

    /// Whether an image was a new one of this upgrade, so that services may have it.
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
        // `a` has the new image already, with which the run no longer works.
        let again = Record::begin(
            Record::read(&site).unwrap(),
            "t:3",
            vec![old("a", "t:2"), old("b", "t:1"), old("c", "t:1")],
            doing("day", "edge"),
        );
        assert_eq!(again.old("hub", "a").unwrap().image, "t:1");
        assert_eq!((again.image.as_str(), again.services.len()), ("t:3", 3));
        assert!(again.runs.0.contains_key("night") && again.runs.0.contains_key("day"), "{again:?}");
        // Images of the first one are still known when a third one starts.
        let third =
            Record::begin(Some(again), "t:4", vec![old("a", "t:2"), old("b", "t:1")], doing("day", "edge"));
        assert_eq!(third.old("hub", "a").unwrap().image, "t:1");
        Record::remove(&site).unwrap();
        assert_eq!(Record::read(&site).unwrap(), None);
    }

    /// The deployment was rewritten with another image between the interruption and the next upgrade.
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
