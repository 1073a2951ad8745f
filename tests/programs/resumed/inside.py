"""Three steps, a snapshot, and everything built again from another seed."""

import sys

from parts import Parts, state

first = Parts(1)
first.run(0, 3)
state.snapshot(sys.argv[1], **first.given(), values={"step": 3})
del first
second = Parts(999)
second.run(state.restore(sys.argv[1], **second.given()).values["step"], 8)
