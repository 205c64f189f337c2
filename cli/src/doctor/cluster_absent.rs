//! Stands in for the look at a cluster in a build without the feature `cluster`.
use super::Finding;
use crate::arguments::DoctorArguments;
use crate::features;

/// Refuses it.
pub(super) fn look(_: &DoctorArguments) -> anyhow::Result<Vec<Finding>> {
    Err(features::lacks("doctor --cluster", features::CLUSTER).into())
}
