//! Ports of sources, by the options that their kinds declare: a listening one must be reachable from outside, a connecting one
//! must reach its server.
use tidemill_spec::kinds::{KindTable, texts};
use tidemill_spec::workflow::{Source, Workflow};

/// Ports of the sources of a worker, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    /// Ports at which sources listen for others.
    pub(crate) listens: Vec<u16>,
    /// Addresses of these ports, as `HOST:PORT`.
    pub(crate) addresses: Vec<String>,
    /// Ports of servers to which sources connect.
    pub(crate) connects: Vec<u16>,
}

/// Parses hosts and ports in these options of a source.
fn addresses<'a>(source: &'a Source, options: &[&str]) -> impl Iterator<Item = (&'a str, u16)> {
    texts(&source.options, options).into_iter().filter_map(|address| {
        let (host, port) = address.rsplit_once(':')?;
        Some((host, port.parse().ok()?))
    })
}

/// Whether only processes in its container reach a listener at this host.
fn is_inside(host: &str) -> bool {
    host == "localhost" || host == "[::1]" || host.starts_with("127.")
}

/// Returns the ports of a worker's sources.
pub(super) fn of(workflow: &Workflow, kinds: &KindTable, has: impl Fn(&str) -> bool) -> Streams {
    let mut found = Streams::default();
    for source in workflow.sources.iter().filter(|source| has(source.id.as_str())) {
        let facts = kinds.source(&source.kind);
        for (host, port) in addresses(source, facts.listens).filter(|(host, _)| !is_inside(host)) {
            found.listens.push(port);
            found.addresses.push(format!("{host}:{port}"));
        }
        found.connects.extend(addresses(source, facts.connects).map(|(_, port)| port));
    }
    for ports in [&mut found.listens, &mut found.connects] {
        ports.sort_unstable();
        ports.dedup();
    }
    found
}

/// Returns sources that listen at a specific address, with it: they are unreachable from outside, or the container, which
/// has its own address, lacks this one.
pub(crate) fn unheard(workflow: &Workflow, kinds: &KindTable) -> Vec<(String, String)> {
    let of = |source: &Source| -> Vec<(String, String)> {
        let all = addresses(source, kinds.source(&source.kind).listens);
        let unheard = all.filter(|(host, _)| !matches!(*host, "0.0.0.0" | "[::]"));
        unheard.map(|(host, port)| (source.id.as_str().to_owned(), format!("{host}:{port}"))).collect()
    };
    workflow.sources.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::kinds::SourceFacts;

    #[test]
    fn ports_are_those_of_the_sources_that_a_worker_has() {
        let workflow = "version: 1\nname: doors\nsources:\n\
             - {id: a, kind: tcp, options: {listen: '0.0.0.0:4100', columns: {n: int64}}}\n\
             - {id: b, kind: tcp, options: {listen: '127.0.0.1:4101', columns: {n: int64}}}\n\
             - {id: c, kind: tcp, options: {connect: 'gate.example:4102', columns: {n: int64}}}\n\
             - {id: d, kind: tcp, options: {listen: '0.0.0.0:4103', columns: {n: int64}}}\n\
             - {id: e, kind: tcp, options: {listen: '10.0.0.5:4104', columns: {n: int64}}}\n\
             - {id: f, kind: tcp, options: {listen: '[::]:4105', columns: {n: int64}}}\n\
             sinks:\n- {id: out, kind: discard, input: a}\n- {id: out2, kind: discard, input: b}\n\
             - {id: out3, kind: discard, input: c}\n- {id: out4, kind: discard, input: d}\n\
             - {id: out5, kind: discard, input: e}\n- {id: out6, kind: discard, input: f}\n";
        let workflow = Workflow::parse(workflow, "workflow.yaml").unwrap_or_else(|found| panic!("{found}"));
        let mut kinds = KindTable::default();
        kinds.add_source(
            "tcp",
            SourceFacts { listens: &["listen"], connects: &["connect"], ..SourceFacts::DEFAULT },
        );
        let streams = of(&workflow, &kinds, |source| ["a", "b", "c"].contains(&source));
        assert_eq!(
            streams,
            Streams { listens: vec![4100], addresses: vec!["0.0.0.0:4100".to_owned()], connects: vec![4102] }
        );
        let expected = [("b", "127.0.0.1:4101"), ("e", "10.0.0.5:4104")];
        assert_eq!(
            unheard(&workflow, &kinds),
            expected.map(|(source, at)| (source.to_owned(), at.to_owned()))
        );
    }
}
