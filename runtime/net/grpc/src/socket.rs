//! Options that both ends set on their connections.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Bytes of one stream that are accepted before they are read.
pub(crate) const STREAM_WINDOW: u32 = 512 << 10;

/// Bytes of a connection of a server that are accepted before they are read: it reads all requests at once.
pub(crate) const SERVER_WINDOW: u32 = 4 << 20;

/// Bytes of a connection of a client that are accepted before they are read. Its answers may wait for slow readers, and one must not
/// hold up another: in effect only streams have limits.
pub(crate) const CLIENT_WINDOW: u32 = 1 << 30;

/// Longest part of a message that is accepted in one piece.
pub(crate) const FRAME: u32 = 64 << 10;

/// Silence after which the kernel asks whether the other host is there, and pause between its questions.
const ASK_AFTER: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Time after which a connection with unanswered bytes is over.
const UNANSWERED: Duration = Duration::from_secs(35);

/// Sends at once, and notices by itself if the other host is gone: questions of HTTP/2 would be strikes with some servers.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_EVERY).with_retries(3),
    )?;
    socket.set_tcp_user_timeout(Some(UNANSWERED))
}
