//! Code of services.

use prost_types::ServiceDescriptorProto;

use crate::comments::{Comments, part};
use crate::compiling::StubError;
use crate::messages::{Types, join};
use crate::names::{camel, snake};
use crate::printing::{ALLOW, Lines};

/// Method with its names and types in Rust.
struct Method<'a> {
    index: usize,
    name: String,
    request: String,
    reply: String,
    streaming: bool,
    comment: Option<&'a str>,
    full_name: String,
}

/// Writes the client, the trait and the server of a service.
pub(crate) fn service(
    out: &mut Lines,
    types: &Types<'_>,
    comments: &Comments<'_>,
    path: &[i32],
    package: &str,
    service: &ServiceDescriptorProto,
) -> Result<(), StubError> {
    let full_name = join(package, service.name());
    let name = camel(service.name());
    if let Some(first) = types.named(&[name.clone(), format!("{name}Client"), format!("{name}Server")]) {
        return Err(StubError::SameName { first: first.to_owned(), second: full_name });
    }
    let mut methods: Vec<Method<'_>> = Vec::new();
    for (index, method) in service.method.iter().enumerate() {
        let full_name = format!("{full_name}.{}", method.name());
        if method.client_streaming() {
            return Err(StubError::ClientStreaming { method: full_name });
        }
        let found = Method {
            index,
            name: method_name(method.name()),
            request: types.path(method.input_type().trim_start_matches('.'), &[]),
            reply: types.path(method.output_type().trim_start_matches('.'), &[]),
            streaming: method.server_streaming(),
            comment: comments.get(&part(path, 2, index)),
            full_name,
        };
        if let Some(first) = methods.iter().find(|other| other.name == found.name) {
            return Err(StubError::SameName { first: first.full_name.clone(), second: found.full_name });
        }
        methods.push(found);
    }
    let comment = comments.get(path);
    client(out, &name, &full_name, &methods);
    traits(out, &name, &full_name, comment, &methods);
    server(out, &name, &full_name, &methods);
    Ok(())
}

/// Makes the name of a method, which is none of those that a client has anyway.
fn method_name(name: &str) -> String {
    match snake(name).as_str() {
        taken @ ("connect" | "connect_at" | "clone") => format!("{taken}_"),
        name => name.to_owned(),
    }
}

