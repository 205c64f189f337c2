//! The header says the same as the Rust code: each function with its types, and each constant.
use crate::{VERSION, buffer, operation, status};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_collective::element::{Element, Reduction};

const HEADER: &str = include_str!("../include/tidemill/group.h");
const SOURCES: [&str; 6] = [
    include_str!("lib.rs"),
    include_str!("status.rs"),
    include_str!("group.rs"),
    include_str!("buffer.rs"),
    include_str!("operation.rs"),
    include_str!("pending.rs"),
];

/// Types of C, without spaces, for those of Rust.
const TYPES: [(&str, &str); 15] = [
    ("*const c_char", "constchar*"),
    ("*mut c_void", "void*"),
    ("*mut *mut GroupHandle", "tidemill_group**"),
    ("*mut *mut BufferHandle", "tidemill_buffer**"),
    ("*mut *mut PendingHandle", "tidemill_pending**"),
    ("*mut GroupHandle", "tidemill_group*"),
    ("*mut BufferHandle", "tidemill_buffer*"),
    ("*mut PendingHandle", "tidemill_pending*"),
    ("*const JoinOptions", "conststructtidemill_join_options*"),
    ("*const CallOptions", "conststructtidemill_call_options*"),
    ("c_int", "int"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("i64", "int64_t"),
    ("usize", "size_t"),
];

fn of_c(rust: &str) -> String {
    match rust.strip_prefix("*mut ").filter(|rest| !rest.contains('*')) {
        Some(number @ ("u32" | "u64" | "usize")) => format!("{}*", of_c(number)),
        _ => TYPES.iter().find(|(name, _)| *name == rust).unwrap_or_else(|| panic!("{rust}")).1.to_owned(),
    }
}

/// The functions of the Rust code as the header declares them, without spaces.
fn functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for part in SOURCES.iter().flat_map(|source| source.split("extern \"C\" fn ").skip(1)) {
        let (name, rest) = part.split_once('(').unwrap();
        let (arguments, rest) = rest.split_once(") -> ").unwrap();
        let result = rest.split_once(" {").unwrap().0;
        let arguments = arguments.split(',').filter_map(|argument| argument.split_once(": "));
        let arguments: Vec<String> =
            arguments.map(|(name, of)| format!("{}{}", of_c(of.trim()), name.trim())).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(",") };
        found.insert(format!("{}{name}({arguments})", of_c(result)));
    }
    found
}

/// The header without comments.
fn code() -> String {
    let parts = HEADER.split("/*");
    parts.map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect()
}

#[test]
fn the_header_declares_each_function_with_its_types() {
    let code = code();
    let declared = code.split(';').filter(|part| part.contains('(')).map(|part| {
        // After the line of the preprocessor or the brace before it.
        let line = part.rsplit(['}', '{']).next().unwrap();
        let line: String = line.lines().filter(|line| !line.starts_with('#')).collect();
        line.split_whitespace().collect::<String>()
    });
    let declared: BTreeSet<String> = declared.filter(|one| one.contains("tidemill_")).collect();
    assert_eq!(declared, functions());
    assert!(declared.len() > 15, "{declared:?}");
}

#[test]
fn the_header_has_the_same_constants() {
    let code = code();
    let mut constants: BTreeMap<&str, i64> = BTreeMap::new();
    for line in code.lines() {
        let both = match line.strip_prefix("#define TIDEMILL_") {
            Some(rest) => rest.split_once(' '),
            None => line.trim().strip_prefix("TIDEMILL_").and_then(|rest| rest.split_once(" = ")),
        };
        if let Some((name, value)) = both {
            constants.insert(name, value.trim_end_matches(',').parse().unwrap());
        }
    }
    let mut expected: BTreeMap<&str, i64> = BTreeMap::from([
        ("GROUP_VERSION", VERSION.into()),
        ("AFTER", operation::AFTER.into()),
        ("READABLE", operation::READABLE.into()),
        ("PRIORITY_BULK", -1),
        ("PRIORITY_NORMAL", 0),
        ("PRIORITY_HIGH", 1),
    ]);
    let codes = [
        ("OK", status::OK),
        ("INVALID", status::INVALID),
        ("UNREACHABLE", status::UNREACHABLE),
        ("REFUSED", status::REFUSED),
        ("GONE", status::GONE),
        ("LOST", status::LOST),
        ("DEADLINE", status::DEADLINE),
        ("DIFFERS", status::DIFFERS),
        ("WRONG", status::WRONG),
        ("MEMORY", status::MEMORY),
        ("TIMEOUT", status::TIMEOUT),
        ("INTERNAL", status::INTERNAL),
    ];
    expected.extend(codes.map(|(name, code)| (name, code.into())));
    let elements = [Element::F32, Element::F16, Element::Bf16, Element::I32, Element::I64];
    for (name, element) in ["F32", "F16", "BF16", "I32", "I64"].into_iter().zip(elements) {
        let number = buffer::ELEMENTS.iter().position(|one| *one == element).unwrap();
        expected.insert(name, number as i64);
    }
    let reductions = [Reduction::Sum, Reduction::Min, Reduction::Max];
    for (name, reduction) in ["SUM", "MIN", "MAX"].into_iter().zip(reductions) {
        let number = operation::REDUCTIONS.iter().position(|one| *one == reduction).unwrap();
        expected.insert(name, number as i64);
    }
    assert_eq!(constants, expected);
}
