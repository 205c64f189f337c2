//! The devices in the options of a source: `device` alone, or `devices` by name.
use crate::camera::Origin;
use crate::limits::wrong;
use tidemill_operators::kind::EndContext;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::value::{Node, Value};

/// Returns the devices by name: that of `device` is named after the source. `default` is taken where neither is given.
pub(crate) fn of_options(
    context: &EndContext<'_>,
    device: Option<&Located<String>>,
    devices: Option<&Value>,
    default: &str,
    errors: &mut Diagnostics,
) -> Vec<(String, Origin)> {
    let source = context.id.value.clone();
    let example = format!("`devices: {{desk: {default}}}`");
    match (device, devices) {
        (Some(device), Some(_)) => {
            let text = "`device` and `devices` are both given";
            errors.push(wrong(text, "write `device` for one, `devices` for several").at(device.span.clone()));
            Vec::new()
        }
        (Some(device), None) => {
            if let Err(text) = parse(device) {
                errors.push(
                    wrong(text, &format!("write its name, such as `{default}`")).at(device.span.clone()),
                );
            }
            vec![(source, Origin::Device(device.value.clone()))]
        }
        (None, None) => vec![(source, Origin::Device(default.to_owned()))],
        (None, Some(devices)) => {
            let Node::Map(entries) = &devices.node else {
                let text = format!("`devices` is {}", devices.kind());
                errors
                    .push(wrong(text, &format!("write a name for each: {example}")).at(devices.span.clone()));
                return Vec::new();
            };
            if entries.is_empty() {
                errors.push(
                    wrong("there is no device", &format!("write one: {example}")).at(devices.span.clone()),
                );
            }
            let mut found = Vec::new();
            for entry in entries {
                match &entry.value.node {
                    Node::Text(text) => match parse(&text.value) {
                        Ok(origin) => found.push((entry.key.value.clone(), origin)),
                        Err(text) => {
                            let help = format!("write its name: {example}");
                            errors.push(wrong(text, &help).at(entry.value.span.clone()));
                        }
                    },
                    _ => {
                        let text = format!("the device `{}` is {}", entry.key.value, entry.value.kind());
                        let help = format!("write its name: {example}");
                        errors.push(wrong(text, &help).at(entry.value.span.clone()));
                    }
                }
            }
            found
        }
    }
}

/// Reads the name of a device: one word, that no program takes for an option.
pub(crate) fn parse(text: &str) -> Result<Origin, String> {
    let is_odd = |character: char| character.is_control() || character.is_whitespace();
    if text.is_empty() || text.starts_with('-') || text.contains(is_odd) {
        return Err("it is not the name of a device".to_owned());
    }
    Ok(Origin::Device(text.to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::path::Path;
    use tidemill_spec::{span::SourceFile, yaml};

    fn read(text: &str) -> Result<String, String> {
        let value = yaml::parse(&SourceFile::new("workflow.yaml", text)).unwrap();
        let id = "desk".into();
        let context = EndContext::new(&id, Path::new("."));
        let mut errors = Diagnostics::new();
        let found = of_options(&context, None, Some(&value), "/dev/video0", &mut errors);
        let shown = found.iter().map(|(name, origin)| format!("{name}={origin}"));
        errors.into_result(shown.collect::<Vec<_>>().join(" ")).map_err(|errors| errors.render(false))
    }

    #[test]
    fn devices_have_names() {
        assert_eq!(read("{a: /dev/video0, b: 'hw:1,0'}").unwrap(), "a=/dev/video0 b=hw:1,0");
        for (text, expected) in [
            ("{}", "there is no device"),
            ("[/dev/video0]", "`devices` is a list"),
            ("{a: -i}", "not the name of a device"),
            ("{a: 'x y'}", "not the name of a device"),
            ("{a: [1]}", "the device `a` is a list"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected) && error.contains("desk: /dev/video0"), "{text}: {error}");
        }
    }
}
