//! tonic with a proxy beside the client and one beside each server, as a mesh has them: a call goes through two. Each proxy
//! has one worker, which is the least processor time for it. Filters are in the proxy beside the client.
use crate::contender::{Contender, Gate, Running, Serve};
use crate::load::{Filter, Load, Outcome, Scenario, Workload};
use crate::process::{Room, wait_for};
use anyhow::Context;
use std::path::Path;
use std::process::Command;

/// A proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// nginx, by `grpc_pass`.
    Nginx,
    /// HAProxy, HTTP/2 on both sides.
    Haproxy,
    /// Envoy.
    Envoy,
}

/// tonic between proxies.
pub struct Sidecars(pub Proxy);

/// A port that a proxy listens on, the one that it passes calls on to, and what it checks.
struct Route(u16, u16, Filter);

impl Proxy {
    fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
        }
    }

    fn configuration(self, routes: &[Route], folder: &Path) -> String {
        match self {
            Self::Nginx => nginx(routes, folder),
            Self::Haproxy => haproxy(routes),
            Self::Envoy => envoy(routes),
        }
    }
}

fn nginx(routes: &[Route], folder: &Path) -> String {
    let folder = folder.display();
    let mut text = format!(
        "user root; worker_processes 1; daemon off; pid {folder}.pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 0; client_body_buffer_size 256k; client_body_temp_path {folder}.body; keepalive_requests 1000000000;
  proxy_temp_path {folder}.p; fastcgi_temp_path {folder}.f; scgi_temp_path {folder}.s; uwsgi_temp_path {folder}.u;
  tcp_nodelay on; http2_max_concurrent_streams 1024; grpc_read_timeout 1h; grpc_send_timeout 1h;
  limit_req_zone $server_name zone=calls:1m rate=2000000r/s;
  map $http_x_role $stranger {{ default 1; reader 0; }}
"
    );
    for Route(from, to, filter) in routes {
        let check = match filter {
            Filter::None | Filter::Null => "",
            Filter::Limiter => "limit_req zone=calls burst=2000000 nodelay;",
            Filter::Acl => "if ($stranger) { add_header grpc-status 7 always; return 204; }",
        };
        text += &format!(
            "  upstream u{from} {{ server 127.0.0.1:{to}; keepalive 512; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{from} http2; location / {{ {check} grpc_pass grpc://u{from}; }} }}\n"
        );
    }
    text + "}\n"
}

fn haproxy(routes: &[Route]) -> String {
    let mut text = "global
  nbthread 1
  maxconn 4096
  tune.bufsize 65536
  tune.h2.initial-window-size 1048576
  tune.h2.max-concurrent-streams 1024
defaults
  mode http
  http-reuse always
  timeout connect 5s
  timeout client 1h
  timeout server 1h\n"
        .to_owned();
    for Route(from, to, filter) in routes {
        let check = match filter {
            Filter::None | Filter::Null => "",
            Filter::Limiter => {
                "  stick-table type string len 8 size 1k expire 10s store http_req_rate(1s)
  http-request track-sc0 str(calls)
  http-request return status 429 hdr grpc-status 8 if { sc_http_req_rate(0) gt 2000000000 }\n"
            }
            Filter::Acl => {
                "  http-request return status 403 hdr grpc-status 7 unless { req.hdr(x-role) -m str reader }\n"
            }
        };
        text += &format!(
            "frontend f{from}
  bind 127.0.0.1:{from} proto h2
{check}  default_backend b{from}
backend b{from}
  server s 127.0.0.1:{to} proto h2\n"
        );
    }
    text
}

