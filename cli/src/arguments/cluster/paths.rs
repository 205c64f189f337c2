//! Options for the paths of a machine.
use super::super::explained;
use clap::Args;
use std::time::Duration;
use tidemill_session::{Hellos, Options, OwnPath, Policy, is_path_name};
use tidemill_spec::units::{TimeSpan, TransferPrice, UnitError};

/// The paths by which a machine reaches others.
#[derive(Debug, Args)]
pub(crate) struct PathArguments {
    /// Path to other machines, such as `fibre=eth0` or `lte=wwan0,4 $/GiB`: an interface or an address of this machine, and its
    /// price; repeat for several, the preferred one first. Default: one path, as the system chooses.
    #[arg(long = "path", value_name = "NAME=INTERFACE[,PRICE]", value_parser = path)]
    paths: Vec<OwnPath>,
    /// Use of the paths: `prefer` the first that works, `spread` over all, or the `cheapest` that works.
    #[arg(long = "path-rule", value_name = "RULE", default_value = "prefer", value_parser = rule)]
    rule: Policy,
    /// Time between two signs of life on a path in use. After three missing ones the path is left. Longer is cheaper, and the
    /// longer one of both sides counts: 50ms are 11 GiB a month for each process on the other side.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = hello)]
    hello: Duration,
}

impl PathArguments {
    /// The options of sessions that they are.
    pub(crate) fn options(&self) -> Options {
        let usual = Hellos::default();
        let hellos = Hellos { every: self.hello, idle: usual.idle.max(self.hello), ..usual };
        Options { paths: self.paths.clone(), policy: self.rule, hellos, drained: Vec::new() }
    }
}

fn rule(text: &str) -> Result<Policy, String> {
    text.parse()
}

fn hello(text: &str) -> Result<Duration, String> {
    let time = text.parse::<TimeSpan>().map_err(|error| explained(&error))?;
    let time = Duration::from_nanos(time.0);
    match time {
        _ if time < Duration::from_millis(10) => Err("10ms is the least".to_owned()),
        _ if time > Duration::from_secs(10) => Err("10s is the most".to_owned()),
        time => Ok(time),
    }
}

fn path(text: &str) -> Result<OwnPath, String> {
    let form = "write NAME=INTERFACE or NAME=ADDRESS, and a price if it has one: 'lte=wwan0,4 $/GiB'";
    let (id, rest) = text.split_once('=').filter(|(id, _)| is_path_name(id)).ok_or(form)?;
    let (by, price) = match rest.split_once(',') {
        Some((by, price)) => {
            (by, price.trim().parse::<TransferPrice>().map_err(|error: UnitError| explained(&error))?)
        }
        None => (rest, TransferPrice::default()),
    };
    if by.is_empty() {
        return Err(form.to_owned());
    }
    let address = by.parse().ok();
    let interface = address.is_none().then(|| by.to_owned());
    Ok(OwnPath { id: id.to_owned(), interface, address, price: price.0 * f64::from(1 << 30) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_name_an_interface_or_address_and_perhaps_a_price() {
        let lte = path("lte=wwan0,4 $/GiB").unwrap();
        assert_eq!((lte.id.as_str(), lte.interface.as_deref(), lte.address), ("lte", Some("wwan0"), None));
        assert!((lte.price - 4.0).abs() < 1e-9);
        let fibre = path("fibre=10.0.0.2").unwrap();
        assert_eq!((fibre.interface, fibre.address, fibre.price), (None, Some([10, 0, 0, 2].into()), 0.0));
        for text in ["lte", "=eth0", "l te=eth0", "lte=", "lte=wwan0,4 apples"] {
            assert!(path(text).is_err(), "{text}");
        }
        assert!(hello("1ms").is_err() && hello("20s").is_err());
        assert_eq!(hello("200ms"), Ok(Duration::from_millis(200)));
    }
}
