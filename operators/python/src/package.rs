//! The Python package, which goes to the interpreter with the greeting: no file is written for it.

/// The files of the package, by path.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("tidemill/__init__.py", include_str!("../python/tidemill/__init__.py")),
    ("tidemill/_types.py", include_str!("../python/tidemill/_types.py")),
    ("tidemill/_columns.py", include_str!("../python/tidemill/_columns.py")),
    ("tidemill/_output.py", include_str!("../python/tidemill/_output.py")),
    ("tidemill/_declared.py", include_str!("../python/tidemill/_declared.py")),
    ("tidemill/_step.py", include_str!("../python/tidemill/_step.py")),
    ("tidemill/_channel.py", include_str!("../python/tidemill/_channel.py")),
    ("tidemill/_feed.py", include_str!("../python/tidemill/_feed.py")),
    ("tidemill/_source.py", include_str!("../python/tidemill/_source.py")),
    ("tidemill/_sink.py", include_str!("../python/tidemill/_sink.py")),
    ("tidemill/_runner.py", include_str!("../python/tidemill/_runner.py")),
    ("tidemill/testing.py", include_str!("../python/tidemill/testing.py")),
    ("tidemill/collective/__init__.py", include_str!("../python/tidemill/collective/__init__.py")),
    ("tidemill/collective/_errors.py", include_str!("../python/tidemill/collective/_errors.py")),
    ("tidemill/collective/_connection.py", include_str!("../python/tidemill/collective/_connection.py")),
    ("tidemill/collective/_buffer.py", include_str!("../python/tidemill/collective/_buffer.py")),
    ("tidemill/collective/_arrays.py", include_str!("../python/tidemill/collective/_arrays.py")),
    ("tidemill/collective/_pending.py", include_str!("../python/tidemill/collective/_pending.py")),
    ("tidemill/collective/_group.py", include_str!("../python/tidemill/collective/_group.py")),
    (
        "tidemill/collective/_process_group.py",
        include_str!("../python/tidemill/collective/_process_group.py"),
    ),
    ("tidemill/collective/torch.py", include_str!("../python/tidemill/collective/torch.py")),
];

/// The program of the interpreter: reads the greeting, and lets the package be imported from it.
pub(crate) const START: &str = include_str!("../python/start.py");