fn envoy(routes: &[Route]) -> String {
    let kind = |name: &str| format!("\"@type\": type.googleapis.com/envoy.extensions.{name}");
    let mut text = "static_resources:\n  listeners:\n".to_owned();
    let (router, manager) = (
        kind("filters.http.router.v3.Router"),
        kind("filters.network.http_connection_manager.v3.HttpConnectionManager"),
    );
    for Route(from, _, filter) in routes {
        let check = match filter {
            Filter::None | Filter::Null => String::new(),
            Filter::Limiter => format!(
                "            - {{name: limit, typed_config: {{{}, stat_prefix: l, token_bucket: {{max_tokens: 4000000000, \
tokens_per_fill: 4000000000, fill_interval: 1s}}, filter_enabled: {{default_value: {{numerator: 100}}}}, \
filter_enforced: {{default_value: {{numerator: 100}}}}}}}}\n",
                kind("filters.http.local_ratelimit.v3.LocalRateLimit")
            ),
            Filter::Acl => format!(
                "            - {{name: rbac, typed_config: {{{}, rules: {{action: ALLOW, policies: {{readers: \
{{permissions: [{{any: true}}], principals: [{{header: {{name: x-role, string_match: {{exact: reader}}}}}}]}}}}}}}}}}\n",
                kind("filters.http.rbac.v3.RBAC")
            ),
        };
        text += &format!(
            "  - name: l{from}
    address: {{socket_address: {{address: 127.0.0.1, port_value: {from}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          {manager}
          stat_prefix: s{from}
          codec_type: HTTP2
          route_config: {{virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: c{from}, timeout: 0s}}}}]}}]}}
          http_filters:
{check}            - {{name: router, typed_config: {{{router}}}}}\n"
        );
    }
    text += "  clusters:\n";
    let options = kind("upstreams.http.v3.HttpProtocolOptions");
    for Route(from, to, _) in routes {
        text += &format!(
            "  - name: c{from}
    type: STATIC
    typed_extension_protocol_options: {{envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{{options}, explicit_http_config: {{http2_protocol_options: {{}}}}}}}}
    load_assignment: {{cluster_name: c{from}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {to}}}}}}}}}]}}]}}\n"
        );
    }
    text
}

impl Contender for Sidecars {
    fn name(&self) -> String {
        match self.0 {
            Proxy::Nginx => "tonic + nginx x2",
            Proxy::Haproxy => "tonic + HAProxy x2",
            Proxy::Envoy => "tonic + Envoy x2",
        }
        .into()
    }

    fn ready(&self) -> Result<String, String> {
        let argument = if self.0 == Proxy::Envoy { "--version" } else { "-v" };
        let output = Command::new(self.0.program()).arg(argument).output().map_err(|_| "not installed")?;
        let text = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&text).lines().find(|line| !line.is_empty()).unwrap_or("?").to_owned())
    }

    fn covers(&self, scenario: &Scenario) -> bool {
        scenario.link.is_none()
            && !matches!(scenario.workload, Workload::Channel(_) | Workload::Qos(..) | Workload::Paired(_))
    }

    /// The proxy of place 0 is beside the client, that of place n beside service n. Each has a port for calls that go out
    /// of its place (not the last one) and one for calls that come in (not the first one).
    fn start(&self, scenario: &Scenario, room: &Room) -> anyhow::Result<Running> {
        let services = scenario.services;
        let ports = |count| (0..count).map(|_| room.port()).collect::<Result<Vec<_>, _>>();
        let (outgoing, incoming, served) = (ports(services)?, ports(services)?, ports(services)?);
        let mut processes = Vec::new();
        for place in 0..=services {
            let mut routes = Vec::new();
            if place < services {
                let filter = if place == 0 { scenario.filter } else { Filter::None };
                routes.push(Route(outgoing[place], incoming[place], filter));
            }
            if place > 0 {
                routes.push(Route(incoming[place - 1], served[place - 1], Filter::None));
            }
            let path = room.path("proxy");
            std::fs::write(&path, self.0.configuration(&routes, &path))?;
            let path = path.to_str().context("a temporary path is no text")?;
            let number = place.to_string();
            let arguments: &[&str] = match self.0 {
                Proxy::Nginx => &["-e", "stderr", "-c", path],
                Proxy::Haproxy => &["-db", "-f", path],
                Proxy::Envoy => &["-c", path, "--concurrency", "1", "-l", "error", "--base-id", &number],
            };
            processes.push(room.spawn(self.0.program(), arguments, None)?);
        }
        for port in outgoing.iter().chain(&incoming) {
            wait_for(&format!("127.0.0.1:{port}")).with_context(|| room.last_words())?;
        }
        for place in (0..services).rev() {
            let next = outgoing.get(place + 1).map(|port| format!("127.0.0.1:{port}"));
            let order = Serve { listen: format!("127.0.0.1:{}", served[place]), next, ..Serve::default() };
            processes.push(room.server("tonic", &order, None)?.0);
        }
        Ok(Running { target: format!("127.0.0.1:{}", outgoing[0]), processes })
    }

    fn serve(&self, order: &Serve) -> anyhow::Result<()> {
        crate::grpc::serve(order)
    }

    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
        crate::grpc::client(load, target, gate)
    }
}
