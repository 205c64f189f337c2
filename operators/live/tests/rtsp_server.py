"""A server of test pictures for the tests of cameras, by GStreamer's RTSP server.

Usage: rtsp_server.py PORT (0: any) [--digest] [--tls FILE]. It ends when its standard input is closed. FILE has a certificate
and its key: the server encrypts then (rtsps).

Paths: /plain, /b (frames between others), /h265, /jpeg, /auth and /digest (user `viewer`), /slow.
Orders, a line each: `stop` (refuse connections), `listen` (again), `drop` (close all connections), `mute`, `unmute` (go on
without sending), `size WIDTH HEIGHT` (of /plain). It answers each with `done`, and tells `port N`, `client` for each
connection and `describe PATH` for each request of a description.
"""
import sys
import threading
import time

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import Gio, GLib, Gst, GstRtsp, GstRtspServer  # noqa: E402

Gst.init(None)
PASSWORD = "s3cr@t/ÄX:7"
SOURCE = (
    "videotestsrc is-live=true pattern=ball ! capsfilter name=size caps=video/x-raw,width=160,height=120,framerate=20/1"
    " ! valve name=valve drop-mode=drop-all ! videoconvert"
)
H264 = " ! x264enc speed-preset=ultrafast key-int-max=20 threads=1 {} ! video/x-h264,profile={} ! rtph264pay name=pay0 pt=96 config-interval=-1"
PATHS = {
    "plain": H264.format("tune=zerolatency", "baseline"),
    "b": H264.format("bframes=2 b-adapt=false rc-lookahead=0 sync-lookahead=0 cabac=true", "main"),
    "h265": " ! x265enc speed-preset=ultrafast tune=zerolatency key-int-max=20 ! rtph265pay name=pay0 pt=96 config-interval=-1",
    "jpeg": " ! video/x-raw,format=I420 ! jpegenc ! rtpjpegpay name=pay0 pt=26",
}
for name in ("auth", "digest", "slow"):
    PATHS[name] = PATHS["plain"]


def say(text):
    print(text, flush=True)


class Server:
    def __init__(self, port):
        self.server = GstRtspServer.RTSPServer()
        self.server.set_address("127.0.0.1")
        self.server.set_service(port)
        self.media = []
        mounts = self.server.get_mount_points()
        is_digest = "--digest" in sys.argv
        auth = GstRtspServer.RTSPAuth()
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST if is_digest else GstRtsp.RTSPAuthMethod.BASIC)
        viewer, nobody = (GstRtspServer.RTSPToken() for _ in range(2))
        viewer.set_string("media.factory.role", "viewer")
        nobody.set_string("media.factory.role", "nobody")
        if is_digest:
            auth.add_digest("viewer", PASSWORD, viewer)
        else:
            auth.add_basic(GstRtspServer.RTSPAuth.make_basic("viewer", PASSWORD), viewer)
        auth.set_default_token(nobody)
        if "--tls" in sys.argv:
            file = sys.argv[sys.argv.index("--tls") + 1]
            auth.set_tls_certificate(Gio.TlsCertificate.new_from_file(file))
        self.server.set_auth(auth)
        for path, rest in PATHS.items():
            factory = GstRtspServer.RTSPMediaFactory()
            factory.set_launch("( " + SOURCE + rest + " )")
            # Each client has its own: of shared media, two clients that come at one time abort the server (get_rates).
            factory.set_shared(False)
            for role in ("viewer", "nobody"):
                # Who may see it and not use it is asked for a password.
                may = "true" if role == "viewer" or path != "auth" else "false"
                rights = f"{role}, media.factory.access=(boolean)true, media.factory.construct=(boolean){may}"
                factory.add_role_from_structure(Gst.Structure.new_from_string(rights))
            factory.connect("media-configure", self.configured, path)
            mounts.add_factory("/" + path, factory)
        self.server.connect("client-connected", self.connected)
        if not self.server.attach(None):
            sys.exit("the port is in use")
        say(f"port {self.server.get_bound_port()}")

    def configured(self, _factory, media, path):
        self.media.append((path, media))

    def connected(self, _server, client):
        client.connect("pre-describe-request", self.described)

    def described(self, _client, context):
        path = context.uri.abspath
        say(f"describe {path}")
        if path == "/slow":
            time.sleep(2)
        return GstRtsp.RTSPStatusCode.OK

    def elements(self, name):
        for path, media in self.media:
            element = media.get_element()
            found = element and element.get_by_name(name)
            if found:
                yield path, found

    def order(self, line):
        words = line.split()
        if words[0] == "drop":
            self.server.client_filter(lambda *_: GstRtspServer.RTSPFilterResult.REMOVE)
        elif words[0] in ("mute", "unmute"):
            for _, valve in self.elements("valve"):
                valve.set_property("drop", words[0] == "mute")
        elif words[0] == "size":
            caps = f"video/x-raw,width={words[1]},height={words[2]},framerate=20/1"
            for path, size in self.elements("size"):
                if path == "plain":
                    size.set_property("caps", Gst.Caps.from_string(caps))
        say("done")
        return False


loop = GLib.MainLoop()
server = Server(sys.argv[1])


def read():
    for line in sys.stdin:
        if line.strip():
            GLib.idle_add(server.order, line)
    loop.quit()


threading.Thread(target=read, daemon=True).start()
loop.run()
