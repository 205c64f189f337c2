//! Messages of `all.proto` as generated code would have them.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidemill_schema::{FlatReader, FlatValue, FlatWriter, Invalid, Message};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Color(pub(crate) i32);

impl FlatValue for Color {
    fn write_at(&self, to: &mut FlatWriter<'_>, place: usize) {
        self.0.write_at(to, place);
    }

    fn read_slot(slot: u64, from: &FlatReader<'_>) -> Result<Self, Invalid> {
        i32::read_slot(slot, from).map(Self)
    }

    fn is_default(&self) -> bool {
        self.0 == 0
    }
}

/// Defines a message whose fields are in the order of their numbers, each with the method that writes it.
macro_rules! message {
    ($name:ident, $full:literal, $count:literal, { $($slot:literal $field:ident: $type:ty = $how:ident,)* }) => {
        #[derive(Clone, Debug, PartialEq, Default)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        impl Message for $name {
            const NAME: &'static str = $full;
            const FIELDS: usize = $count;

            #[allow(unused_variables, reason = "a message without fields")]
            fn write(&self, to: &mut FlatWriter<'_>) {
                $(message!(@write to $how $slot, self.$field);)*
            }

            #[allow(unused_variables, reason = "a message without fields")]
            fn read(from: &FlatReader<'_>) -> Result<Self, Invalid> {
                Ok(Self { $($field: message!(@read from $how $slot),)* })
            }
        }
    };
    (@write $to:ident optional $slot:literal, $value:expr) => { $to.optional($slot, $value.as_ref()) };
    (@write $to:ident boxed $slot:literal, $value:expr) => { $to.optional($slot, $value.as_deref()) };
    (@write $to:ident $how:ident $slot:literal, $value:expr) => { $to.$how($slot, &$value) };
    (@read $from:ident boxed $slot:literal) => { $from.optional($slot)?.map(Box::new) };
    (@read $from:ident $how:ident $slot:literal) => { $from.$how($slot)? };
}

message!(Scalars, "test.Scalars", 16, {
    0 a: f64 = implicit, 1 b: f32 = implicit, 2 c: i32 = implicit, 3 d: i64 = implicit, 4 e: u32 = implicit,
    5 f: u64 = implicit, 6 g: i32 = implicit, 7 h: i64 = implicit, 8 i: u32 = implicit, 9 j: u64 = implicit,
    10 k: i32 = implicit, 11 l: i64 = implicit, 12 m: bool = implicit, 13 n: String = implicit,
    14 o: Bytes = implicit, 15 p: Color = implicit,
});
message!(Empty, "test.Empty", 0, {});
message!(Maps, "test.Maps", 6, {
    0 a: BTreeMap<String, i32> = map, 1 b: BTreeMap<i32, String> = map, 2 c: BTreeMap<bool, Bytes> = map,
    3 d: BTreeMap<i64, Scalars> = map, 4 e: BTreeMap<u32, Color> = map, 5 f: BTreeMap<u64, f64> = map,
});
message!(Optionals, "test.Optionals", 8, {
    0 a: Option<f64> = optional, 1 c: Option<i32> = optional, 2 m: Option<bool> = optional,
    3 n: Option<String> = optional, 4 o: Option<Bytes> = optional, 5 q: Option<Empty> = optional,
    6 p: Option<Color> = optional, 7 h: Option<i64> = optional,
});
message!(Lists, "test.Lists", 18, {
    0 a: Vec<f64> = repeated, 1 b: Vec<f32> = repeated, 2 c: Vec<i32> = repeated, 3 d: Vec<i64> = repeated,
    4 e: Vec<u32> = repeated, 5 f: Vec<u64> = repeated, 6 g: Vec<i32> = repeated, 7 h: Vec<i64> = repeated,
    8 i: Vec<u32> = repeated, 9 j: Vec<u64> = repeated, 10 k: Vec<i32> = repeated, 11 l: Vec<i64> = repeated,
    12 m: Vec<bool> = repeated, 13 n: Vec<String> = repeated, 14 o: Vec<Bytes> = repeated,
    15 p: Vec<Color> = repeated, 16 q: Vec<Scalars> = repeated, 17 r: Vec<Empty> = repeated,
});
message!(Tree, "test.Tree", 6, {
    0 name: String = implicit, 1 left: Option<Box<Tree>> = boxed, 2 right: Option<Box<Tree>> = boxed,
    3 more: Vec<Tree> = repeated, 4 named: BTreeMap<String, Tree> = map,
});
