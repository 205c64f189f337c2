//! Description that `tidemill models compile` puts into a module.
use serde::Deserialize;
use tidemill_device::value::Element;

/// Version of the description.
const VERSION: u32 = 1;

/// An input or output.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) shape: Vec<usize>,
}

/// Inputs and outputs of a module, and what it needs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct About {
    version: u32,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    /// Records of a run, where the first dimension of all inputs and outputs counts them.
    pub(crate) batch: Option<usize>,
    /// Instruction sets, as the kernel names them.
    needs: Vec<String>,
}

impl About {
    /// Reads a description, and checks that this machine can run the module.
    pub(crate) fn read(text: &str, processor: &str) -> Result<Self, String> {
        let about: Self = serde_json::from_str(text)
            .map_err(|error| format!("its description is not that of `tidemill models compile`: {error}"))?;
        if about.version != VERSION {
            return Err(format!(
                "its description has version {}, and this program reads {VERSION}; compile it again",
                about.version
            ));
        }
        let lacking = lacking(&about.needs, processor);
        if !lacking.is_empty() {
            return Err(format!(
                "it was compiled for a processor with {}, which this one lacks; compile it on a machine of this kind",
                lacking.join(", ")
            ));
        }
        Ok(about)
    }

    /// Checks that the client means these inputs and outputs.
    pub(crate) fn check(&self, inputs: &[String], outputs: &[String]) -> Result<(), String> {
        for (what, ports, wanted) in [("inputs", &self.inputs, inputs), ("outputs", &self.outputs, outputs)] {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            if names != wanted {
                let (names, wanted) = (names.join(", "), wanted.join(", "));
                return Err(format!("its {what} are {names}, but those of its manifest are {wanted}"));
            }
        }
        Ok(())
    }
}

/// Instruction sets that no processor of this `/proc/cpuinfo` has.
fn lacking<'a>(needs: &'a [String], processor: &str) -> Vec<&'a str> {
    let line = processor.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        ["flags", "Features"].contains(&name.trim()).then_some(value)
    });
    let has: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    needs.iter().map(String::as_str).filter(|need| !has.contains(need)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"version": 1, "inputs": [{"name": "x", "element": "float32", "shape": [1, 4]}],
        "outputs": [{"name": "y", "element": "int64", "shape": [1]}], "batch": 1, "needs": ["avx2", "fma"]}"#;

    #[test]
    fn another_processor_is_refused_by_what_it_lacks() {
        let has = "model name\t: x\nflags\t\t: sse avx2 fma avx512f\n";
        let about = About::read(TEXT, has).expect("it has both");
        assert_eq!((about.batch, about.outputs[0].element), (Some(1), Element::Int64));
        for (processor, lacks) in [("flags : avx fma", "with avx2, which"), ("", "with avx2, fma, which")] {
            let refused = About::read(TEXT, processor).expect_err("it lacks some");
            assert!(refused.contains(lacks), "{refused}");
        }
    }

    #[test]
    fn another_description_is_refused() {
        for text in ["{}", &TEXT.replace("\"version\": 1", "\"version\": 2"), &TEXT.replace("int64", "int65")]
        {
            assert!(About::read(text, "flags : avx2 fma").is_err(), "{text}");
        }
    }

    #[test]
    fn a_manifest_with_other_inputs_is_refused() {
        let about = About::read(TEXT, "Features : avx2 fma").expect("a description");
        let names = |name: &str| vec![name.to_owned()];
        assert_eq!(about.check(&names("x"), &names("y")), Ok(()));
        let refused = about.check(&names("image"), &names("y")).expect_err("another input");
        assert_eq!(refused, "its inputs are x, but those of its manifest are image");
        assert!(about.check(&names("x"), &[]).is_err());
    }
}
