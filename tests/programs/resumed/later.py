"""Goes on from a snapshot that another process took."""

import sys

from parts import Parts, state

parts = Parts(999)
parts.run(state.restore(sys.argv[1], **parts.given()).values["step"], 8)
