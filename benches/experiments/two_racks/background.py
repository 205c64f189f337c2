"""Traffic of others, for collectives.py: background.py PORT

Reads from standard input, line by line, what to send from now on, as JSON: bytes per second on the wire by address. It sends datagrams,
which do not slow down for anybody, and takes those that others send to PORT.
"""
import json
import select
import socket
import sys
import time

PAYLOAD, HEADERS = 1400, 42
TICK = 0.002


def main():
    port = int(sys.argv[1])
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.bind(("0.0.0.0", port))
    link.setblocking(False)
    rates, owed, last = {}, {}, time.monotonic()
    print("ready", flush=True)
    while True:
        ready = select.select([sys.stdin, link], [], [], TICK if rates else None)[0]
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            rates = {address: rate for address, rate in json.loads(line).items() if rate > 0}
            owed, last = dict.fromkeys(rates, 0.0), time.monotonic()
        if link in ready:
            try:
                while True:
                    link.recv(2048)
            except BlockingIOError:
                pass
        now = time.monotonic()
        if now - last < TICK:
            continue
        for address, rate in rates.items():
            # A program that did not run for a while does not catch up: that would be a burst.
            owed[address] += rate * min(now - last, 0.05)
            while owed[address] > 0:
                owed[address] -= PAYLOAD + HEADERS
                try:
                    link.sendto(bytes(PAYLOAD), (address, port))
                except BlockingIOError:
                    break
        last = now


if __name__ == "__main__":
    main()
