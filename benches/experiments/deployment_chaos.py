"""Questions about pictures on three tiers of containers with links between them, disturbed: killed containers, cut networks, upgrades,
a full disk, an engine that is started again. What the sink wrote is compared with an undisturbed run, row by row.

    python3 benches/experiments/deployment_chaos.py [--program target/debug/tidemill] [--only NAME ...] [--records 1600] [--report FILE]

The run of each disturbance is a deployment of its own, with an image of the program. Everything that is started is removed again.
Wants root, a container engine with Compose, and the ONNX Runtime library (`make setup`). Exit code 77 where these are not there.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "vqa" / "three-tiers"
NOT_PERMITTED = 77
RATE = 40
# What must happen within this, seconds.
PATIENCE = 180
LINKS = ["edge-hub:50:5", "hub-cloud:20:20"]


class Stuck(Exception):
    """Something did not happen in time."""


def run(*words, environment=None, check=True):
    """A command; what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}, cwd=ROOT)
    if check and done.returncode != 0:
        raise Stuck(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def until(what, is_so, seconds=PATIENCE, pause=0.2):
    """Waits; how long it took, seconds."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if is_so():
            return time.monotonic() - begin
        time.sleep(pause)
    raise Stuck(f"{what}: not within {seconds} s")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Engine:
    """A container engine of its own, so that ending it ends nothing of others."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.process = None
        # A network of its own, too: engines do not share bridges and rules well.
        self.network = f"tmdeploy{os.getpid()}"
        run("ip", "netns", "add", self.network)
        run("ip", "-n", self.network, "link", "set", "lo", "up")

    def inside(self):
        """What runs a program in its network. `ip netns exec` would hide control groups."""
        return ["nsenter", f"--net=/run/netns/{self.network}"]

    def environment(self):
        return {"DOCKER_HOST": f"unix://{self.socket}"}

    def start(self):
        # As the machine's own engine, but for where it keeps its things.
        try:
            configuration = json.loads(pathlib.Path("/etc/docker/daemon.json").read_text(encoding="utf-8"))
        except OSError:
            configuration = {}
        for key in ("data-root", "hosts", "exec-root", "pidfile", "bip", "bridge", "default-address-pools"):
            configuration.pop(key, None)
        (self.folder / "daemon.json").write_text(json.dumps(configuration), encoding="utf-8")
        words = [*self.inside(), "dockerd", "--config-file", str(self.folder / "daemon.json"), "--host", f"unix://{self.socket}", "--data-root", str(self.folder / "data"), "--exec-root",
                 str(self.folder / "exec"), "--pidfile", str(self.folder / "docker.pid"), 
                 "--default-address-pool", "base=172.29.0.0/17,size=24"]
        with (self.folder / "engine.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            until("the engine answers", lambda: run("docker", "info", environment=self.environment(), check=False).returncode == 0, 60)
        except Stuck as error:
            tail = (self.folder / "engine.log").read_text(errors="replace").splitlines()[-5:]
            raise Stuck(f"{error}: " + "; ".join(tail)) from None

    def end(self, how=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)
        self.process = None


class Deployed:
    """A deployment of the example, submitted."""

    def __init__(self, folder, program, image, records, name, engine=None, override=None):
        self.records, self.name = records, name
        self.program = [*(engine.inside() if engine else []), str(program)]
        self.environment = {**(engine.environment() if engine else {}), "TIDEMILL_ONNXRUNTIME": os.environ.get("TIDEMILL_ONNXRUNTIME", "")}
        self.folder = folder / name
        self.out = self.folder / "deployment"
        self.folder.mkdir(parents=True)
        self.call("deploy", str(folder / "plan.yaml"), "--out", str(self.out), "--infra", str(EXAMPLE / "infrastructure.yaml"),
                  "--workflow", str(EXAMPLE / "workflow.yaml"), "--image", image)
        document_path = self.out / "deployment.json"
        self.document = json.loads(document_path.read_text(encoding="utf-8"))
        self.port = free_port()
        place = self.document["controller"]["location"]
        (self.out / place / ".env").write_text(f"TIDEMILL_PORT={self.port}\n", encoding="utf-8")
        for location, text in (override or {}).items():
            (self.out / location / "compose.override.yaml").write_text(text.replace("ID", self.document["id"]), encoding="utf-8")
        self.links = None
        self.seen = []

    def call(self, *words, check=True):
        return run(*self.program, *words, environment=self.environment, check=check)

    def docker(self, *words, check=True):
        return run("docker", *words, environment=self.environment, check=check).stdout.strip()

    def up(self):
        begin = time.monotonic()
        self.call("up", str(self.out), "--records", str(self.records))
        took = time.monotonic() - begin
        address = next(self.out.glob("*/secrets/join-*")).read_text(encoding="utf-8").splitlines()[0]
        self.options = ["--controller", f"tidemill://127.0.0.1:{self.port}/{address.rsplit('/', 1)[1]}",
                        "--token-file", str(self.out / "admin.token")]
        return took

    def lay_links(self):
        words = [sys.executable, ROOT / "benches/experiments/container_links.py", self.out]
        for link in LINKS:
            words += ["--link", link]
        self.links = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **self.environment})
        line = self.links.stdout.readline()
        if not line:
            raise Stuck(f"the links end with {self.links.wait()}")
        return json.loads(line)

    def tell(self, order):
        self.links.stdin.write(order + "\n")
        self.links.stdin.flush()
        answer = json.loads(self.links.stdout.readline())
        if "error" in answer:
            raise Stuck(answer["error"])
        return answer

    def ask(self, *words):
        done = self.call(*words, *self.options, "--output", "json", check=False)
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return None

    def run(self):
        told = self.ask("status", "vqa")
        told = (told or {}).get("run")
        if told:
            self.seen.append((time.monotonic(), told["arrived"]))
        return told

    def until_arrived(self, records):
        def is_so():
            told = self.run()
            return told is not None and (told["arrived"] >= records or told["state"] not in ("starting", "running", "waiting"))
        return until(f"{records} records", is_so)

    def until_over(self):
        def is_so():
            told = self.run()
            return told is not None and told["state"] in ("complete", "failed", "cancelled")
        until("the run is over", is_so)
        return self.run()

    def service(self, name):
        told = json.loads(self.call("ps", str(self.out), "--output", "json", check=False).stdout)
        return next(one for one in told["deployment"]["services"] if one["service"] == name)

    def longest_pause(self, since):
        """The longest time without a further answer, seconds: as far as it was looked."""
        longest, last = 0.0, None
        for at, arrived in self.seen:
            if last is None or arrived > last[1]:
                if last is not None and at > since:
                    longest = max(longest, at - max(last[0], since))
                last = (at, arrived)
        return longest

    def answers(self):
        """Rows of the sink."""
        folder = self.folder / "results"
        shutil.rmtree(folder, ignore_errors=True)
        self.call("results", "vqa", "--out", str(folder), *self.options)
        file = next(folder.rglob("answers.jsonl"))
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def down(self):
        """Removes everything; what is left of it, in words."""
        if self.links is not None:
            self.links.stdin.close()
            self.links.wait(timeout=30)
            self.links = None
        self.call("down", str(self.out))
        left = []
        for words in (["ps", "--all", "--format", "{{.Names}}"], ["volume", "ls", "--format", "{{.Name}}"], ["network", "ls", "--format", "{{.Name}}"]):
            found = self.docker(*words, "--filter", f"name={self.document['project']}")
            left += found.split()
        return left

    def close(self):
        with contextlib.suppress(Exception):
            if self.links is not None:
                self.links.kill()
                self.links.wait()
            self.call("down", str(self.out), check=False)


