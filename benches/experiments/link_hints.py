"""Compares what a hint says of a link with what a stream then gets there, beside other traffic, in network namespaces.

    python3 benches/experiments/link_hints.py --binary target/debug/tidemill

The link from the edge has 20 Mbit/s, and a file of machines says so. Other programs load it in several ways; each time the rate that
`workers --links` has as the hint is noted, and then a TCP stream sends as fast as it can for some seconds. Also told: which rate plans use and why, what reports cost in bytes, and the processor time of the thread that counts.

Flows that have more than their fair share when the stream begins give way slowly, by a congestion control that differs between systems: beside
them the stream has more or less than its share for a minute or longer. The hint is what they come to (`--stream 60`), so those loads are told and
not judged.

Exit code 0: all other hints are within 15 % of what the stream got. 1: not all are. 77: no namespaces here, nothing was tried.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

from cluster_lab import CONTROLLER, carry_out

WORKERS = {"edge": 1, "cloud": 1}
MBIT = 20
PACE = "10"
PORT = 7777
TOLERATED = 0.15
SYSTEM = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")

MACHINES = f"""version: 1
name: lab
tiers:
  - {{id: edge, workers: [{{type: small, price: 0.05 $/h, names: [edge-1]}}]}}
  - {{id: cloud, workers: [{{type: large, price: 0.02 $/h, names: [cloud-1]}}]}}
links: [{{from: edge, to: cloud, price: 0 $/GiB, bandwidth: {MBIT}Mbps, delay: 25ms, direction: both}}]
"""

WORKFLOW = """version: 1
name: quiet
sources:
  - id: readings
    kind: csv
    key: key
    rate: 1/s
    options: {path: readings.csv, columns: {key: text, at: int64, value: int64}, event_time: at}
operators:
  - {id: some, kind: filter, input: readings, options: {where: "value % 7 != 3"}}
sinks:
  - {id: rows, kind: jsonl, input: some, options: {path: out/rows.jsonl}}
run: {tick: 20ms, checkpoint_every: 5}
"""

PROFILE = """version: 1
workflow: {name: quiet}
machines: [{worker_type: small, how: predicted}, {worker_type: large, how: predicted}]
services:
  - {operator: some, worker_type: small, how: predicted, batches: [{batch: 1, mean: 1ms, deviation: 1us, p50: 1ms, p75: 1ms, p90: 1ms}]}
  - {operator: some, worker_type: large, how: predicted, batches: [{batch: 1, mean: 1ms, deviation: 1us, p50: 1ms, p75: 1ms, p90: 1ms}]}
messages:
  - {from: readings, to: some, bytes_per_record: 80B}
  - {from: some, to: rows, bytes_per_record: 20B}
"""

# Sends for some seconds, as fast as it can or at a rate, and prints the bits per second that have arrived.
SENDER = """
import socket, sys, time
host, port, seconds, megabits, kind = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
congestion = sys.argv[6]
block = bytes(1400)
if kind == "udp":
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.connect((host, port + 1))
else:
    peer = socket.socket()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    peer.connect((host, port))
begun, sent = time.monotonic(), 0
while (now := time.monotonic() - begun) < seconds:
    if megabits and sent * 8 > megabits * 1e6 * now:
        time.sleep(0.002)
        continue
    try:
        sent += peer.send(block)
    except ConnectionRefusedError:
        pass
if kind == "tcp":
    peer.shutdown(socket.SHUT_WR)
    arrived = float(peer.makefile().readline())
    print(arrived * 8 / (time.monotonic() - begun))
"""

# Takes everything, and tells each sender how much it was.
RECEIVER = """
import socket, threading
def take(peer):
    count = 0
    while data := peer.recv(1 << 16):
        count += len(data)
    peer.sendall(f"{count}\\n".encode())
    peer.close()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", PORT + 1))
def drop():
    while True:
        datagrams.recv(65536)
threading.Thread(target=drop, daemon=True).start()
listener = socket.create_server(("", PORT))
print("ready", flush=True)
while True:
    threading.Thread(target=take, args=(listener.accept()[0],), daemon=True).start()
