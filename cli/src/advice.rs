//! Advice for likely mistakes in arguments.
use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Adds what helps to an error of these arguments, the first of which is the program.
///
/// `-o FILE` names the output file of many other programs; here `-o` is the form of the output.
pub(crate) fn advised(mut told: Error, command: &Command, words: &[String]) -> Error {
    let text = |kind| match told.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let is_of_form = text(ContextKind::InvalidArg).is_some_and(|of| of.starts_with("--output"));
    let value = text(ContextKind::InvalidValue).filter(|value| value.contains(['.', '/']));
    let Some(file) = value.filter(|_| is_of_form && told.kind() == ErrorKind::InvalidValue) else {
        return told;
    };
    let named = words.iter().skip(1);
    let verb = named.fold(command, |verb, word| verb.find_subcommand(word).unwrap_or(verb));
    let how = match verb.get_arguments().any(|argument| argument.get_id() == "out") {
        true => format!("`--out {file}` writes a file"),
        false => format!("`> {file}` writes it to a file"),
    };
    let tip = format!("`-o` and `--output` are the form of the output; {how}");
    told.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments;

    fn told(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let command = arguments::command();
        let error = command.clone().try_get_matches_from(&words).expect_err("the arguments are wrong");
        advised(error, &command, &words).render().to_string()
    }

    #[test]
    fn a_file_for_the_form_of_the_output_is_advised_against() {
        let plan = told("tidemill plan w.yaml --infra i.yaml --profiles p.yaml -o plan.yaml");
        assert!(plan.contains("`--out plan.yaml` writes a file"), "{plan}");
        assert!(plan.contains("possible values"), "{plan}");
        let requirements = told("tidemill requirements w.yaml --output a/b");
        assert!(requirements.contains("`> a/b` writes it to a file"), "{requirements}");
        let form = told("tidemill plan w.yaml --infra i.yaml -o jsn");
        assert!(!form.contains("writes a file") && form.contains("json"), "{form}");
        assert!(!told("tidemill plan w.yaml --gap a.b").contains("`--out"));
    }
}
