"""Options of the whole suite."""

from __future__ import annotations

import pytest

PROVIDERS = ("soft", "verbs")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rdma", "payloads beside the fabric")
    group.addoption(
        "--rdma-provider",
        choices=PROVIDERS,
        default="soft",
        help="what the tests of the RDMA transport run on: the software model, or real verbs, which must then be there",
    )
    group.addoption("--rdma-device", default="", help="the RDMA device to use; the first by default")


@pytest.fixture(scope="session")
def rdma_transport(request: pytest.FixtureRequest) -> str:
    """What `--transport` gets in tests of the RDMA transport."""
    device = request.config.getoption("--rdma-device")
    text = f"rdma:provider={request.config.getoption('--rdma-provider')}"
    return f"{text},device={device}" if device else text
