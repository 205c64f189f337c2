"""Two questions about cameras: does a run over eight of them stay as it is while they fail, and how old is a result?

    python3 benches/experiments/cameras.py soak --minutes 30 --out FOLDER
    python3 benches/experiments/cameras.py delay --seconds 120 --out FOLDER

The cameras are GStreamer's RTSP servers (`camera_server.py`, a process each) over one clip of 640x360 at 10 frames a second;
the program is the release build. It needs what `scripts/test-servers.sh cameras` installs, and `target/vehicles` (see
`benches/vehicles/opencv_loop.py`) to make the clip.

`soak` kills a random camera (SIGKILL, started again after 0.1 to 5 s), or stops one (SIGSTOP for 5 s, longer than `stall`),
every 5 to 15 s. Every 5 s it notes memory and descriptors of the program and of its children. At the end received must be
emitted + dropped + waiting for each camera, the detector must have seen what was emitted, and all cameras must be live.

`delay` compares the time at which a camera was given a frame with the time at which its row can be read at the program's
standard output, and with the time at which ffmpeg, told to keep nothing, gives the same picture.
"""
import argparse
import csv
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
FFMPEG = next(iter(sorted((ROOT / ".tidemill/lib").glob("ffmpeg*"))), None)
RATE, WIDTH, HEIGHT, BLOCK, BITS = 10, 640, 360, 16, 16
HERTZ = os.sysconf("SC_CLK_TCK")
CAMERAS = 8


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Camera:
    def __init__(self, clip, log=None):
        self.port, self.clip, self.log = free_port(), clip, log
        self.start()

    def start(self):
        command = ["/usr/bin/python3", HERE / "camera_server.py", str(self.port), self.clip, str(RATE)]
        command += ["--log", self.log] if self.log else []
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if not self.child.stdout.readline().startswith("port"):
            sys.exit("a camera does not start: run scripts/test-servers.sh cameras")

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()

    @property
    def url(self):
        return f"rtsp://127.0.0.1:{self.port}/camera"


def make_clip(folder):
    clip = folder / "clip.h264"
    if not clip.exists():
        python = ROOT / "target/vehicles/bin/python"
        video = ROOT / "examples/aicity/data/camera-1.mp4"
        subprocess.run([python, HERE / "camera_clip.py", FFMPEG, video, clip, str(RATE)], check=True)
    return clip


def family(process):
    """The process and its children, with their names."""
    found = [(process, "tidemill")]
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            name = pathlib.Path(f"/proc/{child}/comm").read_text().strip()
            found.append((int(child), name))
    return found


def sample(process):
    memory = descriptors = children = 0
    for one, name in family(process):
        try:
            status = pathlib.Path(f"/proc/{one}/status").read_text()
            resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
            if one == process:
                memory, descriptors = resident, len(os.listdir(f"/proc/{one}/fd"))
                stat = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
                processor, threads = (int(stat[11]) + int(stat[12])) / HERTZ, int(stat[17])
            else:
                children += resident
        except (FileNotFoundError, StopIteration):
            pass  # a child that ended meanwhile
    return memory, children, descriptors, threads, processor


def feeds(process):
    listed = json.loads(subprocess.run([BINARY, "source", "ls", "--output", "json"], check=True, capture_output=True).stdout)
    run = next(run for run in listed["runs"] if run["run"] == str(process))
    return run["sources"]["cameras"]


