//! Calls as people see them.
use super::board::{Calls, Method};
use crate::protocol::{CallCounts, MethodView, ServiceView};

impl Calls {
    /// Everything of calls that this user may see.
    pub(crate) fn list(&self, user: u32) -> (CallCounts, Vec<ServiceView>) {
        let may = |of: u32| of == user || self.is_trusted(user);
        let mut views = Vec::new();
        for (service, servers) in &self.servers {
            for server in servers.iter().filter(|of| may(of.user)) {
                let program = self.ends.get(&server.token).map(|end| end.program.clone());
                views.push(ServiceView {
                    service: service.clone(),
                    program: program.unwrap_or_default(),
                    user: server.user,
                    serves: true,
                    calls: server.calls,
                    waiting: server.waiting as u64,
                    at: Vec::new(),
                    methods: Vec::new(),
                });
            }
        }
        let mut bindings: Vec<_> = self.bindings.iter().filter(|(_, of)| may(of.user)).collect();
        bindings.sort_by_key(|(lane, _)| **lane);
        for (lane, binding) in bindings {
            let program = binding.methods.first().map(|method| method.edge.from.clone());
            let policies = |method: &Method| {
                let of = method.policies.as_ref().filter(|(version, _)| *version == self.version);
                let ids = of.map(|(_, of)| of.iter().map(|policy| policy.spec.borrow().id.clone()).collect());
                ids.unwrap_or_default()
            };
            let method = |method: &Method| MethodView {
                method: method.edge.to.clone(),
                calls: method.calls,
                failed: method.failed,
                policies: policies(method),
            };
            let remote = binding.remote.iter().flatten();
            views.push(ServiceView {
                service: binding.service.clone(),
                program: program.unwrap_or_default(),
                user: binding.user,
                serves: false,
                calls: binding.methods.iter().map(|method| method.calls).sum(),
                waiting: self.calls.values().filter(|call| call.lane == *lane).count() as u64,
                at: remote
                    .map(|of| format!("{}{}", of.address, if of.is_bound { "" } else { " (lost)" }))
                    .collect(),
                methods: binding.methods.iter().map(method).collect(),
            });
        }
        (self.counts, views)
    }
}
