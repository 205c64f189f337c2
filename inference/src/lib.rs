//! Models behind manifests.
