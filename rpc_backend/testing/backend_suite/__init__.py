"""The suite that compares a compute backend with the reference, operation by operation.

Run it on a plugin with `python -m rpc_backend.testing.backend_suite NAME`, or from a test::

    for case in cases():
        assert run_case(device, case).status != "failed"
"""

from rpc_backend.testing.backend_suite.case import Case, CaseResult
from rpc_backend.testing.backend_suite.runner import run_case
from rpc_backend.testing.backend_suite.suite import cases

__all__ = ["Case", "CaseResult", "cases", "run_case"]
