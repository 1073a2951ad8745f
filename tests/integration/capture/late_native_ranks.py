"""The two gloo ranks of `two_ranks` under the native engine, on a device that answers later. Not a test module itself.

The first argument says what Python is asked for: "some" (what C++ leaves to it) or "all" (every tensor).
"""

import contextlib
import sys

from opguard_core.probe.tensor import fingerprint_host
from tests.integration.capture import two_ranks
from tests.support.late import LateBackend, answering_later
from tests.support.late_native import asking_python, capturing_natively

if __name__ == "__main__":
    asked = sys.argv.pop(1)
    two_ranks.digest = lambda tensor: fingerprint_host(tensor).mix64
    two_ranks.capturing = capturing_natively
    with asking_python() if asked == "all" else contextlib.nullcontext(), answering_later(LateBackend(hold=25)):
        two_ranks.main()
