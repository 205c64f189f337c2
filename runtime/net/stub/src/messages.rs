//! Code of messages and enums.

use std::collections::{BTreeSet, HashMap, HashSet};

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};
use tidemill_schema::{Field, Kind, Layout, Presence, Schema};

use crate::comments::{Comments, part};
use crate::compiling::{StubError, strip};
use crate::names::{camel, snake, values};
use crate::printing::{ALLOW, Lines, Module};
use crate::services;

/// Writes the code of one package.
pub(crate) fn package(set: &FileDescriptorSet, package: &str) -> Result<String, StubError> {
    let set = imports_of(set, package);
    let mut bare = set.clone();
    strip(&mut bare);
    let bytes = bare.encode_to_vec();
    let schema = Schema::from_bytes(&bytes)?;
    let mut types = Types { schema: &schema, package, places: HashMap::new(), boxed: HashMap::new() };
    types.collect(&set)?;
    let wanted = wanted(&set, &schema, package);
    let mut root = Module::default();
    header(&mut root.items, package, &bytes);
    for file in &set.file {
        let comments = Comments::of(file);
        let scope = Scope { types: &types, comments: &comments, wanted: &wanted };
        for (index, message) in file.message_type.iter().enumerate() {
            scope.message(&mut root, &join(file.package(), message.name()), message, &part(&[], 4, index));
        }
        for (index, one) in file.enum_type.iter().enumerate() {
            scope.one_enum(&mut root, &join(file.package(), one.name()), one, &part(&[], 5, index));
        }
    }
    for file in set.file.iter().filter(|file| file.package() == package) {
        let comments = Comments::of(file);
        for (index, service) in file.service.iter().enumerate() {
            services::service(&mut root.items, &types, &comments, &part(&[], 6, index), package, service)?;
        }
    }
    Ok(root.print())
}

/// Takes the files of a package and those that they import, directly or not.
fn imports_of(set: &FileDescriptorSet, package: &str) -> FileDescriptorSet {
    let mut needed: HashSet<&str> =
        set.file.iter().filter(|file| file.package() == package).map(|file| file.name()).collect();
    let mut before = 0;
    while before < needed.len() {
        before = needed.len();
        for file in set.file.iter().filter(|file| needed.contains(file.name())).collect::<Vec<_>>() {
            needed.extend(file.dependency.iter().map(String::as_str));
        }
    }
    FileDescriptorSet { file: set.file.iter().filter(|file| needed.contains(file.name())).cloned().collect() }
}

/// Lists the types of the package and those that they use.
fn wanted(set: &FileDescriptorSet, schema: &Schema, package: &str) -> HashSet<String> {
    let mut wanted = HashSet::new();
    let mut open: Vec<String> = Vec::new();
    for file in set.file.iter().filter(|file| file.package() == package) {
        let mut nested: Vec<(String, &DescriptorProto)> =
            file.message_type.iter().map(|message| (join(package, message.name()), message)).collect();
        wanted.extend(file.enum_type.iter().map(|one| join(package, one.name())));
        while let Some((name, message)) = nested.pop() {
            wanted.extend(message.enum_type.iter().map(|one| join(&name, one.name())));
            nested.extend(message.nested_type.iter().map(|inner| (join(&name, inner.name()), inner)));
            open.push(name);
        }
        let methods = file.service.iter().flat_map(|service| &service.method);
        for message in methods.flat_map(|method| [method.input_type(), method.output_type()]) {
            open.push(message.trim_start_matches('.').to_owned());
        }
    }
    while let Some(name) = open.pop() {
        if wanted.insert(name.clone())
            && let Some(layout) = schema.message_named(&name)
        {
            open.extend(
                layout.fields().iter().map(|field| field.type_name.clone()).filter(|name| !name.is_empty()),
            );
        }
    }
    wanted
}

fn header(out: &mut Lines, package: &str, descriptors: &[u8]) {
    let package =
        if package.is_empty() { "files without a package".to_owned() } else { format!("package {package}") };
    out.line(format!("// Written by tidemill-stub from {package}. A change to it is lost."));
    out.line("");
    out.line("/// Descriptors of the services, which both sides of a connection compare.");
    out.lines(&["#[allow(dead_code, unreachable_pub)]", "pub const DESCRIPTORS: &[u8] = &["]);
    for bytes in descriptors.chunks(20) {
        out.line(bytes.iter().map(|byte| format!("{byte},")).collect::<Vec<_>>().join(" "));
    }
    out.line("];");
}

