"""Packaging: one distribution made of three source roots.

`rpc_backend` lies at the top; each folder below `plugins/` and `transports/` is an importable package of
its own. Nothing is installed under the bare names of those folders.
"""

from pathlib import Path

from setuptools import find_packages, setup

_ROOTS = ("plugins", "transports")


def _source_packages() -> tuple[list[str], dict[str, str]]:
    packages = find_packages(include=["rpc_backend", "rpc_backend.*"])
    folders = {"rpc_backend": "rpc_backend"}
    for root in _ROOTS:
        for package in find_packages(root):
            packages.append(package)
            folders[package] = str(Path(root, *package.split(".")))
    return packages, folders


_PACKAGES, _FOLDERS = _source_packages()

setup(packages=_PACKAGES, package_dir=_FOLDERS)
