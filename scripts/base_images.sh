#!/usr/bin/env bash
# Gets the public images that deploy/images/ builds on. Where no registry can be reached it makes images of the same names
# from Debian's packages, so that the Dockerfiles that ship are the ones that are built and tested there too.
#
#   scripts/base_images.sh [runtime] [build]        default: runtime
#   scripts/base_images.sh --remove                 removes the images that were made here (never those that were pulled)
#
# `runtime` is what the program runs in, `build` what Dockerfile compiles it in (1 GB; wants Rust on this machine).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

label=org.tidemill.made-from=debian-packages
default_of() { sed -n "s/^ARG $1=//p" deploy/images/Dockerfile | head -n 1; }
runtime=${TIDEMILL_RUNTIME_BASE:-$(default_of RUNTIME_BASE)}
build=${TIDEMILL_BUILD_BASE:-$(default_of BUILD_BASE)}
if [ -z "$runtime" ] || [ -z "$build" ]; then stop "deploy/images/Dockerfile names no base images"; fi

command -v docker >/dev/null || stop "docker is missing" "apt-get install docker.io, or https://docs.docker.com/engine/install/"
docker info >/dev/null 2>&1 || stop "no Docker engine answers" "start it, or let this user reach its socket (group docker)"

if [ "${1:-}" = --remove ]; then
  made=$(docker image ls --quiet --filter "label=$label" | sort -u)
  for image in $made; do docker image rm --force "$image" >/dev/null; done
  line ok "removed the base images that were made here: $(printf '%s' "$made" | grep -c . || true)"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Succeeds when the image is there, or a registry gives it.
is_there() {
  if docker image inspect "$1" >/dev/null 2>&1; then
    line ok "$1"
    return
  fi
  if timeout 120 docker pull --quiet "$1" >"$work/pull" 2>&1; then
    line get "$1, from its registry"
    return
  fi
  line -- "$1 cannot be pulled: $(tail -n 1 "$work/pull" | cut -c1-160)"
  return 1
}

# Unpacks Debian packages of this machine's release, without installing them: `unpack FOLDER PACKAGE...`. The description of
# each stays beside its files, as in images that have no package manager.
unpack() {
  local root=$1 package name
  shift
  command -v apt-get >/dev/null || stop "no apt-get on this machine: the base images can only be pulled"
  mkdir -p "$work/packages" "$root/var/lib/dpkg/status.d"
  (
    cd "$work/packages"
    # As root it drops its rights, and complains that it cannot.
    apt-get download -q "$@" >"$work/apt" 2>&1 || {
      # The lists of packages may be missing.
      mkdir -p "$work/lists/partial" "$work/cache"
      own=(-o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache")
      apt-get "${own[@]}" update -q >"$work/apt" 2>&1 && apt-get "${own[@]}" download -q "$@" >>"$work/apt" 2>&1
    }
  ) || {
    tail -n 5 "$work/apt" >&2
    stop "Debian's packages cannot be fetched"
  }
  for package in "$work"/packages/*.deb; do
    name=$(dpkg-deb --field "$package" Package)
    dpkg-deb --extract "$package" "$root"
    dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$name"
  done
  rm -rf "$work/packages"
}

# What a program that is linked with libc needs, a user without rights, the authorities of the web, and nothing that starts.
make_runtime() {
  local root=$work/runtime home=home/nonroot stray
  unpack "$root" base-files netbase tzdata ca-certificates libc6 libgcc-s1 gcc-12-base libstdc++6 libgomp1 libssl3
  mkdir -p "$root"/{dev,etc/ssl/certs,home/nonroot,proc,root,run,sys,tmp,var/tmp}
  chmod 1777 "$root/tmp" "$root/var/tmp"
  find "$root/usr/share/ca-certificates" -name '*.crt' -print0 | sort -z | xargs -0 cat >"$root/etc/ssl/certs/ca-certificates.crt"
  # What nobody reads in an image, and what is for other programs only.
  rm -rf "$root/usr/share/man" "$root/usr/share/info" "$root/usr/share/lintian" "$root/usr/share/bug" "$root/usr/sbin"
  find "$root/usr/share/doc" -type f ! -name copyright -delete
  for stray in "$root"/usr/lib/*/gconv "$root"/usr/lib/*/engines-3 "$root"/usr/lib/*/ossl-modules; do rm -rf "$stray"; done
  printf 'root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/%s:/sbin/nologin\n' "$home" >"$root/etc/passwd"
  printf 'root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n' >"$root/etc/group"
  chmod 700 "$root/home/nonroot"
  # The times are those of the packages, and the order is fixed: the same packages give the same layer.
  tar -C "$root" --sort=name --mtime=@0 --clamp-mtime --numeric-owner --owner=0 --group=0 --exclude=./home/nonroot -cf "$work/runtime.tar" .
  tar -C "$root" --mtime=@0 --numeric-owner --owner=65532 --group=65532 -rf "$work/runtime.tar" ./home/nonroot
  docker import --change 'USER 65532' --change "WORKDIR /$home" --change "LABEL $label" \
    --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' "$work/runtime.tar" "$runtime" >/dev/null
  line get "$runtime, made from Debian's packages: $(du -sm "$root" | cut -f1) MB"
}

# A small Debian with a C compiler and this machine's Rust.
make_build() {
  local root=$work/build sysroot
  command -v rustc >/dev/null || stop "rustc is missing: make setup"
  command -v debootstrap >/dev/null || stop "debootstrap is missing" "apt-get install debootstrap, as root"
  sysroot=$(rustc --print sysroot)
  debootstrap --variant=minbase --include=gcc,g++,libc6-dev,make,pkg-config,ca-certificates,git \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" >"$work/debootstrap" 2>&1 || {
    tail -n 5 "$work/debootstrap" >&2
    stop "debootstrap failed (it wants root)"
  }
  # Authorities that this machine trusts besides those of the web: a proxy may sign what the build fetches.
  cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
  chroot "$root" update-ca-certificates >/dev/null 2>&1
  mkdir -p "$root/usr/local/cargo/bin"
  cp -r "$sysroot/bin/." "$root/usr/local/bin/"
  cp -r "$sysroot/lib/." "$root/usr/local/lib/"
  rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists" "$root/usr/share/doc"
  mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial"
  tar -C "$root" -c . | docker import --change 'ENV CARGO_HOME=/usr/local/cargo' --change "LABEL $label" \
    --change 'ENV PATH=/usr/local/cargo/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin' \
    --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' - "$build" >/dev/null
  line get "$build, made from Debian's packages and $(rustc --version): $(du -sm "$root" | cut -f1) MB"
}

for kind in "${@:-runtime}"; do
  case $kind in
    runtime) is_there "$runtime" || make_runtime ;;
    build) is_there "$build" || make_build ;;
    *) stop "which image? write 'runtime' or 'build'" ;;
  esac
done
