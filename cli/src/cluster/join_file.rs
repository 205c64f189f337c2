//! The join file of a worker: the controller's address and a join token.
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_identity::JoinAddress;

/// Reads the file: a line with the address, and one with the token; without the latter the worker must have joined before.
pub(crate) fn read(file: &Path) -> Result<(JoinAddress, Option<String>), Failure> {
    parse(&super::connect::read(file)?).map_err(|text| {
        Failure::new(Kind::Configuration, format!("{}: {text}", file.display())).with_help(
            "write two lines: the address that the controller prints, `tidemill://HOST:PORT/FINGERPRINT`, and a token from `tidemill token`",
        )
    })
}

fn parse(text: &str) -> Result<(JoinAddress, Option<String>), String> {
    let (mut address, mut token) = (None, None);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let is_address = line.starts_with("tidemill://");
        match line {
            "" => {}
            _ if is_address && address.is_none() => {
                address =
                    Some(line.parse::<JoinAddress>().map_err(|error| format!("line {number}: {error}"))?);
            }
            _ if is_address => return Err(format!("line {number}: a second address")),
            _ if token.is_none() => token = Some(line.to_owned()),
            _ => return Err(format!("line {number}: a second token")),
        }
    }
    address.map(|address| (address, token)).ok_or_else(|| "no line with an address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse;

    const ADDRESS: &str =
        "tidemill://hub:7420/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn an_address_and_a_token_in_any_order() {
        for text in [format!("{ADDRESS}\nsecret\n"), format!("\n  secret\n\n{ADDRESS}  ")] {
            let (address, token) = parse(&text).unwrap();
            assert_eq!((address.to_string().as_str(), token.as_deref()), (ADDRESS, Some("secret")));
        }
        assert_eq!(parse(ADDRESS).unwrap().1, None);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let wrong = |text: &str| parse(text).unwrap_err();
        assert!(wrong("").contains("no line with an address"));
        assert!(wrong("secret").contains("no line with an address"));
        assert!(wrong("secret\ntidemill://hub").starts_with("line 2: "));
        assert!(wrong(&format!("{ADDRESS}\n{ADDRESS}")).starts_with("line 2: a second address"));
        assert!(wrong(&format!("{ADDRESS}\na\nb")).starts_with("line 3: a second token"));
    }
}
