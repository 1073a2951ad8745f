"""Eight steps without an interruption."""

from parts import Parts

Parts(1).run(0, 8)
