//! Interprets messages of the engine and of Compose. They differ between versions; unknown ones are passed on unchanged.
use crate::cause::Cause;

/// Returns the cause of a program's failure at `what`, from its message.
pub(crate) fn diagnose(machine: &str, what: &str, text: &str) -> Cause {
    let lower = text.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let machine = machine.to_owned();
    if has(&["permission denied while trying to connect", "got permission denied"]) {
        return Cause::NotPermitted { machine };
    }
    if has(&[
        "cannot connect to the docker daemon",
        "is the docker daemon running",
        "couldn't connect to docker daemon",
    ]) {
        return Cause::NoEngine { machine, text: last(text) };
    }
    if has(&["port is already allocated", "address already in use", "ports are not available"]) {
        return Cause::PortTaken { machine, port: port_in(text), by: None };
    }
    if has(&["no space left on device"]) {
        return Cause::DiskFull { machine, text: last(text) };
    }
    if has(&["non-overlapping ipv4", "all predefined address pools have been fully subnetted"]) {
        return Cause::NoNetwork { machine };
    }
    if has(&["range of cpus is from"]) {
        return Cause::TooFewProcessors { machine, text: last(text) };
    }
    // Before the search for "manifest for".
    if has(&["no matching manifest", "does not match the detected host platform", "exec format error"]) {
        return Cause::ArchitectureDiffers {
            machine,
            architecture: "another one".to_owned(),
            image: image_in(text),
            image_architecture: "other processors".to_owned(),
        };
    }
    if has(&[
        "no such image",
        "pull access denied",
        "manifest unknown",
        "manifest for",
        "repository does not exist",
    ]) {
        return Cause::ImageMissing { machine, image: image_in(text) };
    }
    Cause::Other { machine, what: what.to_owned(), text: last(text) }
}

/// Returns the last lines, without colours.
fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join("\n")
}

/// Returns the port in a message, as in `0.0.0.0:7420` or `:7420`; 0 if there is none.
fn port_in(text: &str) -> u16 {
    let mut numbers = text.match_indices(':').filter_map(|(at, _)| {
        let digits: String = text[at + 1..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u16>().ok()
    });
    numbers.rfind(|port| *port > 0).unwrap_or(0)
}

/// Returns the image in a message.
fn image_in(text: &str) -> String {
    let after = |marker: &str| text.split(marker).nth(1);
    let found = after("No such image: ")
        .or_else(|| after("pull access denied for "))
        .or_else(|| after("manifest for "));
    let found = found.and_then(|rest| rest.split([',', ' ', '\n']).next()).unwrap_or_default();
    if found.is_empty() { "of the deployment".to_owned() } else { found.trim_matches('"').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> &'static str {
        diagnose("box", "up", text).code()
    }

    #[test]
    fn words_of_several_versions_are_understood() {
        let cases = [
            (
                "Error response from daemon: driver failed programming external connectivity on endpoint x: Bind for 127.0.0.1:7420 failed: port is already allocated",
                "port_taken",
            ),
            ("listen tcp4 0.0.0.0:7420: bind: address already in use", "port_taken"),
            (
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
                "no_engine",
            ),
            ("Got permission denied while trying to connect to the Docker daemon socket", "not_permitted"),
            ("write /var/lib/docker/tmp/x: no space left on device", "no_disk"),
            (
                "could not find an available, non-overlapping IPv4 address pool among the defaults",
                "no_network",
            ),
            ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", "too_few_processors"),
            ("Error: No such image: tidemill:9", "image_missing"),
            (
                "standard_init_linux.go:228: exec user process caused: exec format error",
                "architecture_differs",
            ),
            ("no matching manifest for linux/arm64/v8 in the manifest list entries", "architecture_differs"),
            ("manifest for tidemill:9 not found: manifest unknown", "image_missing"),
            ("something nobody has seen", "other"),
        ];
        for (text, expected) in cases {
            assert_eq!(code(text), expected, "{text}");
        }
    }

    #[test]
    fn ports_and_images_are_found_in_the_words() {
        let port = diagnose("box", "up", "Bind for 127.0.0.1:7420 failed: port is already allocated");
        assert_eq!(port, Cause::PortTaken { machine: "box".into(), port: 7420, by: None });
        let image = diagnose("box", "up", "Error: No such image: tidemill:9\n");
        assert_eq!(image, Cause::ImageMissing { machine: "box".into(), image: "tidemill:9".into() });
    }
}