/// Refuses a second field with the same name in Rust.
fn same_field<'a>(
    fields: &mut HashMap<String, &'a str>,
    message: &str,
    field: &'a str,
) -> Result<(), StubError> {
    match fields.insert(snake(field), field) {
        Some(first) => Err(StubError::SameName { first: join(message, first), second: join(message, field) }),
        None => Ok(()),
    }
}

/// Puts a name into its scope.
pub(crate) fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// Places of all types in the modules of the code.
pub(crate) struct Types<'a> {
    pub(crate) schema: &'a Schema,
    package: &'a str,
    /// Module and Rust name of a type, by its full name.
    places: HashMap<String, (Vec<String>, String)>,
    /// Whether a message lies within another without a list or a map between, by both names.
    boxed: HashMap<String, HashSet<String>>,
}

impl Types<'_> {
    fn collect(&mut self, set: &FileDescriptorSet) -> Result<(), StubError> {
        let mut taken: HashMap<(Vec<String>, String), String> = HashMap::new();
        for file in &set.file {
            let module: Vec<String> = if file.package() == self.package {
                Vec::new()
            } else {
                file.package().split('.').filter(|part| !part.is_empty()).map(snake).collect()
            };
            let mut open = Vec::new();
            let mut add = |types: &mut Self, name: &str, module: &[String], short: &str| {
                let place = (module.to_vec(), camel(short));
                types.places.insert(name.to_owned(), place.clone());
                match taken.insert(place, name.to_owned()) {
                    Some(first) => Err(StubError::SameName { first, second: name.to_owned() }),
                    None => Ok(()),
                }
            };
            for one in &file.enum_type {
                add(self, &join(file.package(), one.name()), &module, one.name())?;
            }
            open.extend(
                file.message_type.iter().map(|message| (file.package().to_owned(), module.clone(), message)),
            );
            while let Some((scope, module, message)) = open.pop() {
                let name = join(&scope, message.name());
                if !message.options.as_ref().is_some_and(|options| options.map_entry()) {
                    add(self, &name, &module, message.name())?;
                }
                let mut inner = module.clone();
                inner.push(snake(message.name()));
                for one in &message.enum_type {
                    add(self, &join(&name, one.name()), &inner, one.name())?;
                }
                let mut fields: HashMap<String, &str> = HashMap::new();
                for field in message
                    .field
                    .iter()
                    .filter(|field| field.oneof_index.is_none() || field.proto3_optional())
                {
                    same_field(&mut fields, &name, field.name())?;
                }
                for (index, oneof) in message.oneof_decl.iter().enumerate() {
                    let is_member = |field: &prost_types::FieldDescriptorProto| {
                        field.oneof_index.is_some_and(|at| usize::try_from(at) == Ok(index))
                            && !field.proto3_optional()
                    };
                    if message.field.iter().any(is_member) {
                        add(self, &join(&name, oneof.name()), &inner, oneof.name())?;
                        same_field(&mut fields, &name, oneof.name())?;
                    }
                }
                open.extend(message.nested_type.iter().map(|nested| (name.clone(), inner.clone(), nested)));
            }
        }
        for layout in self.schema.messages() {
            self.boxed.insert(layout.name().to_owned(), self.held(layout));
        }
        Ok(())
    }

    /// Lists the messages that lie within a message without a list or a map between.
    fn held(&self, layout: &Layout) -> HashSet<String> {
        let mut held = HashSet::new();
        let mut open = vec![layout];
        while let Some(layout) = open.pop() {
            for field in layout.fields().iter().filter(|field| !field.repeated) {
                let Kind::Message(index) = field.kind else { continue };
                let inner = self.schema.message(index);
                if held.insert(inner.name().to_owned()) {
                    open.push(inner);
                }
            }
        }
        held
    }

    /// Finds a type of the package with one of these names in Rust.
    pub(crate) fn named(&self, names: &[String]) -> Option<&str> {
        let mut places = self.places.iter();
        places
            .find(|(_, (module, name))| module.is_empty() && names.contains(name))
            .map(|(name, _)| name.as_str())
    }

    /// Gives the path of a type, seen from a module.
    pub(crate) fn path(&self, full_name: &str, from: &[String]) -> String {
        let Some((module, name)) = self.places.get(full_name) else { return camel(full_name) };
        let same = module.iter().zip(from).take_while(|(a, b)| a == b).count();
        let up = from.iter().skip(same).map(|_| "super::");
        let down = module.iter().skip(same).map(|part| format!("{part}::"));
        up.map(str::to_owned).chain(down).chain([name.clone()]).collect()
    }

    fn value(&self, field: &Field, from: &[String]) -> String {
        match field.kind {
            Kind::Double => "f64".to_owned(),
            Kind::Float => "f32".to_owned(),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "i32".to_owned(),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "i64".to_owned(),
            Kind::Uint32 | Kind::Fixed32 => "u32".to_owned(),
            Kind::Uint64 | Kind::Fixed64 => "u64".to_owned(),
            Kind::Bool => "bool".to_owned(),
            Kind::String => "String".to_owned(),
            Kind::Bytes => "::tidemill_rpc::Bytes".to_owned(),
            Kind::Enum | Kind::Message(_) => self.path(&field.type_name, from),
        }
    }

    fn is_boxed(&self, layout: &Layout, field: &Field) -> bool {
        let inner = (!field.repeated).then(|| self.boxed.get(&field.type_name)).flatten();
        // A message lies within itself also if it is that of the field.
        inner.is_some_and(|held| field.type_name == layout.name() || held.contains(layout.name()))
    }

    /// Gives the entry of a map.
    fn entry(&self, field: &Field) -> Option<&Layout> {
        let Kind::Message(index) = field.kind else { return None };
        let layout = self.schema.message(index);
        (field.repeated && layout.is_map_entry()).then_some(layout)
    }
}

