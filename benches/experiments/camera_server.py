"""One camera: a clip of H.264 again and again by GStreamer's RTSP server, at its own pace, encoded before.

    /usr/bin/python3 benches/experiments/camera_server.py PORT CLIP FRAMES_PER_SECOND [--log FILE]

The clip begins each frame with an access unit delimiter and each second with a key frame. With `--log`, a line
`NUMBER SECONDS` for each frame of the first client: its number in the clip, and the time at which the server was given it.
"""
import sys
import time

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

DELIMITER = b"\x00\x00\x00\x01\x09"


def main():
    port, clip, rate = sys.argv[1], sys.argv[2], int(sys.argv[3])
    log = open(sys.argv[5], "a", buffering=1) if len(sys.argv) > 5 else None
    Gst.init(None)
    content = open(clip, "rb").read()
    starts = []
    at = content.find(DELIMITER)
    while at >= 0:
        starts.append(at)
        at = content.find(DELIMITER, at + 1)
    frames = [content[begin:end] for begin, end in zip(starts, starts[1:] + [len(content)])]
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(port)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(
        "( appsrc name=frames is-live=true format=time do-timestamp=true"
        f" caps=video/x-h264,stream-format=byte-stream,alignment=au,framerate={rate}/1"
        " ! h264parse ! rtph264pay name=pay0 pt=96 config-interval=-1 )"
    )
    factory.set_shared(False)

    def configured(_factory, media):
        source = media.get_element().get_by_name("frames")
        state = {"number": 0, "next": time.monotonic()}

        def push():
            number = state["number"] % len(frames)
            buffer = Gst.Buffer.new_wrapped(frames[number])
            given = time.time()
            if source.emit("push-buffer", buffer) != Gst.FlowReturn.OK:
                return False
            if log:
                log.write(f"{number} {given:.6f}\n")
            state["number"] += 1
            state["next"] += 1 / rate
            GLib.timeout_add(max(1, int((state["next"] - time.monotonic()) * 1000)), push)
            return False

        GLib.timeout_add(1, push)

    factory.connect("media-configure", configured)
    server.get_mount_points().add_factory("/camera", factory)
    if not server.attach(None):
        sys.exit("the port is in use")
    print(f"port {server.get_bound_port()}", flush=True)
    GLib.MainLoop().run()


main()
