"""One fingerprint definition (``spec.md``), a slow numpy oracle and fast twins that agree with it bit for bit.

What it cannot see: equal digests are evidence, not proof; ``spec.md`` lists what each digest is blind to.
"""

from opguard_core.fingerprint.digest import Digests

__all__ = ["Digests"]
