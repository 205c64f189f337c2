#!/usr/bin/env python3
"""A sender and a receiver of messages over one TCP or MPTCP connection, the contenders that `paths.py` compares with.

  benches/experiments/paths_stream.py receive --listen mptcp://10.77.1.2:7001 --out FILE
  benches/experiments/paths_stream.py send --to mptcp://10.77.1.2:7001 --every-ms 5 --bytes 1024 --seconds 10 --out FILE

Each message has its number and its length in front. `paths.py --help` describes the files.
"""
import argparse
import socket
import struct
import time

PROTOCOLS = {"tcp": 0, "mptcp": 262}
HEAD = struct.Struct("!QI")


def create_socket(url):
    """Socket for a URL, and the address in it."""
    scheme, _, address = url.partition("://")
    host, port = address.split(":")
    return scheme, socket.socket(socket.AF_INET, socket.SOCK_STREAM, PROTOCOLS[scheme]), (host, int(port))


def connect(url):
    """Connect as soon as a receiver listens."""
    until = time.monotonic() + 10
    while True:
        _, link, address = create_socket(url)
        try:
            link.connect(address)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return link
        except ConnectionRefusedError:
            link.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def send(options):
    """Send messages on time, or as soon as the socket takes them."""
    link = connect(options.to)
    time.sleep(0.5)  # MPTCP adds its other subflows
    every, rest = round(options.every_ms * 1e6), bytes(options.bytes - HEAD.size)
    start = time.monotonic_ns()
    with open(options.out, "w", buffering=1) as out:
        for number in range(round(options.seconds * 1e9 / every)):
            due = start + number * every
            time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
            out.write(f"{number} {due}\n")
            link.sendall(HEAD.pack(number, options.bytes) + rest)
    link.shutdown(socket.SHUT_WR)
    link.recv(1)  # the receiver closes when it has everything


def receive(options):
    """Write down when each message of one connection arrives."""
    scheme, listener, (host, port) = create_socket(options.listen)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # A subflow of MPTCP may come to another address.
    listener.bind(("" if scheme == "mptcp" else host, port))
    listener.listen()
    print("ready", flush=True)
    link, _ = listener.accept()
    waiting = bytearray()
    with open(options.out, "w", buffering=1) as out:
        while piece := link.recv(65536):
            now = time.monotonic_ns()
            waiting += piece
            while len(waiting) >= HEAD.size:
                number, length = HEAD.unpack_from(waiting)
                if len(waiting) < length:
                    break
                out.write(f"{number} {now}\n")
                del waiting[:length]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    roles = parser.add_subparsers(required=True)
    sender, receiver = roles.add_parser("send"), roles.add_parser("receive")
    sender.add_argument("--to", required=True)
    sender.add_argument("--every-ms", type=float, default=5)
    sender.add_argument("--bytes", type=int, default=1024)
    sender.add_argument("--seconds", type=float, required=True)
    receiver.add_argument("--listen", required=True)
    for role, carry_out in ((sender, send), (receiver, receive)):
        role.add_argument("--out", required=True)
        role.set_defaults(carry_out=carry_out)
    options = parser.parse_args()
    options.carry_out(options)


if __name__ == "__main__":
    main()
