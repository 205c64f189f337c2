//! Comments of .proto files, by the path of what they are about.

use std::collections::HashMap;

use prost_types::FileDescriptorProto;

/// Comments of one file.
pub(crate) struct Comments<'a>(HashMap<&'a [i32], &'a str>);

impl<'a> Comments<'a> {
    /// Collects the comments before things, or after them on their line.
    pub(crate) fn of(file: &'a FileDescriptorProto) -> Self {
        let locations =
            file.source_code_info.as_ref().map(|info| info.location.as_slice()).unwrap_or_default();
        let text = |location: &'a prost_types::source_code_info::Location| {
            let comment = location.leading_comments.as_ref().or(location.trailing_comments.as_ref())?;
            Some((location.path.as_slice(), comment.as_str()))
        };
        Self(locations.iter().filter_map(text).collect())
    }

    /// Gives the comment of what has this path, by the numbers of fields in descriptors.
    pub(crate) fn get(&self, path: &[i32]) -> Option<&'a str> {
        self.0.get(path).copied()
    }
}

/// Makes the path of a part of something.
pub(crate) fn part(path: &[i32], field: i32, index: usize) -> Vec<i32> {
    let mut path = path.to_vec();
    path.extend([field, i32::try_from(index).unwrap_or(i32::MAX)]);
    path
}
