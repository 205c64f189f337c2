//! Places of sessions, and the paths between two hosts that follow from them.
use crate::header::NAME;
use std::fmt::{Display, Formatter};
use std::net::IpAddr;
use std::str::FromStr;

/// A way out of this host.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnPath {
    /// Its name.
    pub id: String,
    /// The network interface that it leaves by, such as `wwan0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The address of this host that it leaves from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Price of what is sent or received over it, dollars per GiB.
    #[serde(default)]
    pub price: f64,
}

/// One address of the side that listens, with the name of its path if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) path: Option<String>,
    /// `HOST:PORT`.
    pub(crate) at: String,
}

/// The place where a side listens: `HOST:PORT`, or one for each of several paths: `fibre=10.0.0.2:7001,lte=10.8.0.2:7001`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) Vec<Door>);

pub(crate) const FORM: &str = "HOST:PORT or session://PATH=HOST:PORT,PATH=HOST:PORT";

/// Returns whether a text can name a path.
pub fn is_path_name(text: &str) -> bool {
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || "-_.>".contains(c);
    !text.is_empty() && text.len() <= NAME && text.chars().all(is_in_name)
}

fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let door = |part: &str| {
            let (path, at) = match part.split_once('=') {
                Some((path, at)) => (Some(path), at),
                None => (None, part),
            };
            let is_right = path.is_none_or(is_path_name) && is_host_and_port(at);
            is_right.then(|| Door { path: path.map(str::to_owned), at: at.to_owned() }).ok_or(())
        };
        text.split(',').map(door).collect::<Result<Vec<_>, ()>>().map(Self)
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for (index, door) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match &door.path {
                Some(path) => write!(f, "{comma}{path}={}", door.at)?,
                None => write!(f, "{comma}{}", door.at)?,
            }
        }
        Ok(())
    }
}

/// One path from this host to a place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Route {
    pub(crate) id: String,
    /// How it leaves this host; none: as the system chooses.
    pub(crate) own: Option<OwnPath>,
    /// `HOST:PORT`.
    pub(crate) to: String,
}

impl Route {
    pub(crate) fn price(&self) -> f64 {
        self.own.as_ref().map_or(0.0, |own| own.price)
    }
}

/// Name of the path where nobody named one.
const ONLY: &str = "default";

/// Returns the paths to a place, in the order of this host's own paths. Paths of one name belong together; where no
/// name is common, each own path leads to each address.
pub(crate) fn routes(own: &[OwnPath], place: &Place) -> Vec<Route> {
    let doors = &place.0;
    if own.is_empty() {
        let named = |(index, door): (usize, &Door)| {
            let id = door.path.clone().unwrap_or_else(|| match (doors.len(), index) {
                (1, _) => ONLY.to_owned(),
                (_, index) => format!("{}", index + 1),
            });
            Route { id, own: None, to: door.at.clone() }
        };
        return doors.iter().enumerate().map(named).collect();
    }
    let mut pairs = Vec::new();
    for path in own {
        for door in doors.iter().filter(|door| door.path.as_deref() == Some(&path.id)) {
            pairs.push(Route { id: path.id.clone(), own: Some(path.clone()), to: door.at.clone() });
        }
    }
    if !pairs.is_empty() {
        return pairs;
    }
    for path in own {
        for (index, door) in doors.iter().enumerate() {
            let id = match (doors.len(), &door.path) {
                (1, _) => path.id.clone(),
                (_, Some(theirs)) => format!("{}>{theirs}", path.id),
                (_, None) => format!("{}>{}", path.id, index + 1),
            };
            pairs.push(Route { id, own: Some(path.clone()), to: door.at.clone() });
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        text.parse().unwrap()
    }

    #[test]
    fn places_are_texts() {
        for text in ["hub:1", "[::1]:0", "fibre=10.0.0.2:7,lte=10.8.0.2:9", "a=h:1,h:2"] {
            assert_eq!(place(text).to_string(), text);
        }
        for text in ["", "hub", "hub:x", "=hub:1", "a b=hub:1", "a=hub:1,", ":1"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn paths_of_one_name_belong_together() {
        let own = |id: &str| OwnPath { id: id.into(), ..OwnPath::default() };
        let ids = |own: &[OwnPath], text: &str| {
            let routes = routes(own, &place(text));
            routes.iter().map(|route| format!("{} {}", route.id, route.to)).collect::<Vec<_>>()
        };
        assert_eq!(ids(&[], "hub:1"), ["default hub:1"]);
        assert_eq!(ids(&[], "fibre=a:1,b:2"), ["fibre a:1", "2 b:2"]);
        let both = [own("fibre"), own("lte")];
        assert_eq!(ids(&both, "lte=b:2,fibre=a:1"), ["fibre a:1", "lte b:2"]);
        assert_eq!(ids(&both, "hub:1"), ["fibre hub:1", "lte hub:1"]);
        assert_eq!(ids(&both, "lte=b:2"), ["lte b:2"]);
        assert_eq!(ids(&[own("fibre")], "x=a:1,b:2"), ["fibre>x a:1", "fibre>2 b:2"]);
    }
}