def kill_by_pid(deployed, service):
    """Ends a container's first process from outside its engine, and waits until the engine has started it again."""
    before = deployed.service(service)
    os.kill(before["pid"], signal.SIGKILL)

    def is_back():
        now = deployed.service(service)
        return now["pid"] and now["pid"] != before["pid"] and now["restarts"] > before["restarts"]
    return f"started again within {until(f'{service} is back', is_back):.1f} s"


def disconnect(deployed, service, seconds):
    """Takes a container off its network for a while."""
    container, network = deployed.service(service)["container"], deployed.document["network"]["name"]
    deployed.docker("network", "disconnect", network, container)
    until("it is missed", lambda: any(not one["is_alive"] for one in (deployed.ask("workers") or {"workers": []})["workers"]), 30)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        deployed.run()
        time.sleep(0.2)
    deployed.docker("network", "connect", network, container)
    return f"away for {seconds} s"


def cut(deployed, link, seconds):
    """Nothing passes a link for a while."""
    lost = deployed.tell("bytes")[link]["lost"]
    deployed.tell(f"cut {link}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        deployed.run()
        time.sleep(0.2)
    deployed.tell(f"heal {link}")
    lost = deployed.tell("bytes")[link]["lost"] - lost
    if lost == 0:
        raise Stuck(f"the cut of {link} met no packet")
    return f"{lost} packets lost in {seconds} s"


def upgrade(deployed, image, code):
    """Gives all containers another image while a run goes on."""
    begin = time.monotonic()
    process = subprocess.Popen([*deployed.program, "deployment", "upgrade", deployed.out, "--image", image, "--wait", "40s", "--output", "json"],
                               stdout=subprocess.PIPE, text=True, env={**os.environ, **deployed.environment})
    while process.poll() is None:
        deployed.run()
        time.sleep(0.2)
    told = json.loads(process.stdout.read())["deployment"]
    if process.returncode != code:
        raise Stuck(f"the upgrade ended with {process.returncode}: {told}")
    took = time.monotonic() - begin
    if code == 0:
        return f"{len(told['changed'])} containers in {took:.0f} s"
    return f"{told['failed']} did not come up, all back after {took:.0f} s"


def restart_engine(deployed, engine):
    """Ends the engine in order and starts it again; its containers come back by their restart policy."""
    begin = time.monotonic()
    engine.end()
    engine.start()

    def is_back():
        told = json.loads(deployed.call("ps", str(deployed.out), "--output", "json", check=False).stdout or "{}")
        return told.get("ok") is True
    until("all containers are well", is_back)
    return f"all containers well after {time.monotonic() - begin:.0f} s"


def fill(deployed, service):
    """Writes a container's volume full, waits until the run says so, and makes room again."""
    container = deployed.service(service)
    root = pathlib.Path(f"/proc/{container['pid']}/root/var/lib/tidemill")
    with (root / "filling").open("wb") as file:
        written = 0
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
                written += 1 << 16
    until("the run says that there is no space", lambda: "No space left" in ((deployed.run() or {}).get("reason") or ""))
    time.sleep(15)  # at least one more try finds it full
    (root / "filling").unlink()
    begin = time.monotonic()
    until("the run goes on", lambda: (deployed.run() or {}).get("state") in ("running", "complete"))
    return f"{written >> 20} MiB written until it was full; {time.monotonic() - begin:.0f} s after there was room the run went on"


def compared(rows, expected):
    """Lost, doubled and wrong answers, against the rows of the undisturbed run."""
    def counted(all_rows):
        return collections.Counter((row["key"], row["answer"]) for row in all_rows)
    found, wanted = counted(rows), counted(expected)
    return sum((wanted - found).values()), sum((found - wanted).values())


SCENARIOS = {
    "undisturbed": ("nothing", None),
    "kill-edge": ("the edge's worker is killed by its pid", lambda d, _: kill_by_pid(d, "worker-edge-1")),
    "kill-hub": ("the hub's worker, which has the sink, is killed by its pid", lambda d, _: kill_by_pid(d, "worker-hub-1")),
    "kill-cloud": ("the cloud's worker is killed by its pid", lambda d, _: kill_by_pid(d, "worker-cloud-1")),
    "kill-controller": ("the controller is killed by its pid", lambda d, _: kill_by_pid(d, "controller")),
    "disconnect": ("the edge's worker is taken off the network", lambda d, _: disconnect(d, "worker-edge-1", 6)),
    "cut": ("the link between edge and hub is cut", lambda d, _: cut(d, "edge-hub", 6)),
    "upgrade": ("all containers get another image", lambda d, lab: upgrade(d, lab.good, 0)),
    "upgrade-back": ("all containers are to get an image that does not start", lambda d, lab: upgrade(d, lab.bad, 1)),
    "engine": ("the engine is ended and started again", lambda d, lab: restart_engine(d, lab.engine)),
    "full-disk": ("the volume of the sink's worker is written full, and later emptied", lambda d, _: fill(d, "worker-hub-1")),
}

# A volume that can be full without anybody else noticing.
SMALL_VOLUME = """volumes:
  worker-hub-1:
    driver_opts: {type: tmpfs, device: tmpfs, o: "size=96m,uid=65532,gid=65532,mode=0755"}
    labels: {tidemill.deployment: ID}
"""


class Lab:
    """Images, the plan and the engines."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.image = f"tidemill-chaos:{os.getpid()}"
        self.good, self.bad = f"{self.image}-good", f"{self.image}-bad"
        self.engine = None

    def prepare(self):
        run("scripts/image.sh", "--program", str(self.program), "--tag", self.image, "--onnxruntime", "--no-sbom")
        for tag, line in ((self.good, "LABEL better=yes"), (self.bad, "ENV TIDEMILL_LOG_LEVEL=nonsense")):
            where = self.folder / tag.replace(":", "-")
            where.mkdir()
            (where / "Dockerfile").write_text(f"FROM {self.image}-onnxruntime\n{line}\n", encoding="utf-8")
            run("docker", "build", "--quiet", "--tag", tag, str(where), environment={"DOCKER_BUILDKIT": "0"})
        run(str(self.program), "plan", str(EXAMPLE / "workflow.yaml"), "--infra", str(EXAMPLE / "infrastructure.yaml"), "--profiles",
            str(ROOT / "examples/vqa/profile.yaml"), "--out", str(self.folder / "plan.yaml"))

    def own_engine(self):
        """An engine of its own, with the image in it."""
        folder = self.folder / "own-engine"
        folder.mkdir()
        self.engine = Engine(folder)
        self.engine.start()
        save = subprocess.Popen(["docker", "save", f"{self.image}-onnxruntime"], stdout=subprocess.PIPE)
        subprocess.run(["docker", "load", "--quiet"], stdin=save.stdout, check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, **self.engine.environment()})
        save.wait()
        return self.engine

    def close(self):
        if self.engine is not None:
            with contextlib.suppress(Exception):
                self.engine.end()
            run("ip", "netns", "del", self.engine.network, check=False)
            for mount in reversed(pathlib.Path("/proc/mounts").read_text().splitlines()):
                if str(self.engine.folder) in mount.split()[1]:
                    run("umount", "--lazy", mount.split()[1], check=False)
        for image in (self.good, self.bad, f"{self.image}-onnxruntime", self.image):
            run("docker", "image", "rm", "--force", image, check=False)


def scenario(lab, name, records, expected):
    """One run; a row of the table."""
    what, disturb = SCENARIOS[name]
    engine = lab.own_engine() if name == "engine" else None
    override = {"hub": SMALL_VOLUME} if name == "full-disk" else None
    deployed = Deployed(lab.folder, lab.program, f"{lab.image}-onnxruntime", records, name, engine, override)
    row = {"name": name, "what": what}
    try:
        row["up_seconds"] = deployed.up()
        deployed.lay_links()
        deployed.until_arrived(RATE * 5)
        since = time.monotonic()
        if disturb is not None:
            row["found"] = disturb(deployed, lab)
        over = deployed.until_over()
        row["state"], row["reason"] = over["state"], over.get("reason")
        row["pause"] = deployed.longest_pause(since)
        row["links"] = deployed.tell("bytes")
        rows = deployed.answers()
        row["answers"] = len(rows)
        row["rows"] = rows
        if expected is not None:
            row["lost"], row["doubled"] = compared(rows, expected)
        row["left"] = deployed.down()
    finally:
        deployed.close()
    return row


def is_right(row):
    """Whether a run ended as it should: complete and the same."""
    if row.get("error") or row["left"]:
        return False
    return row["state"] == "complete" and row.get("lost", 0) == 0 and row.get("doubled", 0) == 0


def page(rows, records, minutes):
    """The result as a page of the book."""
    version = run("docker", "version", "--format", "{{.Server.Version}}").stdout.strip()
    lines = [
        "# Deployments, disturbed",
        "",
        "<!-- Made by benches/experiments/deployment_chaos.py; changes here are lost. -->",
        "",
        "The example [three tiers](../tutorial-three-tiers.md) in containers, each tier a Compose project, with links between the tiers "
        f"({', '.join(LINKS)}: Mbit/s and ms one way) that a program carries packet by packet. {records} questions and pictures at {RATE}/s; after "
        "5 s of answers one thing happens. Answers are compared with those of the undisturbed run, each by its key and text.",
        "",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} processors ({platform.machine()}), container engine {version}, load average {os.getloadavg()[1]:.1f}, "
        f"{minutes:.0f} minutes.",
        "",
        "| event | observed | the run | longest pause of answers | answers | lost | doubled |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.get("error"):
            lines.append(f"| {row['what']} | {row['error'].splitlines()[0]} | not measured | | | | |")
            continue
        reason = f": {row['reason']}" if row.get("reason") else ""
        lines.append(f"| {row['what']} | {row.get('found', '')} | {row['state']}{reason} | {row['pause']:.1f} s | {row['answers']} | "
                     f"{row.get('lost', '-')} | {row.get('doubled', '-')} |")
    ups = [row["up_seconds"] for row in rows if "up_seconds" in row]
    lines += [
        "",
        f"From `tidemill up` to a run that runs: {min(ups):.0f} to {max(ups):.0f} s. After `tidemill down` nothing was left in the engine "
        f"in {sum(1 for row in rows if row.get('left') == [])} of {len(rows)} runs. Pauses are those seen by who asks five times a second.",
        "",
        "    python3 benches/experiments/deployment_chaos.py --report docs/benchmarks/deployment.md",
        "",
    ]
    return "\n".join(lines)


def main():
    """Runs all or some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/debug/tidemill")
    parser.add_argument("--only", nargs="*", choices=sorted(SCENARIOS))
    parser.add_argument("--records", type=int, default=1600)
    parser.add_argument("--report", type=pathlib.Path)
    arguments = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("docker") is None or run("docker", "info", check=False).returncode != 0:
        print("skipped: this wants root and a container engine", file=sys.stderr)
        sys.exit(NOT_PERMITTED)
    os.environ.setdefault("TIDEMILL_ONNXRUNTIME", str(next((ROOT / ".tidemill/lib").glob("libonnxruntime*"), "")))
    # Whoever ends this in order leaves nothing behind either.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(130))
    names = [name for name in SCENARIOS if not arguments.only or name in arguments.only or name == "undisturbed"]
    begin = time.monotonic()
    rows, expected = [], None
    with tempfile.TemporaryDirectory(prefix="tidemill-chaos-", ignore_cleanup_errors=True) as folder:
        lab = Lab(arguments.program.resolve(), pathlib.Path(folder))
        try:
            lab.prepare()
            for name in names:
                try:
                    row = scenario(lab, name, arguments.records, expected)
                except (Stuck, OSError) as error:
                    row = {"name": name, "what": SCENARIOS[name][0], "error": str(error), "left": []}
                if name == "undisturbed" and not row.get("error"):
                    expected = row["rows"]
                row.pop("rows", None)
                rows.append(row)
                print(json.dumps(row), flush=True)
        finally:
            lab.close()
    if arguments.report:
        arguments.report.write_text(page(rows, arguments.records, (time.monotonic() - begin) / 60), encoding="utf-8")
    wrong = [row["name"] for row in rows if not is_right(row)]
    print(f"{len(rows) - len(wrong)} of {len(rows)} as they should be" + (f"; not: {', '.join(wrong)}" if wrong else ""))
    sys.exit(1 if wrong else 0)


main()
