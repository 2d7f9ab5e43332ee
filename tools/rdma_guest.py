#!/usr/bin/env python3
"""Run a command on a machine that has RDMA, made on the spot: `rdma_guest.py -- COMMAND…`.

An emulated computer (QEMU; no privilege and no hardware needed) boots Debian's kernel, whose soft-RoCE driver is a real
RDMA device to every program, and runs the command on this machine's own file system, mounted read-only. The output and
the exit status are the command's. It tells whether code works with real verbs, not how fast.

Everything comes from Debian packages (about 90 MB, downloaded once into a cache folder); nothing is installed.
Inside, `TMPDIR` and `HOME` are in memory, and everything else cannot be written.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rdma_guest_image import Image, ImageError, initial_ram_disk, library_folders

WANTED = ("qemu-system-x86", "busybox-static", "iproute2")  # with what they depend on
UNPACKED = ("libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200", "busybox-static", "seabios")
KERNEL = "linux-image-amd64"
TIMED_OUT = 124
DOWNLOAD_TIMEOUT_S = 600


class GuestError(Exception):
    """The guest cannot be made or did not run the command; told in a few lines."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command in the guest and return its exit status."""
    parser = argparse.ArgumentParser(description="Run a command on an emulated machine with soft-RoCE.")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where packages are kept (%(default)s)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds until the guest is ended (%(default)s)")
    parser.add_argument("--memory", type=int, default=2048, help="memory of the guest in MiB (%(default)s)")
    parser.add_argument("command", nargs="+", help="the command and its arguments, after --")
    options = parser.parse_args(arguments)
    try:
        image = Image(prepare(options.cache.resolve()))
        return run(image, options.command, options.timeout, options.memory)
    except (GuestError, ImageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def default_cache() -> Path:
    """Return where the packages are kept unless told otherwise."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "zmq-rpc-backend" / "rdma-guest"


def prepare(cache: Path) -> Path:
    """Return the folder with all packages unpacked, downloading them if this was not done before.

    Raises:
        GuestError: this machine cannot do it, naming what is missing.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise GuestError(f"the guest needs Linux on x86_64, this is {platform.system()} on {platform.machine()}")
    missing = [name for name in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise GuestError(f"the guest is made of Debian packages, and this machine has no {missing[0]}")
    wanted = hashlib.sha256(repr((WANTED, UNPACKED, KERNEL)).encode()).hexdigest()
    root, stamp = cache / "root", cache / "complete"
    if stamp.exists() and stamp.read_text() == wanted:
        return root
    shutil.rmtree(cache, ignore_errors=True)
    packages = cache / "packages"
    packages.mkdir(parents=True)
    print(f"downloading Debian packages of the RDMA guest to {packages}", file=sys.stderr, flush=True)
    download(packages)
    for package in sorted(packages.glob("*.deb")):
        call(["dpkg-deb", "-x", str(package), str(root)])
    shutil.rmtree(packages)
    stamp.write_text(wanted)
    return root


def download(packages: Path) -> None:
    """Download all packages, with fresh package lists of our own if the system's do not do.

    Raises:
        GuestError: naming the package source's own words.
    """
    partial, lists = packages / "partial", packages.parent / "lists"
    partial.mkdir(exist_ok=True)
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    apart = [f"-oDir::Cache::archives={packages}", "-oDebug::NoLocking=1", "-oAPT::Sandbox::User=root"]
    try:
        fetch(packages, apart)
    except GuestError:
        apart += [
            f"-oDir::State::lists={lists}",
            f"-oDir::Cache::pkgcache={lists}/p",
            f"-oDir::Cache::srcpkgcache={lists}/s",
        ]
        call(["apt-get", "-q", *apart, "update"])
        fetch(packages, apart)


def fetch(packages: Path, apart: list[str]) -> None:
    """Download once, with these options of apt."""
    listed = call(["apt-cache", *apart, "depends", KERNEL])
    kernels = [line.split()[-1] for line in listed.splitlines() if "Depends: linux-image-" in line]
    if not kernels:
        raise GuestError(f"the package {KERNEL} names no kernel; are Debian's package sources configured?")
    get = ["apt-get", "-q", "-y", *apart]
    call([*get, "install", "--download-only", "--no-install-recommends", *WANTED])
    call([*get, "download", kernels[0], *UNPACKED], folder=packages)


def call(command: list[str], folder: Path | None = None) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        GuestError: it failed, with its last words.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GuestError(f"{shlex.join(command)} took longer than {DOWNLOAD_TIMEOUT_S} s") from error
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise GuestError(f"Debian packages of the RDMA guest cannot be had: {shlex.join(command)}\n{words}")
    return done.stdout


def run(image: Image, command: list[str], timeout_s: float, memory_mib: int) -> int:
    """Boot the guest for one command and return the command's exit status; 124 when the time was up.

    Raises:
        GuestError: the guest ended without having run the command.
    """
    with tempfile.TemporaryDirectory(prefix="rdma-guest-") as folder:
        disk, console = Path(folder, "initrd"), Path(folder, "console")
        disk.write_bytes(gzip.compress(initial_ram_disk(image, script(image, command)), 1))
        start = emulator(image, disk, console, memory_mib)
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, library_folders(image.root)))}
        try:
            done = subprocess.run(
                start, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"error: the guest did not finish within {timeout_s:g} s; ended it", file=sys.stderr)
            return TIMED_OUT
        said = console.read_text(errors="replace").splitlines() if console.exists() else []
        ends = [line.partition("command ended with ")[2] for line in said if line.startswith("command ended with ")]
        if not ends:
            words = "\n".join([*said[-15:], done.stderr.decode(errors="replace")])
            raise GuestError(f"the guest ended before the command did; its last words:\n{words}")
        return int(ends[0])


def script(image: Image, command: list[str]) -> str:
    """Return the shell script that runs the command inside, in the current folder, with the verbs libraries."""
    variables = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LD_LIBRARY_PATH": ":".join(str(folder) for folder in image.verbs_folders()),
        "RDMAV_DRIVERS": "rxe",
        "IBV_DRIVERS": "rxe",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": "/run/tmp",
        "HOME": "/run/home",
        "XDG_CACHE_HOME": "/run/home",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/run/tmp/hypothesis",
        "LANG": "C.UTF-8",
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(
        ["mkdir -p /run/tmp /run/home", *lines, f"cd {shlex.quote(str(Path.cwd()))}", f"exec {shlex.join(command)}"]
    )


def emulator(image: Image, disk: Path, console: Path, memory_mib: int) -> list[str]:
    """Return the emulator's command line: its first serial line is the console, the second the command's output."""
    folders = [part for folder in image.firmware_folders() for part in ("-L", str(folder))]
    boot = f"console=ttyS0 panic=-1 quiet mitigations=off rdma={image.root}"
    return [
        str(image.find("bin/qemu-system-x86_64")), "-accel", "tcg,thread=multi",
        "-cpu", "max", "-smp", "2", "-m", str(memory_mib),
        "-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none", *folders,
        "-serial", f"file:{console}", "-serial", "stdio",
        "-kernel", str(image.kernel()), "-initrd", str(disk), "-append", boot,
        "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