""".replace("PORT", str(PORT))

# Name, then the others: number, Mbit/s of each (0: as much as it gets), kind.
LOADS = [
    ("nobody else", 0, 0, "tcp"),
    ("three flows that take what they get", 3, 0, "tcp"),
    ("three flows of 25 % each", 3, MBIT / 4, "tcp"),
    ("one flow of 75 %", 1, 0.75 * MBIT, "tcp"),
    ("datagrams of 75 %", 1, 0.75 * MBIT, "udp"),
]


def link_of(lab):
    links = (lab.ask("workers", "--links") or {}).get("links", [])
    return next((link for link in links if (link["from"], link["to"]) == ("edge-1", "cloud-1")), None)


def counting_seconds(pid):
    """Processor seconds of the thread of an agent that counts."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "tm-counts":
            fields = (task / "stat").read_text().rsplit(") ", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / 100.0
    return None


def campaign(lab, options):
    """What was found, for people and programs."""
    folder = lab.folder / "workflow"
    folder.mkdir(parents=True)
    (folder / "workflow.yaml").write_text(WORKFLOW)
    (folder / "profile.yaml").write_text(PROFILE)
    (folder / "machines.yaml").write_text(MACHINES)
    rows = [f"k{number % 23:02},{1_700_000_000_000 + number * 1000},{number}" for number in range(3600)]
    (folder / "readings.csv").write_text("\n".join(["key,at,value", *rows]) + "\n")
    lab.network.tell(f"shape edge-hub {MBIT}")
    lab.until("the link is measured", 60, lambda: link_of(lab) is not None, pause=0.5)
    told = {"before": link_of(lab), "congestion": options.congestion, "loads": []}
    lab.ask("submit", str(folder / "workflow.yaml"), "--profiles", str(folder / "profile.yaml"), "--infra",
            str(folder / "machines.yaml"), "--as", "quiet", "--replan", "off", patience=60)
    to = lab.network.machines["cloud-1"]["address"]
    receiver = subprocess.Popen([*lab.at("cloud-1"), sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    receiver.stdout.readline()
    agent = lab.services["edge-1"].process.pid

    def send(seconds, megabits, kind):
        words = [sys.executable, "-c", SENDER, to, str(PORT), str(seconds), str(megabits), kind, options.congestion]
        return subprocess.Popen([*lab.at("edge-1"), *words], stdout=subprocess.PIPE, text=True)

    try:
        for name, count, megabits, kind in (load for load in LOADS if options.only in load[0]):
            others = [send(options.seconds + options.stream + 10, megabits, kind) for _ in range(count)]
            used, begun = counting_seconds(agent), time.monotonic()
            time.sleep(options.seconds)
            used = (counting_seconds(agent) - used) / (time.monotonic() - begun)
            link = link_of(lab)
            got = float(send(options.stream, 0, "tcp").communicate()[0])
            for other in others:
                other.kill()
                other.wait()
            hint = link["hint"]["bits_per_second"]
            found = {"load": name, "gives_way": kind == "tcp" and count > 0 and not 0 < megabits <= MBIT / (count + 1), "hint": hint, "got": got, "error": hint / got - 1, "plans_use": link["planned_by"],
                     "because": link["planned_because"], "counting": used, "detail": link["hint"]}
            told["loads"].append(found)
            print(json.dumps(found), flush=True)
    finally:
        receiver.kill()
        receiver.wait()
    # The agent ends: nothing is counted any more.
    lab.services["edge-1"].is_wanted = False
    lab.services["edge-1"].process.kill()
    lab.until("the hint ends", 30, lambda: (link_of(lab) or {}).get("planned_by") != "hint", pause=0.5)
    told["after"] = link_of(lab)
    lab.services["edge-1"].is_wanted = True
    lab.ask("cancel", "quiet")
    is_wrong = lambda found: abs(found["error"]) > TOLERATED and not found["gives_way"]
    wrong = [f"{found['load']}: {found['error']:+.0%}" for found in told["loads"] if is_wrong(found)]
    told["wrong"] = wrong
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long a load lasts before the hint is noted")
    parser.add_argument("--stream", type=float, default=15.0, help="how long the stream then sends")
    parser.add_argument("--congestion", default=SYSTEM.read_text().strip(), help="congestion control of all flows; default: that of the system")
    parser.add_argument("--only", default="", help="only loads with this in their name")
    parser.add_argument("--json", type=pathlib.Path, help="a file for what was found")
    parser.add_argument("--keep", action="store_true", help="leaves the folder")
    options = parser.parse_args()
    more = {CONTROLLER: ["--replan-pace", PACE], "edge-1": ["--type", "small", "--price", "0.05 $/h"],
            "cloud-1": ["--type", "large", "--price", "0.02 $/h"]}
    return carry_out(campaign, WORKERS, options, more)


if __name__ == "__main__":
    sys.exit(main())
