//! The inputs and outputs of a file compared with the names that a manifest has for them.
use super::token_loop::CacheTensor;
use crate::error::{ModelError, Role};
use crate::facts::{Dimension, ModelFacts, Port, PortElement};
use tidemill_spec::manifest::Cache;
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::ElementType;

/// The differences found.
pub(super) struct Ports {
    /// Section of the manifest.
    pub(super) section: &'static str,
    pub(super) errors: Vec<ModelError>,
}

impl Ports {
    pub(super) fn new(section: &'static str) -> Self {
        Self { section, errors: Vec::new() }
    }

    pub(super) fn wrong(&mut self, message: String, span: &Span) {
        self.errors.push(ModelError::Decoder { section: self.section, message, span: span.clone() });
    }

    pub(super) fn position(&mut self, ports: &[Port], role: Role, name: &Located<String>) -> Option<usize> {
        let found = ports.iter().position(|port| port.name == name.value);
        if found.is_none() {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            self.errors.push(ModelError::NoPort {
                role,
                name: name.value.clone(),
                available: names.join(", "),
                span: name.span.clone(),
            });
        }
        found
    }

    /// An input that is fed must exist and have the element type that it is fed with.
    pub(super) fn input(&mut self, ports: &[Port], name: &Located<String>, elements: &[&str]) {
        if let Some(at) = self.position(ports, Role::Input, name)
            && !elements.contains(&ports[at].element.to_string().as_str())
        {
            let message =
                format!("`{name}` gets {}, but is {}", elements.join(" or "), ports[at].type_text());
            self.wrong(message, &name.span);
        }
    }

    pub(super) fn not_fed(&mut self, port: &Port, advice: &str, span: &Span) {
        let (name, found, span) = (port.name.clone(), port.type_text(), span.clone());
        self.errors.push(ModelError::NotFed { name, found, advice: advice.to_owned(), span });
    }

    /// Compares an input of the cache, whose name is `rest` after the prefix, with its output.
    pub(super) fn cache_tensor(
        &mut self,
        cache: &Cache,
        port: &Port,
        rest: &str,
        facts: &ModelFacts,
    ) -> Option<CacheTensor> {
        let name = format!("{}{rest}", cache.outputs);
        let Some(output) = facts.outputs.iter().position(|output| output.name == name) else {
            self.wrong(
                format!("`{}` needs the output `{name}`, which the file does not have", port.name),
                &cache.outputs.span,
            );
            return None;
        };
        let (Some(shape), PortElement::Known(element @ (ElementType::Float32 | ElementType::Float16))) =
            (&port.shape, &port.element)
        else {
            self.wrong(
                format!(
                    "`{}` is {}; a cache is float32 or float16 of a known rank",
                    port.name,
                    port.type_text()
                ),
                &cache.inputs.span,
            );
            return None;
        };
        let size = |(at, dimension): (usize, &Dimension)| match dimension {
            Dimension::Fixed(size) => *size,
            Dimension::Free(_) => usize::from(at == 0),
        };
        Some(CacheTensor {
            output,
            empty: shape.iter().enumerate().map(size).collect(),
            element: *element,
            fixed: cache.fixed.as_ref().is_some_and(|part| port.name.contains(part.as_str())),
        })
    }

    /// No input of the file belongs to the cache.
    pub(super) fn no_cache(&mut self, cache: &Cache) {
        self.wrong(format!("no input of the file starts with `{}`", cache.inputs), &cache.inputs.span);
    }
}