/// One file while its code is written.
struct Scope<'a> {
    types: &'a Types<'a>,
    comments: &'a Comments<'a>,
    wanted: &'a HashSet<String>,
}

/// Field or oneof of a struct.
enum Member<'a> {
    Field { slot: usize, field: &'a Field, index: usize },
    Oneof { index: usize, slots: Vec<usize> },
}

impl Scope<'_> {
    fn message(&self, root: &mut Module, full_name: &str, message: &DescriptorProto, path: &[i32]) {
        let place = self.types.places.get(full_name);
        let (Some((module, name)), Some(layout)) = (place, self.types.schema.message_named(full_name)) else {
            return;
        };
        let mut inner = module.clone();
        inner.push(snake(message.name()));
        if self.wanted.contains(full_name) {
            let members = members(layout, message);
            let out = &mut root.at(module).items;
            self.structure(out, full_name, name, module, layout, message, &members, path);
            implementation(out, self.types, layout, name, message, &members);
            for member in &members {
                if let Member::Oneof { index, slots } = member {
                    self.oneof(&mut root.at(&inner).items, layout, message, *index, slots, &inner, path);
                }
            }
        }
        for (index, nested) in message.nested_type.iter().enumerate() {
            self.message(root, &join(full_name, nested.name()), nested, &part(path, 3, index));
        }
        for (index, one) in message.enum_type.iter().enumerate() {
            self.one_enum(root, &join(full_name, one.name()), one, &part(path, 4, index));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "names and places of one message")]
    fn structure(
        &self,
        out: &mut Lines,
        full_name: &str,
        name: &str,
        module: &[String],
        layout: &Layout,
        message: &DescriptorProto,
        members: &[Member<'_>],
        path: &[i32],
    ) {
        out.line("");
        out.doc(self.comments.get(path), &format!("Message `{full_name}`."));
        out.line("#[derive(Clone, Debug, PartialEq, Default)]");
        out.line(ALLOW);
        if members.is_empty() {
            out.line(format!("pub struct {name} {{}}"));
            return;
        }
        out.line(format!("pub struct {name} {{"));
        for member in members {
            match member {
                Member::Field { field, index, .. } => {
                    out.doc(self.comments.get(&part(path, 2, *index)), &format!("Field {}.", field.number));
                    let value = self.types.value(field, module);
                    let of_type = if let Some([key, value]) = self.types.entry(field).map(Layout::fields) {
                        let (key, value) = (self.types.value(key, module), self.types.value(value, module));
                        format!("::std::collections::BTreeMap<{key}, {value}>")
                    } else if field.repeated {
                        format!("Vec<{value}>")
                    } else if self.types.is_boxed(layout, field) {
                        format!("Option<Box<{value}>>")
                    } else if field.presence == Presence::Explicit {
                        format!("Option<{value}>")
                    } else {
                        value
                    };
                    out.line(format!("pub {}: {of_type},", snake(&field.name)));
                }
                Member::Oneof { index, .. } => {
                    let oneof = oneof_name(message, *index);
                    out.doc(self.comments.get(&part(path, 8, *index)), "One of several fields.");
                    let within = snake(message.name());
                    out.line(format!("pub {}: Option<{within}::{}>,", snake(oneof), camel(oneof)));
                }
            }
        }
        out.line("}");
    }

    #[expect(clippy::too_many_arguments, reason = "names and places of one oneof")]
    fn oneof(
        &self,
        out: &mut Lines,
        layout: &Layout,
        message: &DescriptorProto,
        index: usize,
        slots: &[usize],
        module: &[String],
        path: &[i32],
    ) {
        let name = oneof_name(message, index);
        out.line("");
        out.doc(
            self.comments.get(&part(path, 8, index)),
            &format!("Fields of `{name}`, of which one is there."),
        );
        out.lines(&["#[derive(Clone, Debug, PartialEq)]", ALLOW]);
        out.line(format!("pub enum {} {{", camel(name)));
        for field in slots.iter().filter_map(|slot| layout.fields().get(*slot)) {
            let at = message.field.iter().position(|one| one.name() == field.name).unwrap_or_default();
            out.doc(self.comments.get(&part(path, 2, at)), &format!("Field {}.", field.number));
            let value = self.types.value(field, module);
            let value = if self.types.is_boxed(layout, field) { format!("Box<{value}>") } else { value };
            out.line(format!("{}({value}),", camel(&field.name)));
        }
        out.line("}");
    }

    fn one_enum(&self, root: &mut Module, full_name: &str, one: &EnumDescriptorProto, path: &[i32]) {
        let Some((module, name)) =
            self.types.places.get(full_name).filter(|_| self.wanted.contains(full_name))
        else {
            return;
        };
        let out = &mut root.at(module).items;
        let names: Vec<&str> = one.value.iter().map(|value| value.name()).collect();
        out.line("");
        out.doc(self.comments.get(path), &format!("Enum `{full_name}`."));
        out.line("#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]");
        out.lines(&[ALLOW, &format!("pub struct {name}(pub i32);"), "", ALLOW, &format!("impl {name} {{")]);
        for (index, (value, constant)) in one.value.iter().zip(values(one.name(), &names)).enumerate() {
            let comment = self.comments.get(&part(path, 2, index));
            out.doc(comment, &format!("Value `{}`.", value.name()));
            out.line(format!("pub const {constant}: Self = Self({});", value.number()));
        }
        out.lines(&["", "/// Gives the name in the .proto file; none if it is unknown."]);
        out.lines(&["pub fn name(self) -> Option<&'static str> {", "match self.0 {"]);
        let mut seen = BTreeSet::new();
        for value in one.value.iter().filter(|value| seen.insert(value.number())) {
            out.line(format!("{} => Some({:?}),", value.number(), value.name()));
        }
        out.lines(&["_ => None,", "}", "}", "}", ""]);
        out.line(format!("impl From<i32> for {name} {{"));
        out.lines(&["fn from(number: i32) -> Self {", "Self(number)", "}", "}", ""]);
        out.line(format!("impl From<{name}> for i32 {{"));
        out.lines(&[&format!("fn from(value: {name}) -> Self {{"), "value.0", "}", "}", ""]);
        out.line(format!("impl ::tidemill_rpc::FlatValue for {name} {{"));
        out.lines(&[
            "fn write_at(&self, to: &mut ::tidemill_rpc::FlatWriter<'_>, place: usize) {",
            "::tidemill_rpc::FlatValue::write_at(&self.0, to, place);",
            "}",
            "",
            "fn read_slot(slot: u64, from: &::tidemill_rpc::FlatReader<'_>) -> Result<Self, ::tidemill_rpc::Invalid> {",
            "::tidemill_rpc::FlatValue::read_slot(slot, from).map(Self)",
            "}",
            "",
            "fn is_default(&self) -> bool {",
            "self.0 == 0",
            "}",
            "}",
        ]);
    }
}

