"""What a pack holds, what it leaves out and says so, and that it is the same bytes each time."""

from __future__ import annotations

import json
import os
import threading
import zipfile
from pathlib import Path

import pytest

from opguard_harness.access.rules import Access, using
from opguard_harness.cli.app import dispatch
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.errors import CaseNotFound, OutsideRoots, PackRefused
from opguard_harness.workspace.cases import note_job, require_case
from opguard_harness.workspace.citations import cite_all
from opguard_harness.workspace.findings import finding_of, findings_of, record
from opguard_harness.workspace.packs import listed, writing
from opguard_harness.workspace.packs.checking import check
from opguard_harness.workspace.packs.writing import pack
from tests.support.packs import contents, manifest_of
from tests.support.stored_case import StoredCase


def why(path: Path) -> dict[str, str]:
    return {item["what"]: item["why"] for item in manifest_of(path)["left_out"]}


def test_a_pack_begins_with_its_list_and_holds_what_the_case_rests_on(made: StoredCase, tmp_path: Path) -> None:
    packed = pack(made.case.id, tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = archive.namelist()
        assert archive.testzip() is None and all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    assert names[0] == "MANIFEST.json" and names[1:] == sorted(names[1:])
    held = contents(tmp_path / "a.zip")
    run = f"runs/{made.comparison}"
    assert {"case/case.json", "case/findings.json", "case/report.md"} <= held.keys()
    assert {f"{run}/{name}" for name in ("answer.json", "damage.json", "programs.json", "repro.py")} <= held.keys()
    assert held[f"{run}/answer.json"] == (runs_dir() / made.comparison / "answer.json").read_bytes()
    traces = manifest_of(tmp_path / "a.zip")["traces"][made.comparison]
    for side, place in traces.items():
        trace = Path(made.answer["trace"][side])
        there = {str(path.relative_to(trace)) for path in trace.rglob("*") if path.is_file() and path.parent.name != "sources"}
        assert {name.removeprefix(f"{place}/") for name in held if name.startswith(f"{place}/")} == there
        assert held[f"{place}/rank-00000/kept-0.safetensors"] == b"kept"
    assert packed.bytes == (tmp_path / "a.zip").stat().st_size
    assert (tmp_path / "a.zip").stat().st_mode & 0o777 == 0o600


def test_the_same_case_gives_the_same_bytes(made: StoredCase, tmp_path: Path) -> None:
    first = pack(made.case.id, tmp_path / "a.zip")
    for path in runs_dir().rglob("*"):
        os.utime(path, (1, 1))
    assert pack(made.case.id, tmp_path / "b.zip").sha256 == first.sha256
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_source_texts_go_with_it_only_when_asked_for(made: StoredCase, tmp_path: Path) -> None:
    source = next(Path(made.answer["trace"]["suspect"]).glob("sources/*")).name
    pack(made.case.id, tmp_path / "without.zip")
    pack(made.case.id, tmp_path / "with.zip", sources=True)
    assert not [name for name in contents(tmp_path / "without.zip") if "/sources/" in name or name.endswith("report.html")]
    left = why(tmp_path / "without.zip")
    assert "--include-sources only" in left[f"{manifest_of(tmp_path / 'without.zip')['traces'][made.comparison]['suspect']}/sources"]
    assert "shows source texts" in left["case/report.html"]
    held = contents(tmp_path / "with.zip")
    assert [name for name in held if name.endswith(f"/sources/{source}")] and "case/report.html" in held


def test_a_finding_that_cites_source_is_named_when_source_stays_out(made: StoredCase, tmp_path: Path) -> None:
    from opguard_harness.workspace.facts import resolve

    cited = resolve(made.cited("suspect"), made.comparison).data["source"]
    record(
        made.case.id,
        finding_of(
            "The line is there.",
            "source inference",
            cite_all(require_case(made.case.id), "The line is there.", [cited], "source inference"),
        ),
    )
    pack(made.case.id, tmp_path / "a.zip")
    assert "cannot be checked" in why(tmp_path / "a.zip")[cited]
    pack(made.case.id, tmp_path / "b.zip", sources=True)
    assert cited not in why(tmp_path / "b.zip")


def test_output_of_programs_links_and_strange_files_stay_out_and_are_named(made: StoredCase, tmp_path: Path) -> None:
    result = runs_dir() / made.comparison
    (tmp_path / "outside.json").write_text("secret")
    (result / "link.json").symlink_to(tmp_path / "outside.json")
    (result / "folder").symlink_to(tmp_path)
    (result / "model.pt").write_bytes(b"weights")
    (result / "train.py").write_text("print()")
    (result / "opened.json").mkdir()
    os.mkfifo(result / "pipe.json")
    (made.case.folder / "filters.json").symlink_to(tmp_path / "outside.json")
    pack(made.case.id, tmp_path / "a.zip")
    run = f"runs/{made.comparison}"
    left = why(tmp_path / "a.zip")
    out = {f"{run}/{name}" for name in ("stderr.txt", "link.json", "folder", "model.pt", "train.py", "pipe.json")} | {"case/filters.json"}
    assert out <= left.keys() and not out & contents(tmp_path / "a.zip").keys()
    assert left[f"{run}/link.json"] == "a link" and left[f"{run}/stderr.txt"] == "the output of a program"
    assert b"secret" not in (tmp_path / "a.zip").read_bytes()


@pytest.mark.parametrize(("text", "kept"), [("all went well", True), ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789", False)])
def test_a_log_goes_along_where_it_is_cited_unless_a_secret_is_in_it(made: StoredCase, tmp_path: Path, text: str, kept: bool) -> None:
    job = state_dir() / "jobs" / "compare-0123456789ab"
    job.mkdir(parents=True)
    (job / "log.txt").write_text(text)
    note_job(made.case.id, "compare-0123456789ab")
    cited = cite_all(require_case(made.case.id), "It said so.", ["job:compare-0123456789ab/log"], "source inference")
    record(made.case.id, finding_of("It said so.", "source inference", cited))
    pack(made.case.id, tmp_path / "a.zip")
    assert ("jobs/compare-0123456789ab/log.txt" in contents(tmp_path / "a.zip")) == kept
    assert ("job:compare-0123456789ab/log" in why(tmp_path / "a.zip")) != kept
    assert b"hf_abc" not in (tmp_path / "a.zip").read_bytes()


def test_what_is_still_running_is_named_and_its_half_done_files_stay_out(made: StoredCase, tmp_path: Path) -> None:
    half = runs_dir() / ".compare-0123456789ab.partial-1-abcdef" / "reference"
    half.mkdir(parents=True)
    (half / "answer.json").write_text("{}")
    note_job(made.case.id, "compare-0123456789ab")
    pack(made.case.id, tmp_path / "a.zip")
    assert "no finished comparison" in why(tmp_path / "a.zip")["compare-0123456789ab"]
    assert not [name for name in contents(tmp_path / "a.zip") if "compare-0123456789ab" in name]


@pytest.mark.full
def test_findings_that_are_recorded_meanwhile_are_in_it_whole_or_not_at_all(made: StoredCase, tmp_path: Path) -> None:
    done = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(60):
                record(made.case.id, finding_of(f"Number {number}.", "externally reported", ()))
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    numbers = []
    while not done.is_set() or len(numbers) < 3:
        path = tmp_path / f"{len(numbers)}.zip"
        pack(made.case.id, path)
        numbers.append(len(json.loads(contents(path)["case/findings.json"])["findings"]))
    thread.join()
    assert not failed
    assert numbers == sorted(numbers) and len(findings_of(made.case.id)) == 61


def test_a_file_that_is_exchanged_while_it_is_packed_is_noticed(made: StoredCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = runs_dir() / made.comparison / "damage.json"
    write = writing._write

    def exchange(*arguments: object) -> None:
        path.unlink()
        path.symlink_to(made.case.folder / "case.json")
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "_write", exchange)
    with pytest.raises(PackRefused, match="changed while it was packed"):
        pack(made.case.id, tmp_path / "a.zip")
    assert not [item for item in tmp_path.iterdir() if "a.zip" in item.name]


def test_a_file_that_grows_while_it_is_packed_is_noticed(made: StoredCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = runs_dir() / made.comparison / "damage.json"
    write = writing._write

    def grow(*arguments: object) -> None:
        path.write_text('{"count": 2}')
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "_write", grow)
    with pytest.raises(PackRefused, match=r"damage\.json changed while it was packed"):
        pack(made.case.id, tmp_path / "a.zip")


def test_limits_and_names_are_refused_before_anything_is_written(made: StoredCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there.zip").write_text("mine")
    with pytest.raises(PackRefused, match="exists already"):
        pack(made.case.id, tmp_path / "there.zip")
    assert (tmp_path / "there.zip").read_text() == "mine"
    with pytest.raises(CaseNotFound):
        pack("case-000000000000", tmp_path / "a.zip")
    with using(Access(roots=(made.case.root,))), pytest.raises(OutsideRoots):
        pack(made.case.id, tmp_path / "a.zip")
    monkeypatch.setattr(writing, "MAX_PACK_BYTES", 10_000)
    with pytest.raises(PackRefused, match="more than"):
        pack(made.case.id, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


def test_a_trace_that_may_not_be_touched_stays_out_and_is_named(made: StoredCase, tmp_path: Path) -> None:
    with using(Access(roots=(tmp_path / "elsewhere",))):
        pack(made.case.id, state_dir() / "a.zip")
    assert "leads out of the folders" in why(state_dir() / "a.zip")[f"traces of {made.comparison}"]
    assert not [name for name in contents(state_dir() / "a.zip") if name.endswith(".arrow")]


@pytest.mark.full
def test_the_list_says_at_most_so_much(made: StoredCase, tmp_path: Path) -> None:
    for number in range(listed.MOST_LEFT_OUT + 20):
        (runs_dir() / made.comparison / f"{number}.pt").touch()
    packed = pack(made.case.id, tmp_path / "a.zip").manifest
    assert len(packed.left_out) == listed.MOST_LEFT_OUT and packed.left_out_total > listed.MOST_LEFT_OUT + 20
    with (tmp_path / "a.zip").open("rb") as file:
        assert check(file).manifest == packed


def test_the_command_says_digest_and_what_is_left_out(made: StoredCase, tmp_path: Path) -> None:
    said = dispatch(["pack", made.case.id, "--out", str(tmp_path / "a.zip")]).text
    assert pack(made.case.id, tmp_path / "b.zip").sha256 in said and "the output of a program" in said
    told = json.loads(dispatch(["pack", made.case.id, "--out", str(tmp_path / "c.zip"), "--include-sources", "--json"]).text)
    assert told["sources"] is True and told["files"] > 10
