//! The programs on the machines of a deployment, searched once.
use crate::cause::{Cause, OperateError};
use crate::compose::Compose;
use crate::control::Control;
use crate::engine::{Engine, EngineFacts};
use crate::images;
use crate::site::{Place, Site};

/// Programs of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) compose: Compose,
    pub(crate) facts: EngineFacts,
}

/// A deployment with the programs of its machines.
pub(crate) struct Equipment<'a> {
    pub(crate) site: &'a Site,
    pub(crate) control: Control<'a>,
    /// In the order of the site's locations.
    found: Vec<Found>,
}

/// Collects the causes of a failure; passes interruptions and other errors on.
pub(crate) fn causes<T>(
    result: Result<T, OperateError>,
    into: &mut Vec<Cause>,
) -> Result<Option<T>, OperateError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(OperateError::Causes(causes)) => {
            into.extend(causes);
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

impl<'a> Equipment<'a> {
    /// Finds the programs of all machines, each machine once.
    ///
    /// # Errors
    /// All missing programs.
    pub(crate) fn find(site: &'a Site, control: Control<'a>) -> Result<Self, OperateError> {
        let (mut found, mut missing) = (Vec::<Found>::new(), Vec::new());
        for (index, place) in site.places().iter().enumerate() {
            let same = site.places()[..index].iter().position(|other| other.machine == place.machine);
            if let Some(same) = same {
                found.extend(found.get(same).cloned());
                continue;
            }
            let look = || {
                let facts = Engine::of(&place.machine, control).facts()?;
                Ok(Found { facts, compose: Compose::find(&place.machine, control)? })
            };
            found.extend(causes(look(), &mut missing)?);
        }
        match missing.is_empty() {
            true => Ok(Self { site, control, found }),
            false => Err(OperateError::of(missing)),
        }
    }

    /// The locations of the site with the programs of their machines.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&'a Place, &Found)> {
        self.site.places().iter().zip(&self.found)
    }

    /// One location per machine.
    pub(crate) fn machines(&self) -> impl Iterator<Item = (&'a Place, &Found)> {
        let places = self.site.places();
        let is_first = move |index: usize, place: &Place| {
            !places[..index].iter().any(|other| other.machine == place.machine)
        };
        self.places()
            .enumerate()
            .filter(move |(index, (place, _))| is_first(*index, place))
            .map(|(_, one)| one)
    }

    pub(crate) fn engine(&self, place: &'a Place) -> Engine<'a> {
        Engine::of(&place.machine, self.control)
    }

    /// The programs at a location.
    pub(crate) fn of(&self, place: &Place) -> &Found {
        let index = self.site.places().iter().position(|other| other.location.name == place.location.name);
        index.and_then(|index| self.found.get(index)).unwrap_or_else(|| unreachable!("a place of this site"))
    }

    /// Runs Compose for a place.
    pub(crate) fn compose(&self, place: &Place, words: &[&str]) -> Result<(), OperateError> {
        let found = self.of(place);
        let mut files = vec!["compose.yaml"];
        if place.location.has_gpu_overlay && found.facts.has_gpu {
            files.push("compose.gpu.yaml");
        }
        // The user's additions, as Compose itself would find them; then the images of an upgrade, unless they belong to
        // another deployment.
        files.extend(
            ["compose.override.yaml"].into_iter().filter(|name| place.own_folder.join(name).exists()),
        );
        if !images::read(place, &self.site.image(place))?.is_empty() {
            files.push(images::FILE_NAME);
        }
        let words = found.compose.words(&place.location.project, &files, words);
        found.compose.run(&place.machine, &place.folder, &words, self.control)
    }
}