fn oneof_name(message: &DescriptorProto, index: usize) -> &str {
    message.oneof_decl.get(index).map(|oneof| oneof.name()).unwrap_or_default()
}

/// Lists the members of a struct in the order of the .proto file.
fn members<'a>(layout: &'a Layout, message: &DescriptorProto) -> Vec<Member<'a>> {
    let mut members = Vec::new();
    let mut oneofs = HashSet::new();
    for (index, field) in message.field.iter().enumerate() {
        let Some(slot) = u32::try_from(field.number()).ok().and_then(|number| layout.field_numbered(number))
        else {
            continue;
        };
        let field = &layout.fields()[slot];
        let Some(oneof) = field.oneof else {
            members.push(Member::Field { slot, field, index });
            continue;
        };
        if oneofs.insert(oneof) {
            let fields = layout.fields().iter().enumerate();
            let slots =
                fields.filter(|(_, field)| field.oneof == Some(oneof)).map(|(slot, _)| slot).collect();
            members.push(Member::Oneof { index: oneof, slots });
        }
    }
    members
}

/// Writes how a message goes into its slots and comes out of them.
fn implementation(
    out: &mut Lines,
    types: &Types<'_>,
    layout: &Layout,
    name: &str,
    message: &DescriptorProto,
    members: &[Member<'_>],
) {
    let (to, from) = if members.is_empty() { ("_", "_") } else { ("to", "from") };
    out.lines(&["", "#[allow(clippy::all)]", &format!("impl ::tidemill_rpc::Message for {name} {{")]);
    out.line(format!("const NAME: &'static str = {:?};", layout.name()));
    out.line(format!("const FIELDS: usize = {};", layout.fields().len()));
    let body = if members.is_empty() { "{}" } else { "{" };
    out.lines(&["", &format!("fn write(&self, {to}: &mut ::tidemill_rpc::FlatWriter<'_>) {body}")]);
    let within = snake(message.name());
    for member in members {
        match member {
            Member::Field { slot, field, .. } => {
                let name = snake(&field.name);
                out.line(if types.entry(field).is_some() {
                    format!("to.map({slot}, &self.{name});")
                } else if field.repeated {
                    format!("to.repeated({slot}, &self.{name});")
                } else if types.is_boxed(layout, field) {
                    format!("to.optional({slot}, self.{name}.as_deref());")
                } else if field.presence == Presence::Explicit {
                    format!("to.optional({slot}, self.{name}.as_ref());")
                } else {
                    format!("to.implicit({slot}, &self.{name});")
                });
            }
            Member::Oneof { index, slots } => {
                let oneof = oneof_name(message, *index);
                out.line(format!("match &self.{} {{", snake(oneof)));
                for (slot, field) in slots.iter().map(|slot| (slot, &layout.fields()[*slot])) {
                    let value = if types.is_boxed(layout, field) { "value.as_ref()" } else { "value" };
                    let variant = format!("{within}::{}::{}", camel(oneof), camel(&field.name));
                    out.line(format!("Some({variant}(value)) => to.set({slot}, {value}),"));
                }
                out.lines(&["None => {}", "}"]);
            }
        }
    }
    if !members.is_empty() {
        out.line("}");
    }
    out.line("");
    out.line(format!(
        "fn read({from}: &::tidemill_rpc::FlatReader<'_>) -> Result<Self, ::tidemill_rpc::Invalid> {{"
    ));
    if members.is_empty() {
        out.lines(&["Ok(Self {})", "}", "}"]);
        return;
    }
    out.line("Ok(Self {");
    for member in members {
        match member {
            Member::Field { slot, field, .. } => {
                let how = if types.entry(field).is_some() {
                    format!("from.map({slot})?")
                } else if field.repeated {
                    format!("from.repeated({slot})?")
                } else if types.is_boxed(layout, field) {
                    format!("from.optional({slot})?.map(Box::new)")
                } else if field.presence == Presence::Explicit {
                    format!("from.optional({slot})?")
                } else {
                    format!("from.implicit({slot})?")
                };
                out.line(format!("{}: {how},", snake(&field.name)));
            }
            Member::Oneof { index, slots } => {
                let oneof = oneof_name(message, *index);
                let mut before = format!("{}: ", snake(oneof));
                for (slot, field) in slots.iter().map(|slot| (slot, &layout.fields()[*slot])) {
                    let value = if types.is_boxed(layout, field) { "Box::new(value)" } else { "value" };
                    let variant = format!("{within}::{}::{}", camel(oneof), camel(&field.name));
                    out.line(format!("{before}if let Some(value) = from.optional({slot})? {{"));
                    out.line(format!("Some({variant}({value}))"));
                    before = "} else ".to_owned();
                }
                out.lines(&["} else {", "None", "},"]);
            }
        }
    }
    out.lines(&["})", "}", "}"]);
}
