//! Calls, from who makes them to who answers them.
use super::board::{Calls, Context, Lane};
use super::end::End;
use super::judging::{Case, Judged, choose};
use super::letter::Letter;
use super::wire::Body;
use crate::attached::Attached;
use crate::policies::balance::By;
use crate::protocol::Side;
use std::io;
use std::rc::Rc;
use std::time::Instant;
use tidemill_rpc::Code;
use tidemill_rpc::protocol::kind;
use tidemill_schema::Conversion;
use tidemill_shm::descriptor::Descriptor;
use tidemill_shm::heap::Buffer;

/// Calls of one program, or of one connection of another host, that wait for their end, at most: twice what programs use.
const MOST_WAITING: usize = 2 * tidemill_rpc::protocol::MOST_CALLS;

/// Where a call is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// By a program of this host.
    Program(Lane),
    /// By another host, over this wire.
    Wire(u64),
}

/// A call that waits for its end.
pub(super) struct Call {
    /// Maker of the call: a program or a wire, and the binding there.
    pub(super) lane: Lane,
    /// Its number there.
    pub(super) tag: u64,
    pub(super) method: usize,
    pub(super) target: Option<Target>,
    /// How the replies of the server become those of the client's schema.
    pub(super) reply: Option<Rc<super::schemas::Fits>>,
}

/// A call that a policy holds.
pub(super) struct Held {
    call: u64,
    deadline: u64,
    letter: Letter,
    /// The policy that holds it; none: it has not been looked at.
    holder: Option<Rc<Attached>>,
    since: Instant,
    pub(super) until: Instant,
}

fn text(code: Code, message: &str) -> (Descriptor, Letter) {
    let last = Descriptor { kind: kind::END, class: code as u8, ..Descriptor::default() };
    (last, Letter::own(message.as_bytes().to_vec()))
}

fn converted(conversion: &Conversion, letter: Letter) -> Result<(Letter, u64), String> {
    if conversion.is_identity() {
        return Ok((letter, 0));
    }
    let (bytes, _) = letter.private().map_err(|error| error.to_string())?;
    let bytes = conversion.convert(&bytes).map_err(|error| error.to_string())?;
    if bytes.len() > tidemill_rpc::protocol::MOST_BYTES as usize {
        return Err("in the schema of the other side it is longer than a message may be".to_owned());
    }
    let copied = bytes.len() as u64;
    Ok((Letter { metadata: letter.metadata, ..Letter::own(bytes) }, copied))
}

impl Calls {
    /// A program, or another host, makes a call.
    pub(super) fn called(
        &mut self,
        token: u64,
        descriptor: &Descriptor,
        letter: Letter,
        context: &mut Context<'_>,
    ) {
        let lane = (token, descriptor.lane);
        let tag = descriptor.tag;
        if self.origins.contains_key(&(token, tag)) {
            return tracing::debug!("a call has the number of another one");
        }
        if self.ends.get(&token).is_some_and(End::is_deaf) {
            let error = io::Error::new(io::ErrorKind::InvalidData, "it does not read what it is sent");
            return self.lose(token, &error);
        }
        if self.origins.range((token, 0)..=(token, u64::MAX)).nth(MOST_WAITING).is_some() {
            let message = format!("more than {MOST_WAITING} calls wait for their end");
            let (last, letter) = text(Code::ResourceExhausted, &message);
            let last = Descriptor { tag, ..last };
            return match self.ends.get_mut(&token) {
                Some(end) => end.notice(last, &[], message.as_bytes()),
                None => self.post(token, last, letter, 0, None),
            };
        }
        let id = self.number();
        let method = usize::try_from(descriptor.sequence).unwrap_or(usize::MAX);
        self.calls.insert(id, Call { lane, tag, method, target: None, reply: None });
        self.origins.insert((token, tag), id);
        self.counts.calls += 1;
        match self.bindings.get_mut(&lane).map(|of| (of.side, of.methods.get_mut(method))) {
            Some((side, Some(method))) => {
                method.calls += 1;
                // A call from another host was marshalled there.
                self.counts.marshalled += u64::from(side == Side::Sender);
            }
            Some((_, None)) => return self.fail(id, Code::Unimplemented, "the service has no such method"),
            None => return self.fail(id, Code::Unavailable, "there is no such binding any more"),
        }
        let is_behind = self.held.iter().any(|held| {
            self.calls.get(&held.call).is_some_and(|call| (call.lane, call.method) == (lane, method))
        });
        let (deadline, now) = (descriptor.deadline, context.now);
        if is_behind {
            // After those that are held before it; looked at from the first policy on.
            return self.held.push_back(Held {
                call: id,
                deadline,
                letter,
                holder: None,
                since: now,
                until: now,
            });
        }
        self.judge(id, (deadline, letter), (None, None), context);
    }

