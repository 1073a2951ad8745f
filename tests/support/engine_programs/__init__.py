"""Programs on which every engine has to tell the same: small, each with one use of torch, filled by importing its modules."""

from tests.support.engine_programs.catalogue import PROGRAMS as PROGRAMS
from tests.support.engine_programs.catalogue import Program as Program
