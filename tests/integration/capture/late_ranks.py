"""The two gloo ranks of `two_ranks`, on a device that answers later. Not a test module itself."""

from opguard_core.probe.tensor import fingerprint_host
from tests.integration.capture import two_ranks
from tests.support.late import LateBackend, answering_later

if __name__ == "__main__":
    two_ranks.digest = lambda tensor: fingerprint_host(tensor).mix64
    with answering_later(LateBackend(hold=25)):
        two_ranks.main()
