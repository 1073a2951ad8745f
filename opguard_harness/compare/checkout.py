"""Check one commit of a repository out into a private folder without touching the repository or its working tree.

A private index file and ``checkout-index`` are used rather than ``git archive``, because archives leave out files that
``.gitattributes`` marks ``export-ignore`` and rewrite those marked ``export-subst``: the program would not be the
committed one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from opguard_harness.errors import CommitNotFound


def check_out(folder: Path, commit: str, target: Path) -> Path:
    """Write the files of ``commit`` below ``target``.

    Args:
        folder: A folder inside the repository.
        commit: Anything ``git rev-parse`` understands.
        target: Absent folder to fill; its parent exists.

    Returns:
        The folder below ``target`` that corresponds to ``folder``.

    Raises:
        CommitNotFound: No git, no repository, no such commit, or the commit lacks the folder.
    """
    sha = commit_id(folder, commit)
    prefix = _git(folder, "rev-parse", "--show-prefix", what=f"{folder} lies in no git working tree")
    links = [
        line
        for line in _git(folder, "ls-tree", "-r", "--full-tree", sha, what="The commit cannot be listed").splitlines()
        if line.startswith("160000 ")
    ]
    if links:
        names = ", ".join(line.partition("\t")[2] for line in links[:3])
        raise CommitNotFound(
            f"Commit {sha[:12]} has submodules ({names}), which are not checked out.",
            hint="Check the commit out yourself, submodules included, and name that folder with --reference.",
        )
    top = Path(_git(folder, "rev-parse", "--show-toplevel", what=f"{folder} lies in no git working tree"))
    target.mkdir(mode=0o700)
    env = {"GIT_INDEX_FILE": str(target.with_name(f"{target.name}.index"))}
    _git(top, "read-tree", sha, what=f"Commit {sha[:12]} cannot be read", env=env)
    _git(top, "checkout-index", "--all", f"--prefix={target}/", what=f"Commit {sha[:12]} cannot be checked out", env=env)
    found = target / prefix
    if not found.is_dir():
        raise CommitNotFound(f"Commit {sha[:12]} has no folder {prefix!r}.", hint="Name a commit in which the folder exists.")
    return found


def commit_id(folder: Path, commit: str) -> str:
    """The whole id of a commit.

    Args:
        folder: A folder inside the repository.
        commit: Anything ``git rev-parse`` understands.

    Raises:
        CommitNotFound: No git, no repository, no such commit.
    """
    if commit.startswith("-"):
        raise CommitNotFound(f"{commit!r} is an option, not a commit.")
    what = f"There is no commit {commit!r} in the repository of {folder}"
    return _git(folder, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", what=what)


def _git(folder: Path, *arguments: str, what: str, env: dict[str, str] | None = None) -> str:
    """Run one git command; its standard output without the last newline."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="surrogateescape",
            env={**clean, **(env or {}), "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"},
            check=False,
        )
    except FileNotFoundError as error:
        raise CommitNotFound(
            "There is no git on PATH.", hint="Install git, or check the commit out yourself and name its folder."
        ) from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [""])[-1]
        raise CommitNotFound(f"{what}{': ' + said if said else ''}.")
    return done.stdout.removesuffix("\n")
