"""Transfers of tasks, for collectives.py: exchange.py PORT

Takes what others send to PORT, and answers when all of it came. Reads from standard input, line by line, what to send, as JSON: a list of
addresses and bytes. It sends all at once, and writes when it began and when the last answer came, in seconds of the clock that does not
jump.
"""
import json
import socket
import sys
import threading
import time


def receive(link):
    with link:
        left = int.from_bytes(link.recv(8, socket.MSG_WAITALL), "big")
        while left > 0:
            left -= len(link.recv(min(left, 1 << 16))) or sys.exit("a sender has ended")
        link.sendall(b".")


def accept(door):
    while True:
        threading.Thread(target=receive, args=(door.accept()[0],), daemon=True).start()


def send(address, port, size):
    with socket.create_connection((address, port)) as link:
        link.sendall(size.to_bytes(8, "big") + bytes(size))
        link.recv(1)


def main():
    port = int(sys.argv[1])
    door = socket.create_server(("0.0.0.0", port))
    threading.Thread(target=accept, args=(door,), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        begun = time.monotonic()
        threads = [threading.Thread(target=send, args=(address, port, size)) for address, size in json.loads(line)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps([begun, time.monotonic()]), flush=True)


if __name__ == "__main__":
    main()
