"""Checks the answers of `tidemill requirements`: shapes a link to each of them, and measures runs on a device at its other end.

    python3 benches/experiments/requirements.py [--tidemill target/release/tidemill] [--remote-run target/release/examples/remote_run]
        [--budgets 2,5,10,20] [--runs 12] [--out FILE]

    cargo build --release -p tidemill && cargo build --release -p tidemill-device --example remote_run

For each budget: half of it is given to a round trip, `tidemill requirements` says which bandwidth that needs, and a link between two
network namespaces gets both. A run there is compared with the same run without a link. It should take the budget longer, within 1.5
points, and with 0.8 of the bandwidth longer than the budget. Then the same with four outstanding runs, and the time between their ends.

The device is an emulated one of `tidemill device serve`, so that its time is known: 600 ms a run, or 60 ms with a window. Inputs and
outputs are those of the model scene-features-tiny. The processor time of messages is measured first, over the loopback, and given as
`--software`.

Prints a table, and writes JSON to FILE. Exit code 1 if a point is off. Needs root, `ip`, `tc` and /dev/net/tun; exit code 77 without.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
WORKFLOW = REPOSITORY / "examples/vqa/workflow.yaml"
OPERATOR, VARIANT, DEVICE = "scene_features", "scene-features-tiny", "card"
PORT = 7911
# Seconds of a run, alone and with a window.
ALONE, WINDOWED, WINDOW = 0.600, 0.060, 4
# Points of percent that an answer may be off.
TOLERANCE = 1.5
NOT_PERMITTED = 77
LINK = "edge-hub"
# A packet and its header: what tbf lets through at once.
BURST = "3100b"


def run(*words):
    """The output of a command that must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: nothing fits, which is an answer
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def first_line(stream, process, what):
    line = stream.readline()
    if not line:
        process.wait()
        raise OSError(f"{what} ended with exit code {process.returncode}")
    return line


class Network:
    """Two machines in namespaces, and the link between them."""

    def __init__(self):
        script = pathlib.Path(__file__).with_name("cluster_network.py")
        self.process = subprocess.Popen([sys.executable, script, "--machines", "edge:1,hub:1"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(self.process.wait())
        machines = json.loads(line)["machines"]
        self.client, self.device = machines["edge-1"], machines["hub-1"]
        for machine in (self.client, self.device):
            # A pause between two runs must not make the connection slow again.
            self.inside(machine, "sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0")

    @staticmethod
    def inside(machine, *words):
        return run("ip", "netns", "exec", machine["namespace"], *words)

    def order(self, order):
        """An order of cluster_network.py."""
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        answer = json.loads(first_line(self.process.stdout, self.process, "the network"))
        if "error" in answer:
            raise OSError(answer["error"])

    def shape(self, round_trip, bits):
        """Seconds, and bits per second each way."""
        self.order(f"delay {LINK} {round_trip * 500}")
        for machine, towards in ((self.client, "hub"), (self.device, "edge")):
            run("tc", "-n", machine["router"], "qdisc", "replace", "dev", f"to-{towards}", "root", "tbf", "rate", f"{int(bits)}bit",
                "burst", BURST, "latency", "400ms")

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=20)


class Device:
    """An emulated device at an address, whose runs take this time; namespace: none is this one."""

    def __init__(self, tidemill, namespace, address, seconds, folder):
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        times = pathlib.Path(folder) / "device.json"
        times.write_text(json.dumps({"kind": DEVICE, "others": {"run_ms": seconds * 1e3}}), encoding="utf-8")
        self.address = f"tcp://{address}:{PORT}"
        self.process = subprocess.Popen([*inside, tidemill, "device", "serve", "--backend", "emulated", "--profile", times, "--listen",
                                         self.address, "--device", f"requirements-{PORT}", "--cache", pathlib.Path(folder) / "cache"],
                                        stderr=subprocess.PIPE, text=True)
        while "serves at" not in first_line(self.process.stderr, self.process, "the device"):
            pass

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)


def measured(program, namespace, device, payload, runs, window):
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    return json.loads(run(*inside, program, "at", device.address, *payload, runs, window))


