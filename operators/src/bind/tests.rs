//! Tests of [`super::bind_workflow`].
