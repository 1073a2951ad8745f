"""A commit is checked out beside the repository, which stays as it is."""

import subprocess

import pytest

from opguard_harness.compare.checkout import check_out
from opguard_harness.errors import CommitNotFound

IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


def git(folder, *words):
    done = subprocess.run(["git", *IDENTITY, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repo"
    (root / "sub").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "sub" / "train.py").write_text("print(1)\n")
    (root / "left_out.py").write_text("print('needed')\n")
    (root / ".gitattributes").write_text("left_out.py export-ignore\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    (root / "sub" / "train.py").write_text("print(2)\n")
    git(root, "commit", "-qam", "two")
    (root / "sub" / "train.py").write_text("print('not committed')\n")
    (root / "untracked").touch()
    return root


def state(root):
    return git(root, "status", "--porcelain"), {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_an_older_commit_is_written_whole_and_the_repository_is_untouched(repository, tmp_path):
    before = state(repository)
    found = check_out(repository / "sub", "HEAD~1", tmp_path / "reference")
    assert found == tmp_path / "reference" / "sub"
    assert (found / "train.py").read_text() == "print(1)\n"
    # `git archive` would have left this file out.
    assert (tmp_path / "reference" / "left_out.py").read_text() == "print('needed')\n"
    assert not (tmp_path / "reference" / "untracked").exists()
    assert state(repository) == before


def test_variables_of_a_surrounding_git_command_do_not_mislead(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert (check_out(repository, "HEAD", tmp_path / "r") / "sub" / "train.py").read_text() == "print(2)\n"


@pytest.mark.parametrize("commit", ["nope", "--output=/tmp/x", "HEAD~99"])
def test_a_commit_that_is_not_there_is_an_error(repository, tmp_path, commit):
    with pytest.raises(CommitNotFound, match="commit"):
        check_out(repository, commit, tmp_path / "r")


def test_a_folder_that_the_commit_lacks_is_an_error(repository, tmp_path):
    (repository / "later").mkdir()
    with pytest.raises(CommitNotFound, match="later"):
        check_out(repository / "later", "HEAD", tmp_path / "r")


def test_a_folder_in_no_repository_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "plain").mkdir()
    with pytest.raises(CommitNotFound):
        check_out(tmp_path / "plain", "HEAD", tmp_path / "r")


def test_submodules_are_refused_rather_than_left_empty(repository, tmp_path):
    sha = git(repository, "rev-parse", "HEAD")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{sha},third_party")
    git(repository, "commit", "-qm", "submodule")
    with pytest.raises(CommitNotFound, match="third_party"):
        check_out(repository, "HEAD", tmp_path / "r")


def test_without_git_the_error_says_so(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommitNotFound, match="no git on PATH"):
        check_out(repository, "HEAD", tmp_path / "r")
