"""What the RDMA guest boots: files of unpacked Debian packages, and a first file system made of them.

Belongs here: where things lie in the packages, the order of kernel modules, the archive format and the first program.
Must not be here: downloading, and starting the guest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MODULES = ("crc32_generic", "virtio_pci", "9pnet_virtio", "9p", "ib_uverbs", "rdma_ucm", "rdma_rxe", "dummy")
"""virtio and 9p bring the host's files, dummy is the network that soft-RoCE (rxe) runs over; rxe computes its checksum
with crc32_generic without naming it."""
FIRST_PROGRAM = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module" || echo "no module $module"; done < /modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose host /host
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount -t devtmpfs devtmpfs /host/dev
ln -s /proc/self/fd /host/dev/fd
mkdir -p /host/dev/shm
mount -t tmpfs tmpfs /host/dev/shm
mount -t tmpfs tmpfs /host/run
ip link set lo up
ip link add dummy0 type dummy
ip addr add 10.9.9.1/24 dev dummy0
ip link set dummy0 up
cp /command /host/run/command
chroot /host /usr/bin/env @RDMA@ link add rxe0 type rxe netdev dummy0
stty -F /dev/ttyS1 raw -echo
chroot /host /bin/sh /run/command > /dev/ttyS1 2>&1 < /dev/null
echo "command ended with $?"
stty -F /dev/ttyS1 cooked
poweroff -f
"""
_FOLDERS = ("bin", "dev", "host", "modules", "proc", "sys")
_MACHINE = "x86_64-linux-gnu"


class ImageError(Exception):
    """A package does not hold what was expected of it."""


def library_folders(root: Path) -> list[Path]:
    """Return where the libraries of the packages lie."""
    return [root / "usr/lib" / _MACHINE, root / "lib" / _MACHINE]


class Image:
    """The unpacked packages of the guest."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, ending: str) -> Path:
        """Return the file whose path ends so, of this machine if the packages do not hold it.

        Raises:
            ImageError: there is none.
        """
        for folder in (self.root / "usr", self.root, Path("/usr"), Path("/")):
            for place in (folder, folder / "sbin"):
                path = place / ending
                if path.is_file():
                    return path
        raise ImageError(
            f"the packages of the guest hold no {ending}; delete {self.root.parent} to download them again"
        )

    def kernel(self) -> Path:
        """Return the kernel."""
        found = sorted(self.root.glob("boot/vmlinuz-*"))
        if not found:
            raise ImageError(f"no kernel below {self.root}; delete {self.root.parent} to download it again")
        return found[-1]

    def firmware_folders(self) -> list[Path]:
        """Return where the emulator finds its firmware."""
        names = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")
        return [self.root / name for name in names if (self.root / name).is_dir()]

    def verbs_folders(self) -> list[Path]:
        """Return the folders of libibverbs and of its driver."""
        folders = library_folders(self.root)
        return [*folders, *(folder / "libibverbs" for folder in folders if (folder / "libibverbs").is_dir())]

    def modules(self) -> list[Path]:
        """Return the kernel modules of `MODULES` and all they need, each after what it needs."""
        release = self.kernel().name.removeprefix("vmlinuz-")
        folders = [self.root / "lib/modules" / release, self.root / "usr/lib/modules" / release]
        known = {_name(path.stem): path for folder in folders for path in folder.rglob("*.ko")}
        ordered: dict[str, Path] = {}
        for module in MODULES:
            for name in _with_needs(_name(module), known):
                ordered[name] = known[name]
        return list(ordered.values())


def _name(text: str) -> str:
    return text.replace("-", "_")


def _with_needs(name: str, known: dict[str, Path]) -> Iterator[str]:
    """Yield what a module needs, then itself. One that is not there is part of the kernel."""
    path = known.get(name)
    if path is None:
        return
    needed = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
    for need in needed[1].decode().split(",") if needed and needed[1] else ():
        yield from _with_needs(_name(need), known)
    yield name


def initial_ram_disk(image: Image, command: str) -> bytes:
    """Return the archive of the first file system: a shell, the modules, the first program and the command."""
    modules = image.modules()
    first = FIRST_PROGRAM.replace(
        "@RDMA@", f"LD_LIBRARY_PATH={':'.join(map(str, library_folders(image.root)))} {image.find('bin/rdma')}"
    )
    files = {
        "bin/busybox": image.find("bin/busybox").read_bytes(),
        "init": first.encode(),
        "command": command.encode(),
        "modules/order": "".join(f"{module.name}\n" for module in modules).encode(),
        **{f"modules/{module.name}": module.read_bytes() for module in modules},
    }
    entries = [archive_entry(number, name, 0o040755, b"") for number, name in enumerate(_FOLDERS, 1)]
    entries += [archive_entry(number, name, 0o100755, data) for number, (name, data) in enumerate(files.items(), 100)]
    return b"".join([*entries, archive_entry(0, "TRAILER!!!", 0, b"")])


def archive_entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    """Return one entry of a cpio archive in the "new ASCII" format.

    Source: the kernel's documentation, "initramfs buffer format".
    """
    path = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + path) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