def soak(options, folder):
    clip = make_clip(folder)
    cameras = [Camera(clip) for _ in range(CAMERAS)]
    named = ", ".join(f"c{number}: '{camera.url}'" for number, camera in enumerate(cameras))
    (folder / "workflow.yaml").write_text(f"""version: 1
name: soak
sources:
  - id: cameras
    kind: rtsp
    key: camera
    options: {{stall: 3s, cameras: {{{named}}}}}
operators:
  - {{id: detect, kind: ml, input: cameras, variants: ['{ROOT}/models/aicity/vehicles-tiny.yaml'], batching: {{max_batch: 4, budget: 20ms}}}}
sinks:
  - {{id: boxes, kind: jsonl, input: detect, options: {{path: boxes.jsonl, columns: [camera, frame]}}}}
""")
    random.seed(40)
    run = subprocess.Popen([BINARY, "run", "workflow.yaml", "--report-json", "report.json", "--quiet"], cwd=folder, start_new_session=True)
    begun, cuts, stalls, resumed = time.time(), 0, 0, []
    rows = [("seconds", "memory_mib", "children_mib", "descriptors", "threads", "processor_seconds", "live", "received", "emitted", "dropped")]
    done = threading.Event()

    def received(name):
        return next((feed for feed in feeds(run.pid) if feed["feed"] == name), None)

    def cut():
        nonlocal cuts, stalls
        while not done.wait(random.uniform(5, 15)):
            number = random.randrange(CAMERAS)
            camera = cameras[number]
            if random.random() < 0.3:
                camera.child.send_signal(signal.SIGSTOP)
                done.wait(5)
                camera.child.send_signal(signal.SIGCONT)
                stalls += 1
            else:
                camera.kill()
                done.wait(random.uniform(0.1, 5))
                camera.start()
                cuts += 1
            back = time.time()
            while not done.is_set() and time.time() < back + 60:
                if received(f"c{number}")["state"] == "live":
                    resumed.append(time.time() - back)
                    break
                time.sleep(0.05)

    cutter = threading.Thread(target=cut)
    try:
        while run.poll() is None:
            try:
                if all(feed["state"] == "live" for feed in feeds(run.pid)):
                    break
            except StopIteration:
                pass  # the run is not there yet
            time.sleep(0.2)
        cutter.start()
        while time.time() < begun + options.minutes * 60:
            time.sleep(5)
            states = feeds(run.pid)
            live = sum(feed["state"] == "live" for feed in states)
            sums = [sum(feed["received"] for feed in states), sum(feed["emitted"] for feed in states), sum(sum(feed["drops"].values()) for feed in states)]
            rows.append((round(time.time() - begun, 1), *(round(number, 2) for number in sample(run.pid)), live, *sums))
            print(*rows[-1], flush=True)
        done.set()
        cutter.join()
        until = time.time() + 30
        while time.time() < until and not all(feed["state"] == "live" for feed in feeds(run.pid)):
            time.sleep(0.1)
        last = feeds(run.pid)
        run.send_signal(signal.SIGINT)
        code = run.wait(timeout=60)
    finally:
        done.set()
        run.poll() is None and run.kill()
        for camera in cameras:
            camera.child.poll() is None and camera.kill()
    report = json.loads((folder / "report.json").read_text())
    with open(folder / "cameras-soak.csv", "w", newline="") as out:
        csv.writer(out).writerows(rows)
    lines = sum(1 for _ in open(folder / "boxes.jsonl"))
    # At the interruption, frames between two stages are in no count but that of the first.
    stages = {stage["operator"]: stage for stage in report["stages"]}
    lost = [count for stage in report["stages"] for count in stage["drops"].values()]
    frames = {
        "received": stages["cameras"]["records_out"] + sum(sum(feed["drops"].values()) for feed in last),
        "dropped": sum(sum(feed["drops"].values()) for feed in last) + sum(lost),
        "written": stages["boxes"]["records_in"],
        "rows": lines,
    }
    frames["unexplained"] = frames["received"] - frames["dropped"] - frames["written"]
    result = {
        "minutes": options.minutes, "cuts": cuts, "stalls": stalls, "exit_code": code,
        "all_live_at_the_end": all(feed["state"] == "live" for feed in last),
        "resumed_seconds": percentiles(resumed), "feeds": last, "frames": frames,
        "report": {"sources": report.get("sources"), "live": report.get("live"), "stages": report.get("stages")},
    }
    (folder / "cameras-soak.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key not in ("report", "feeds")}, indent=1))


def percentiles(values):
    if not values:
        return None
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    return {"count": len(ordered), "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": ordered[-1]}


def number_of(row):
    """The number that is drawn into the first row of blocks of a grey picture."""
    return sum((row[bit * BLOCK + BLOCK // 2] > 127) << bit for bit in range(BITS))


def ages(shown, log):
    """Milliseconds between the newest time at which each frame was given and the time at which it was shown."""
    given = {}
    for line in pathlib.Path(log).read_text().splitlines():
        number, at = line.split()
        given.setdefault(int(number), []).append(float(at))
    found = []
    for number, at in shown:
        before = [one for one in given.get(number, []) if one <= at]
        if before:
            found.append((at - before[-1]) * 1000)
    return found


def delay(options, folder):
    clip = make_clip(folder)
    results = {}
    for name in ("tidemill", "ffmpeg") * options.rounds:
        log = folder / f"{name}.log"
        log.unlink(missing_ok=True)
        camera = Camera(clip, log)
        shown, end = [], time.time() + options.seconds
        try:
            if name == "ffmpeg":
                command = [FFMPEG, "-loglevel", "error", "-fflags", "nobuffer", "-flags", "low_delay", "-threads", "1", "-probesize", "32", "-analyzeduration", "0"]
                command += ["-rtsp_transport", "tcp", "-i", camera.url, "-f", "rawvideo", "-pix_fmt", "gray", "-fps_mode", "passthrough", "-flush_packets", "1", "-"]
                child = subprocess.Popen(command, stdout=subprocess.PIPE)
                while time.time() < end:
                    picture = child.stdout.read(WIDTH * HEIGHT)
                    shown.append((number_of(picture[(BLOCK // 2) * WIDTH:]), time.time()))
            else:
                (folder / "ops.py").write_text(
                    "def number(record):\n"
                    "    row = record['image'].array[8, :, 1]\n"
                    f"    return {{'number': sum(int(row[bit * {BLOCK} + {BLOCK // 2}] > 127) << bit for bit in range({BITS}))}}\n"
                )
                (folder / "delay.yaml").write_text(f"""version: 1
name: delay
sources: [{{id: cameras, kind: rtsp, options: {{url: '{camera.url}'}}}}]
operators:
  - {{id: detect, kind: ml, input: cameras, variants: ['{ROOT}/models/aicity/vehicles-tiny.yaml'], batching: {{max_batch: 1, budget: 0ms}}, options: {{keep: [image]}}}}
  - {{id: number, kind: python, input: detect, options: {{module: ops.py, function: number, output: {{number: int64}}, python: {ROOT}/target/vehicles}}}}
sinks: [{{id: screen, kind: stdout, input: number}}]
run: {{tick: {options.tick}}}
""")
                child = subprocess.Popen([BINARY, "run", "delay.yaml", "--quiet"], cwd=folder, stdout=subprocess.PIPE)
                while time.time() < end:
                    shown.append((json.loads(child.stdout.readline())["number"], time.time()))
        finally:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.kill()
            camera.kill()
        # The first second is the beginning of connections and models.
        results.setdefault(name, []).extend(ages(shown[RATE:], log))
    result = {name: percentiles(values) for name, values in results.items()}
    result["unit"], result["tick"] = "ms", options.tick
    (folder / f"cameras-delay-{options.tick}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["soak", "delay"])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tick", default="50ms")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/tidemill")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    global BINARY
    os.environ["TIDEMILL_FFMPEG"] = str(FFMPEG)
    runtime = next(iter(sorted((ROOT / ".tidemill/lib").glob("libonnxruntime*"))), None)
    os.environ.setdefault("TIDEMILL_ONNXRUNTIME", str(runtime))
    BINARY = options.binary.resolve()
    if not BINARY.exists() or FFMPEG is None:
        sys.exit("build the command with `cargo build --release -p tidemill`, and run scripts/setup.sh")
    (soak if options.question == "soak" else delay)(options, folder)


main()
