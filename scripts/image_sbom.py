#!/usr/bin/env python3
"""What is in an image, as CycloneDX 1.5 JSON: the crates that the program is made of, and the Debian packages of its base.

    python3 scripts/image_sbom.py IMAGE --out FILE [--library NAME=VERSION] [--ffmpeg VERSION]

The crates are those of Cargo.lock that `cargo metadata` resolves for this platform, without those that only tests or builds
use. The packages are those that the image itself describes (var/lib/dpkg/status.d). The same image and lock give the same file.
"""
import argparse
import io
import json
import pathlib
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLATFORM = "x86_64-unknown-linux-gnu"
PROGRAM = "tidemill"
PLATFORMS = {"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}


def run(*words):
    """What a program prints."""
    return subprocess.run(words, check=True, capture_output=True, cwd=ROOT).stdout


def crates(platform):
    """Packages that the program is linked from."""
    metadata = json.loads(run("cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", platform))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(key for key, package in packages.items() if package["name"] == PROGRAM and key in metadata["workspace_members"])
    reached, waiting = set(), [root]
    while waiting:
        key = waiting.pop()
        if key in reached:
            continue
        reached.add(key)
        for dependency in nodes[key]["deps"]:
            # Kind null: it is linked. Build scripts and tests are not in the program.
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return sorted((packages[key] for key in reached), key=lambda package: (package["name"], package["version"]))


def packages(image):
    """Fields of the Debian packages that an image describes."""
    container = run("docker", "create", image, "version").decode().strip()
    try:
        archive = subprocess.run(["docker", "cp", f"{container}:/var/lib/dpkg/status.d", "-"], check=False, capture_output=True)
    finally:
        run("docker", "rm", container)
    if archive.returncode != 0:
        sys.exit(f"{image} does not describe its packages: {archive.stderr.decode().strip()}")
    found = []
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in tar.getmembers():
            if not member.isfile() or member.name.endswith(".md5sums"):
                continue
            text = tar.extractfile(member).read().decode(errors="replace")
            fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(" "))
            if "Package" in fields and "Version" in fields:
                found.append(fields)
    return sorted(found, key=lambda fields: fields["Package"])


def crate_component(package):
    """A crate."""
    own = package["source"] is None
    component = {
        "type": "library",
        "name": package["name"],
        "version": package["version"],
        "purl": f"pkg:cargo/{package['name']}@{package['version']}",
        "bom-ref": f"cargo:{package['name']}@{package['version']}",
    }
    if own:
        # Not in a registry.
        component.pop("purl")
    if package.get("license"):
        # Older crates write a slash for "or".
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return component


def package_component(fields):
    """A Debian package."""
    name, version, architecture = fields["Package"], fields["Version"], fields.get("Architecture", "all")
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}",
        "bom-ref": f"deb:{name}@{version}",
    }


def library_component(text):
    """A library that comes from the Python package index."""
    name, version = text.split("=", 1)
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "bom-ref": f"library:{name}@{version}",
    }


def ffmpeg_component(version):
    """The program that reads and writes videos. Not linked with anything here, and under a licence of its own."""
    return {
        "type": "application",
        "name": "ffmpeg",
        "version": version,
        "purl": f"pkg:generic/ffmpeg@{version}",
        "bom-ref": f"program:ffmpeg@{version}",
        "licenses": [{"license": {"id": "GPL-3.0-or-later"}}],
    }


def document(image, libraries, ffmpeg):
    """All of it."""
    facts = json.loads(run("docker", "image", "inspect", image))[0]
    labels = facts["Config"].get("Labels") or {}
    components = [package_component(fields) for fields in packages(image)]
    components += [crate_component(package) for package in crates(PLATFORMS.get(facts["Architecture"], PLATFORM))]
    components += [library_component(text) for text in libraries]
    components += [ffmpeg_component(ffmpeg)] if ffmpeg else []
    layers = [{"name": f"layer {number}", "value": layer} for number, layer in enumerate(facts["RootFS"]["Layers"])]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "name": PROGRAM,
                "version": labels.get("org.opencontainers.image.version", "unknown"),
                "bom-ref": "image",
                "properties": layers,
            },
        },
        "components": components,
    }


def main():
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--library", action="append", default=[], metavar="NAME=VERSION", help="a library besides")
    parser.add_argument("--ffmpeg", metavar="VERSION", help="the program ffmpeg besides")
    arguments = parser.parse_args()
    made = document(arguments.image, arguments.library, arguments.ffmpeg)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    kinds = [component["bom-ref"].split(":")[0] for component in made["components"]]
    besides = "".join(f", {text}" for text in arguments.library) + (f", ffmpeg={arguments.ffmpeg}" if arguments.ffmpeg else "")
    print(f"{arguments.out}: {kinds.count('cargo')} crates, {kinds.count('deb')} packages{besides}")


main()
