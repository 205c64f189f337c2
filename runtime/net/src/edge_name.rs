//! Names of edges, and patterns of them.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The two operators that an edge joins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct EdgeName {
    /// The workflow.
    pub workflow: String,
    /// The source or operator that sends.
    pub from: String,
    /// The operator or sink that receives.
    pub to: String,
}

impl fmt::Display for EdgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.from, self.to)
    }
}

/// A pattern of edges: `cameras -> detect`, `cameras -> *`, `*`; or of calls, from a program to a method: `* -> shop.Prices/Get`,
/// `till -> shop.Prices/*`, `* -> */*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EdgePattern {
    /// Edges of this workflow only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// None: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// None: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl EdgePattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let side = |text: &str| match text.trim() {
            "" => Err(()),
            "*" => Ok(None),
            name if name.contains(char::is_whitespace) || name.contains('>') => Err(()),
            name => Ok(Some(name.to_owned())),
        };
        let form =
            || format!("`{text}` is no edge: write `FROM -> TO`, with `*` for any, or `*` for all edges");
        let (from, to) = match text.split_once("->") {
            Some((from, to)) => (side(from).map_err(|()| form())?, side(to).map_err(|()| form())?),
            None if text.trim() == "*" => (None, None),
            None => return Err(form()),
        };
        Ok(Self { workflow: None, from, to })
    }

    /// Returns whether it is a pattern of this edge.
    pub fn matches(&self, edge: &EdgeName) -> bool {
        let fits = |pattern: &Option<String>, name: &str| pattern.as_ref().is_none_or(|one| one == name);
        if let Some((service, method)) = edge.to.split_once('/') {
            // A call: policies of edges in general are not for it.
            let Some((services, methods)) = self.to.as_ref().and_then(|to| to.split_once('/')) else {
                return false;
            };
            let fits = |pattern: &str, name: &str| pattern == "*" || pattern == name;
            let is_from = self.from.as_ref().is_none_or(|from| *from == edge.from);
            return self.workflow.is_none() && is_from && fits(services, service) && fits(methods, method);
        }
        fits(&self.workflow, &edge.workflow) && fits(&self.from, &edge.from) && fits(&self.to, &edge.to)
    }
}

impl fmt::Display for EdgePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |name: &Option<String>| name.clone().unwrap_or_else(|| "*".to_owned());
        match (&self.from, &self.to) {
            (None, None) => f.write_str("*"),
            (from, to) => write!(f, "{} -> {}", side(from), side(to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_and_match() {
        let edge = EdgeName { workflow: "city".into(), from: "cameras".into(), to: "detect".into() };
        for (text, matches) in [
            ("cameras -> detect", true),
            ("cameras->detect", true),
            ("cameras -> *", true),
            ("* -> detect", true),
            ("*", true),
            ("* -> *", true),
            ("detect -> cameras", false),
            ("* -> sink", false),
        ] {
            let pattern = EdgePattern::parse(text).expect(text);
            assert_eq!(pattern.matches(&edge), matches, "{text}");
            assert_eq!(EdgePattern::parse(&pattern.to_string()), Ok(pattern));
        }
        let call = EdgeName { workflow: "rpc".into(), from: "till".into(), to: "shop.Prices/Get".into() };
        for (text, matches) in [
            ("* -> shop.Prices/Get", true),
            ("till -> shop.Prices/*", true),
            ("* -> */*", true),
            ("other -> */*", false),
            ("* -> shop.Prices/Watch", false),
            ("* -> *", false),
            ("*", false),
        ] {
            assert_eq!(EdgePattern::parse(text).expect(text).matches(&call), matches, "{text}");
        }
        assert!(!EdgePattern::parse("* -> */*").expect("a pattern").matches(&edge));
        let other = EdgePattern { workflow: Some("village".into()), ..EdgePattern::default() };
        assert!(!other.matches(&edge));
        for text in ["", "cameras", "-> detect", "cameras ->", "a b -> c", "a -> b -> c"] {
            assert!(EdgePattern::parse(text).is_err(), "{text}");
        }
    }
}