fn client(out: &mut Lines, name: &str, full_name: &str, methods: &[Method<'_>]) {
    out.line("");
    out.line(format!("/// Client of the service `{full_name}`. A clone uses the same channel."));
    out.lines(&["#[derive(Clone, Debug)]", ALLOW, &format!("pub struct {name}Client {{")]);
    out.lines(&["channel: ::tidemill_rpc::Channel,", "}", "", ALLOW, &format!("impl {name}Client {{")]);
    out.line("/// Full name of the service.");
    out.line(format!("pub const SERVICE: &'static str = {full_name:?};"));
    out.lines(&[
        "",
        "/// Binds to the service through the transport service of this host.",
        "pub async fn connect(net: &::tidemill_rpc::Net) -> Result<Self, ::tidemill_rpc::Status> {",
        "let channel = net.bind(Self::SERVICE, DESCRIPTORS).await?;",
        "Ok(Self { channel })",
        "}",
        "",
        "/// Binds to the service at one of these addresses.",
        "pub async fn connect_at(net: &::tidemill_rpc::Net, at: &[&str]) -> Result<Self, ::tidemill_rpc::Status> {",
        "let channel = net.bind_at(Self::SERVICE, DESCRIPTORS, at).await?;",
        "Ok(Self { channel })",
        "}",
    ]);
    for Method { index, name, request, reply, streaming, comment, full_name } in methods {
        let (reply, call) = if *streaming {
            (format!("Streaming<{reply}>"), "streaming")
        } else {
            (format!("Response<{reply}>"), "unary")
        };
        out.line("");
        out.doc(*comment, &format!("Calls `{full_name}`."));
        out.line(format!("pub async fn {name}("));
        out.line("&self,");
        out.line(format!("request: impl Into<::tidemill_rpc::Request<{request}>>,"));
        out.line(format!(") -> Result<::tidemill_rpc::{reply}, ::tidemill_rpc::Status> {{"));
        out.line(format!("self.channel.{call}({index}, request.into()).await"));
        out.line("}");
    }
    out.line("}");
}

fn traits(out: &mut Lines, name: &str, full_name: &str, comment: Option<&str>, methods: &[Method<'_>]) {
    out.line("");
    out.doc(comment, &format!("Service `{full_name}`."));
    out.lines(&[ALLOW, &format!("pub trait {name}: Send + Sync + 'static {{")]);
    for (index, method) in methods.iter().enumerate() {
        let Method { name, request, reply, streaming, comment, full_name, .. } = method;
        if index > 0 {
            out.line("");
        }
        out.doc(*comment, &format!("Answers `{full_name}`."));
        out.lines(&[&format!("fn {name}("), "&self,"]);
        out.line(format!("request: ::tidemill_rpc::Request<{request}>,"));
        let output = if *streaming {
            out.line(format!("replies: ::tidemill_rpc::Replies<{reply}>,"));
            "()".to_owned()
        } else {
            format!("::tidemill_rpc::Response<{reply}>")
        };
        out.line(format!(
            ") -> impl ::std::future::Future<Output = Result<{output}, ::tidemill_rpc::Status>> + Send;"
        ));
    }
    out.line("}");
}

fn server(out: &mut Lines, name: &str, full_name: &str, methods: &[Method<'_>]) {
    out.line("");
    out.line(format!("/// Server of the service `{full_name}`. A clone answers with the same value."));
    out.lines(&[
        "#[derive(Debug)]",
        ALLOW,
        &format!("pub struct {name}Server<T>(pub ::std::sync::Arc<T>);"),
        "",
    ]);
    out.line(format!("impl<T> Clone for {name}Server<T> {{"));
    out.lines(&["fn clone(&self) -> Self {", "Self(::std::sync::Arc::clone(&self.0))", "}", "}", "", ALLOW]);
    out.line(format!("impl<T: {name}> {name}Server<T> {{"));
    out.lines(&["/// Makes a server of a value.", "pub fn new(inner: T) -> Self {"]);
    out.lines(&["Self(::std::sync::Arc::new(inner))", "}", "}", ""]);
    out.line(format!("impl<T: {name}> ::tidemill_rpc::Service for {name}Server<T> {{"));
    out.lines(&["fn name(&self) -> &'static str {", &format!("{full_name:?}"), "}", ""]);
    out.lines(&["fn descriptors(&self) -> &'static [u8] {", "DESCRIPTORS", "}", ""]);
    out.line("fn call(&self, method: u32, call: ::tidemill_rpc::Incoming) -> ::tidemill_rpc::BoxFuture<'static, ()> {");
    out.line("match method {");
    for Method { index, name, request, reply, streaming, .. } in methods {
        out.line(format!("{index} => {{"));
        out.line("let inner = ::std::sync::Arc::clone(&self.0);");
        out.lines(&[
            "Box::pin(async move {",
            &format!("match call.request::<{request}>() {{"),
            "Ok(request) => {",
        ]);
        if *streaming {
            out.line(format!("let replies = call.replies::<{reply}>();"));
            out.line(format!("let end = T::{name}(&inner, request, replies).await;"));
            out.line("call.end(end)");
        } else {
            out.line(format!("let reply = T::{name}(&inner, request).await;"));
            out.line("call.reply(reply).await");
        }
        out.lines(&["}", "Err(status) => call.fail(status),", "}", "})", "}"]);
    }
    out.line("_ => Box::pin(async move {");
    let text = format!("the service {full_name} has no such method");
    out.line(format!("call.fail(::tidemill_rpc::Status::unimplemented({text:?}))"));
    out.lines(&["}),", "}", "}", "}"]);
}
