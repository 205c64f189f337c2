//! Groups of programs over the workers of a cluster.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the transport service of a worker takes part in groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupDuties {
    /// Its rack; empty: all workers without one are one rack.
    #[serde(default)]
    pub rack: String,
    /// Its pod: racks with short paths between them; empty: all racks without one are one pod.
    #[serde(default)]
    pub pod: String,
    /// Where the service that introduces ranks is reached, `HOST:PORT`; none: it is that service.
    #[serde(default)]
    pub conductor: Option<String>,
}