    fn judge(
        &mut self,
        id: u64,
        (deadline, mut letter): (u64, Letter),
        (holder, again): (Option<Rc<Attached>>, Option<Instant>),
        context: &mut Context<'_>,
    ) {
        let Some((lane, method)) = self.calls.get(&id).map(|call| (call.lane, call.method)) else { return };
        let Some((policies, columns)) = self.judges(lane, method, context.policies) else { return };
        let mut by = By::Least;
        if !policies.is_empty() {
            let waiting = self.waiting_of(lane);
            let Some(binding) = self.bindings.get(&lane) else { return };
            let case = Case {
                edge: &binding.methods[method].edge,
                number: id,
                channel: channel_of(lane),
                waiting,
                policies: &policies,
                columns: &columns,
            };
            // The one that held it looks again, if it is still there; else the first one.
            let is_holder = |policy: &Rc<Attached>| holder.as_ref().is_some_and(|of| Rc::ptr_eq(policy, of));
            let from = policies.iter().position(is_holder).unwrap_or(0);
            let (judged, effects) = case.judge(&mut letter, from, again, context.now, context.urgent);
            self.counts.copied += effects.copied;
            by = effects.balance.unwrap_or_default();
            match judged {
                Judged::Passes => {}
                Judged::Waits(time, at) => {
                    let (since, until) = (again.unwrap_or(context.now), context.now + time);
                    let holder = policies.get(at).map(Rc::clone);
                    return self.held.push_front(Held { call: id, deadline, letter, holder, since, until });
                }
                Judged::Ends(code, message) => return self.fail(id, code, &message),
            }
        }
        self.dispatch(id, deadline, letter, by);
    }

