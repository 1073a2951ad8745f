"""Every argument that names something has the role by which it is checked before its tool sees it."""

import pytest

from opguard_harness.interface.declaration import Role, roles_of
from opguard_harness.registry import TOOLS

EXPECTED = {
    "python": {Role.PYTHON},
    "command": {Role.COMMAND},
    "env": {Role.VARIABLES},
    "reference_env": {Role.VARIABLES},
    "suspect_env": {Role.VARIABLES},
    "reference_args": {Role.WORDS},
    "suspect_args": {Role.WORDS},
    "plan": {Role.FILE},
    "filters": {Role.FILE},
    "reference": {Role.SIDE, Role.STORED},
    "suspect": {Role.SIDE, Role.STORED},
    "reference_commit": {Role.COMMIT},
    "folder": {Role.SIDE},
    "root": {Role.SIDE},
    "run": {Role.STORED},
    "comparison": {Role.STORED},
    "job": {Role.STORED},
}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_arguments_have_their_roles(tool):
    for name, role in roles_of(tool.arguments).items():
        assert name not in EXPECTED or role in EXPECTED[name], f"{tool.name}: {name} is {role}"


def test_every_role_is_used():
    used = {role for tool in TOOLS for role in roles_of(tool.arguments).values()}
    assert used == set(Role)