def profile(folder, seconds):
    """A profile whose device takes this time."""
    file = pathlib.Path(folder) / "profile.yaml"
    file.write_text(
        f"version: 1\nworkflow: {{name: vqa}}\nmachines: [{{worker_type: {DEVICE}, how: measured}}]\nservices:\n"
        + "".join(f"  - {{operator: {operator}, variant: {variant}, worker_type: {DEVICE}, how: measured, "
                  f"batches: [{{batch: 1, mean: {round(seconds * 1e9)}ns}}]}}\n"
                  for operator, variant in ((OPERATOR, VARIANT), ("speech", "speech-small"), ("answerer", "answerer-small"))),
        encoding="utf-8")
    return file


def asked(tidemill, file, *more):
    """The answer for the model."""
    words = (tidemill, "requirements", WORKFLOW, "--profiles", file, "--device", DEVICE, "--output", "json", *more)
    document = json.loads(run(*words))
    models = [model for operator in document["operators"] for model in operator["models"]]
    return next(model for model in models if model["variant"] == VARIANT)


def points(options, network, folder, window):
    """Measures each budget over the link that the answer names, and over one with 0.8 of its bandwidth."""
    seconds = WINDOWED if window > 1 else ALONE
    runs = options.runs * (5 if window > 1 else 1)
    figure = "interval" if window > 1 else "run"
    file = profile(folder, seconds)
    model = asked(options.tidemill, file)
    payload = (int(model["bytes_to_device"]), int(model["bytes_back"]))

    def without_a_link():
        """Seconds of a run in one process, now: other work of the machine makes it longer too."""
        return json.loads(run(options.remote_run, "here", seconds * 1e3, *payload, runs))["run"]

    local = without_a_link()
    device = Device(options.tidemill, None, "127.0.0.1", seconds, folder)
    try:
        beside = measured(options.remote_run, None, device, payload, runs, 1)
    finally:
        device.close()
    software = max(0.0, beside["run"] - local)
    device = Device(options.tidemill, network.device["namespace"], network.device["address"], seconds, folder)
    found = []
    try:
        for budget in options.budgets:
            local = without_a_link()
            file = profile(folder, local)
            allowed = window * (1 + budget / 100) * local - local - software
            round_trip = allowed / 2
            words = ("--budget", f"{budget}%", "--window", window, "--software", f"{round(software * 1e9)}ns")
            answer = asked(options.tidemill, file, *words, "--rtt", f"{round(round_trip * 1e9)}ns")
            least = answer["frontier"][0]["bandwidth"]
            for part in (1.0, 0.8):
                network.shape(round_trip, least * part)
                there = measured(options.remote_run, network.client["namespace"], device, payload, runs, window)
                more = (there[figure] / local - 1) * 100
                is_right = abs(more - budget) <= TOLERANCE if part == 1.0 else more > budget
                found.append({"window": window, "budget": budget, "round_trip": round_trip, "bandwidth": least * part, "part": part,
                              "local": local, "software": software, "measured": there[figure], "more": more, "right": is_right})
                print(f"{window:6} {budget:7.1f} % {round_trip * 1e3:9.2f} ms {least * part / 1e6:9.1f} Mbit/s {part:5.1f} {more:9.2f} % "
                      f"{'ok' if is_right else 'OFF'}", flush=True)
    finally:
        device.close()
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tidemill", default=REPOSITORY / "target/release/tidemill")
    arguments.add_argument("--remote-run", default=REPOSITORY / "target/release/examples/remote_run")
    arguments.add_argument("--budgets", default="2,5,10,20", type=lambda text: [float(budget) for budget in text.split(",")])
    arguments.add_argument("--runs", default=12, type=int)
    arguments.add_argument("--out")
    options = arguments.parse_args()
    network = Network()
    try:
        print("window  budget   round trip     bandwidth          part      more")
        with tempfile.TemporaryDirectory() as folder:
            found = [point for window in (1, WINDOW) for point in points(options, network, folder, window)]
    finally:
        network.close()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps({"points": found}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(point["right"] for point in found) else 1


if __name__ == "__main__":
    sys.exit(main())