    /// Looks at the calls again that policies hold, each method's in their order.
    pub(super) fn judge_held(&mut self, context: &mut Context<'_>) {
        if self.held.is_empty() {
            return;
        }
        let mut blocked: Vec<(Lane, usize)> = Vec::new();
        let mut kept = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let Some(call) = self.calls.get(&held.call) else { continue };
            let of = (call.lane, call.method);
            if held.until > context.now || blocked.contains(&of) {
                blocked.push(of);
                kept.push(held);
                continue;
            }
            let Held { call: id, deadline, letter, holder, since, .. } = held;
            if deadline != 0 && deadline <= monotonic() {
                self.fail(
                    id,
                    Code::DeadlineExceeded,
                    "the deadline of the call was over while a policy held it",
                );
                continue;
            }
            self.judge(id, (deadline, letter), (holder, Some(since)), context);
            if let Some(again) = self.held.pop_front() {
                blocked.push(of);
                kept.push(again);
            }
        }
        self.held = kept.into();
    }

    /// Brings a call to a server.
    fn dispatch(&mut self, id: u64, deadline: u64, letter: Letter, by: By) {
        let Some((lane, method)) = self.calls.get(&id).map(|call| (call.lane, call.method)) else { return };
        // Of all bindings together: programs that make one call each are spread, too.
        let turn = self.counts.calls;
        let Some(binding) = self.bindings.get(&lane) else { return };
        let last = Descriptor {
            kind: kind::CALL,
            sequence: method as u64,
            tag: id,
            deadline,
            ..Descriptor::default()
        };
        if let Some(remote) = &binding.remote {
            let wires: Vec<u64> = remote.iter().filter(|of| of.is_bound).filter_map(|of| of.wire).collect();
            let waiting: Vec<usize> = wires.iter().map(|wire| self.remote.calls_of(*wire)).collect();
            return match choose(&waiting, by, turn) {
                Some(at) => self.post_call(id, wires[at], last, letter),
                None => self.fail(id, Code::Unavailable, "no host that serves it can be reached now"),
            };
        }
        let service = binding.service.clone();
        let (user, known) = (binding.user, Rc::clone(&binding.known));
        let is_remote = binding.side == Side::Receiver;
        let of_user = if is_remote { u32::MAX } else { user };
        let servers: Vec<_> = self
            .reachable(&service, of_user)
            .map(|server| ((server.token, server.lane), server.waiting, Rc::clone(&server.known)))
            .collect();
        let fits: Vec<_> =
            servers.iter().map(|(_, _, server)| self.schemas.fits(&known, server, &service)).collect();
        let candidates: Vec<usize> = (0..servers.len()).filter(|at| fits[*at].is_ok()).collect();
        let waiting: Vec<usize> = candidates.iter().map(|at| servers[*at].1).collect();
        let Some(chosen) = choose(&waiting, by, turn).map(|at| candidates[at]) else {
            let message = match fits.first().map(|fits| fits.as_ref()) {
                Some(Err(error)) => error.clone(),
                _ => self.nobody(&service, of_user),
            };
            let code = if fits.is_empty() { Code::Unavailable } else { Code::FailedPrecondition };
            return self.fail(id, code, &message);
        };
        let (target, _, server) = &servers[chosen];
        let Some(fit) = fits[chosen].as_ref().as_ref().ok().and_then(|fits| fits.get(method)) else { return };
        let Some(server_method) = fit.server_method else {
            return self.fail(id, Code::Unimplemented, "the server is older and has no such method");
        };
        let (letter, copied) = match converted(&fit.request, letter) {
            Ok(converted) => converted,
            Err(error) => return self.fail(id, Code::InvalidArgument, &format!("the request: {error}")),
        };
        self.counts.copied += copied;
        let last = Descriptor { lane: target.1, sequence: u64::from(server_method), ..last };
        let input = server.schema.service(&service).map(|of| of.methods[server_method as usize].input);
        let Some(input) = input else { return };
        let check = |bytes: &[u8]| {
            server.schema.message(input).check(&server.schema, bytes).map_err(|error| error.to_string())
        };
        let Some(end) = self.ends.get_mut(&target.0) else { return };
        match end.deliver(last, letter, check) {
            Ok(()) => {
                self.counts.marshalled += 1;
                if let Some(call) = self.calls.get_mut(&id) {
                    call.target = Some(Target::Program(*target));
                    call.reply = Some(Rc::clone(&fits[chosen]));
                }
                self.wait(&service, *target, 1);
            }
            Err(error) => self.fail(id, Code::InvalidArgument, &format!("the request: {error}")),
        }
    }

    fn wait(&mut self, service: &str, lane: Lane, more: isize) {
        let servers = self.servers.get_mut(service).into_iter().flatten();
        for server in servers.filter(|server| (server.token, server.lane) == lane) {
            server.waiting = server.waiting.saturating_add_signed(more);
            server.calls += u64::from(more > 0);
        }
    }

    /// A call came from another host, into memory that its server can read: no policy and no conversion is needed.
    pub(super) fn called_in_room(
        &mut self,
        head: &Descriptor,
        metadata: Vec<u8>,
        (token, program, buffer): (u64, u64, Buffer),
        context: &mut Context<'_>,
    ) {
        let lane = (token, 0);
        let method = usize::try_from(head.sequence).unwrap_or(usize::MAX);
        // While it came, a policy may have been attached, or another server have come.
        let is_judged =
            self.judges(lane, method, context.policies).is_none_or(|(policies, _)| !policies.is_empty());
        if is_judged || self.only_server(lane, method) != Some(program) {
            let letter = Letter { metadata, ..Letter::own(buffer[..head.length as usize].to_vec()) };
            self.unused(Body::Room(program, buffer));
            return self.called(token, head, letter, context);
        }
        let id = self.number();
        let unused = Body::Room(program, buffer);
        if self.origins.contains_key(&(lane.0, head.tag)) {
            return self.unused(unused);
        }
        self.calls.insert(id, Call { lane, tag: head.tag, method, target: None, reply: None });
        self.origins.insert((lane.0, head.tag), id);
        self.counts.calls += 1;
        let of = self.bindings.get_mut(&lane).and_then(|of| {
            of.methods.get_mut(method)?.calls += 1;
            Some((of.service.clone(), Rc::clone(&of.known)))
        });
        let server = of.as_ref().and_then(|(service, _)| {
            let mut servers = self.servers.get(service)?.iter();
            servers.find(|server| server.token == program).map(|of| (of.lane, Rc::clone(&of.known)))
        });
        let (Some((service, known)), Some((to, server))) = (of, server) else {
            self.unused(unused);
            return self.fail(id, Code::Unavailable, "who served it went away");
        };
        let fits = self.schemas.fits(&known, &server, &service);
        let fit = fits.as_ref().as_ref().ok().and_then(|fits| fits.get(method)?.server_method);
        let input =
            fit.and_then(|of| Some((of, server.schema.service(&service)?.methods.get(of as usize)?.input)));
        let Some((server_method, input)) = input else {
            self.unused(unused);
            return self.fail(id, Code::Unimplemented, "the server has no such method");
        };
        let Body::Room(_, buffer) = unused else { return };
        let Some(end) = self.ends.get_mut(&program) else { return };
        let length = head.length as usize;
        if let Err(error) = server.schema.message(input).check(&server.schema, &buffer[..length]) {
            end.unused(buffer);
            return self.fail(id, Code::InvalidArgument, &format!("the request: {error}"));
        }
        let last = Descriptor {
            kind: kind::CALL,
            lane: to,
            sequence: u64::from(server_method),
            tag: id,
            deadline: head.deadline,
            ..Descriptor::default()
        };
        end.hand_over(last, &metadata, buffer, length);
        self.counts.marshalled += 1;
        if let Some(call) = self.calls.get_mut(&id) {
            call.target = Some(Target::Program((program, to)));
            call.reply = Some(fits);
        }
        self.wait(&service, (program, to), 1);
    }

    /// A call has ended at the side of its server.
    pub(super) fn ended(&mut self, id: u64, has_failed: bool) {
        let Some(call) = self.forget(id) else { return };
        if has_failed && let Some(of) = self.bindings.get_mut(&call.lane) {
            self.counts.failed += 1;
            if let Some(method) = of.methods.get_mut(call.method) {
                method.failed += 1;
            }
        }
    }

    /// Forgets a call. Returns it.
    fn forget(&mut self, id: u64) -> Option<Call> {
        let call = self.calls.remove(&id)?;
        self.origins.remove(&(call.lane.0, call.tag));
        match call.target {
            Some(Target::Program(lane)) => {
                if let Some(service) = self.bindings.get(&call.lane).map(|of| of.service.clone()) {
                    self.wait(&service, lane, -1);
                } else {
                    for server in self.servers.values_mut().flatten() {
                        if (server.token, server.lane) == lane {
                            server.waiting = server.waiting.saturating_sub(1);
                        }
                    }
                }
            }
            Some(Target::Wire(wire)) => self.remote.less(wire),
            None => {}
        }
        Some(call)
    }

    /// Ends a call with a status of the service.
    pub(super) fn fail(&mut self, id: u64, code: Code, message: &str) {
        let Some(call) = self.forget(id) else { return };
        self.counts.failed += 1;
        if let Some(method) = self.bindings.get_mut(&call.lane).and_then(|of| of.methods.get_mut(call.method))
        {
            method.failed += 1;
        }
        let (last, letter) = text(code, message);
        let last = Descriptor { tag: call.tag, ..last };
        if let Some(end) = self.ends.get_mut(&call.lane.0) {
            return end.notice(last, &[], message.as_bytes());
        }
        self.post(call.lane.0, last, letter, 0, None);
    }

    /// The server of a call answers it; `token`: that program.
    pub(super) fn answered(&mut self, token: u64, descriptor: &Descriptor, letter: Letter) {
        let (id, number) = (descriptor.tag, descriptor.lease);
        let length = letter.length();
        let is_its = |call: &Call| matches!(call.target, Some(Target::Program(lane)) if lane.0 == token);
        let Some(call) = self.calls.get(&id).filter(|call| is_its(call)) else {
            // It was cancelled, or never was.
            return self.took(token, number, length);
        };
        let (lane, tag, method) = (call.lane, call.tag, call.method);
        let fits = call.reply.clone();
        let is_message = descriptor.kind != kind::END;
        let mut letter = letter;
        if is_message {
            self.counts.marshalled += 1;
            let fit = fits.as_ref().and_then(|fits| fits.as_ref().as_ref().ok()?.get(method));
            match fit.map(|fit| converted(&fit.reply, std::mem::take(&mut letter))) {
                Some(Ok((of, copied))) => {
                    letter = of;
                    self.counts.copied += copied;
                }
                Some(Err(error)) => {
                    self.took(token, number, length);
                    self.tell_cancelled(id);
                    return self.fail(id, Code::Internal, &format!("the reply: {error}"));
                }
                None => {}
            }
        }
        let last =
            Descriptor { kind: descriptor.kind, class: descriptor.class, tag, ..Descriptor::default() };
        if descriptor.kind != kind::ITEM {
            self.ended(id, descriptor.class != 0);
        }
        if self.ends.contains_key(&lane.0) {
            self.hand_back(lane, method, last, letter, id);
            return self.took(token, number, length);
        }
        self.post(lane.0, last, letter, id, Some((token, number)));
    }

    /// Delivers a reply, or the end of a call, to the program that made it.
    pub(super) fn hand_back(&mut self, lane: Lane, method: usize, last: Descriptor, letter: Letter, id: u64) {
        let Some(end) = self.ends.get_mut(&lane.0) else { return };
        if last.kind == kind::END {
            let text = letter.private().map(|(bytes, _)| bytes).unwrap_or_default();
            return end.notice(last, &letter.metadata, &text);
        }
        let Some(binding) = self.bindings.get(&lane) else { return };
        let Some(output) = binding.methods.get(method).map(|method| method.output) else { return };
        let known = Rc::clone(&binding.known);
        let check = |bytes: &[u8]| {
            known.schema.message(output).check(&known.schema, bytes).map_err(|error| error.to_string())
        };
        match end.deliver(last, letter, check) {
            Ok(()) => self.counts.marshalled += 1,
            Err(error) => {
                let message = format!("the reply: {error}");
                let (failed, _) = text(Code::Internal, &message);
                end.notice(Descriptor { tag: last.tag, ..failed }, &[], message.as_bytes());
                self.tell_cancelled(id);
                self.forget(id);
            }
        }
    }

    /// A payload was taken: its program may use the memory again.
    pub(super) fn took(&mut self, token: u64, number: u64, bytes: usize) {
        if let Some(end) = self.ends.get_mut(&token) {
            end.took(number, bytes);
        }
    }

    /// Nobody waits for a call any more; `token`: who made it.
    pub(super) fn cancelled(&mut self, token: u64, descriptor: &Descriptor) {
        if let Some(id) = self.origins.get(&(token, descriptor.tag)).copied() {
            self.tell_cancelled(id);
            self.forget(id);
            self.held.retain(|held| held.call != id);
        }
        self.took(token, descriptor.lease, 0);
    }

    /// Tells the server of a call that nobody waits.
    pub(super) fn tell_cancelled(&mut self, id: u64) {
        let last = Descriptor { kind: kind::CANCEL, tag: id, ..Descriptor::default() };
        match self.calls.get(&id).and_then(|call| call.target) {
            Some(Target::Program(lane)) => {
                if let Some(end) = self.ends.get_mut(&lane.0) {
                    end.notice(last, &[], &[]);
                }
            }
            Some(Target::Wire(wire)) => {
                self.remote.forget(wire, id);
                self.post(wire, last, Letter::default(), 0, None);
            }
            None => {}
        }
    }

    /// More replies of a stream may come.
    pub(super) fn more(&mut self, token: u64, tag: u64, count: u64) {
        let Some(id) = self.origins.get(&(token, tag)).copied() else { return };
        let last = Descriptor { kind: kind::MORE, tag: id, sequence: count, ..Descriptor::default() };
        match self.calls.get(&id).and_then(|call| call.target) {
            Some(Target::Program(lane)) => {
                if let Some(end) = self.ends.get_mut(&lane.0) {
                    end.notice(last, &[], &[]);
                }
            }
            Some(Target::Wire(wire)) => self.post(wire, last, Letter::default(), 0, None),
            None => {}
        }
    }

    /// Ends the calls of a binding that is left.
    pub(super) fn end_calls_of(&mut self, lane: Lane) {
        let made: Vec<u64> = self.calls.iter().filter(|(_, of)| of.lane == lane).map(|(id, _)| *id).collect();
        for id in made {
            self.tell_cancelled(id);
            self.fail(id, Code::Cancelled, "its binding was left");
        }
        let calls = &self.calls;
        self.held.retain(|held| calls.contains_key(&held.call));
    }

    /// Ends the calls that a program made or answers, or that go over a wire.
    pub(super) fn end_calls_with(&mut self, token: u64) {
        let made: Vec<u64> =
            self.calls.iter().filter(|(_, of)| of.lane.0 == token).map(|(id, _)| *id).collect();
        for id in made {
            self.tell_cancelled(id);
            self.forget(id);
        }
        let answers = |call: &Call| match call.target {
            Some(Target::Program(lane)) => lane.0 == token,
            Some(Target::Wire(wire)) => wire == token,
            None => false,
        };
        let lost: Vec<u64> = self.calls.iter().filter(|(_, of)| answers(of)).map(|(id, _)| *id).collect();
        for id in lost {
            self.fail(id, Code::Unavailable, "who serves it went away; the call may have been made");
        }
        let calls = &self.calls;
        self.held.retain(|held| calls.contains_key(&held.call));
    }
}

/// The number of a binding among channels, for policies.
pub(super) fn channel_of(lane: Lane) -> u64 {
    lane.0 ^ u64::from(lane.1) << 40
}

pub(super) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
