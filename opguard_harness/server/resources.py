"""Resources: the same answers as those of tools, under an address. What can be read here, a tool gives too."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import unquote

import anyio.to_thread

from opguard_core.errors import EvidenceNotFound
from opguard_core.trace.files import read_checked
from opguard_harness.access.rules import Access
from opguard_harness.answer.plain import dumps
from opguard_harness.invoke import invoke
from opguard_harness.prompts import find_prompt
from opguard_harness.registry import find
from opguard_harness.server.known import case_ids, stored

JSON, MARKDOWN = "application/json", "text/markdown"
_DOCTRINE = "opguard://doctrine"
_LISTED = 10  # of each kind; the templates reach the others
_REPORT_BYTES = 1 << 20


@dataclass(frozen=True)
class Kind:
    """One kind of resource.

    Attributes:
        template: Its address, RFC 6570.
        title: What a person reads.
        text: What it holds.
        mime: Its form.
        twin: The tool that answers the same.
        read: Gives the text; takes what stands in the address, and what calls may touch.
    """

    template: str
    title: str
    text: str
    mime: str
    twin: str
    read: Callable[[str, Access], Awaitable[str]]

    @property
    def variable(self) -> str:
        """The name of what varies in the address; empty if nothing does."""
        found = re.search(r"\{\+?(\w+)\}", self.template)
        return found[1] if found else ""

    def given(self, uri: str) -> str | None:
        """What an address has in the place of the variable; None of another kind of resource."""
        before, brace, after = self.template.partition("{")
        after = after.partition("}")[2]
        if not brace:
            return "" if uri == self.template else None
        if not (uri.startswith(before) and uri.endswith(after)) or len(uri) <= len(before) + len(after):
            return None
        value = uri[len(before) : len(uri) - len(after)]
        if "{+" in self.template:  # an id with slashes and escapes of its own, which some clients escape once more
            return value if ":" in value else unquote(value)
        return None if "/" in value else unquote(value)


async def _case(name: str, access: Access) -> str:
    # With the id of a case that there is, `open_case` changes nothing, so a read-only server may do it too.
    return dumps(await invoke("open_case", {"case": name}, dataclasses.replace(access, read_only=False)))


async def _report(name: str, access: Access) -> str:
    return await anyio.to_thread.run_sync(_report_text, name)


def _report_text(name: str) -> str:
    from opguard_harness.workspace.cases import require_case

    path = require_case(name).folder / "report.md"
    if not path.exists():
        raise EvidenceNotFound(f"{name} has no report yet.", hint="`write_report` writes it.")
    return read_checked(path, limit=_REPORT_BYTES).decode("utf-8")


async def _run(name: str, access: Access) -> str:
    row = await anyio.to_thread.run_sync(lambda: next((row for row in stored() if row.id == name), None))
    if row is not None and row.kind == "compare" and row.state == "succeeded":
        return dumps(await invoke("first_difference", {"comparison": name}, access))
    if row is None:
        raise EvidenceNotFound(f"There is no run {name[:80]!r}.", hint="`list_runs` lists runs, comparisons and jobs.")
    return dumps({"summary": f"A {row.kind} that is {row.state}.", "run": row.id, "kind": row.kind, "state": row.state, "mode": row.mode})


async def _job(name: str, access: Access) -> str:
    return dumps(await invoke("get_job", {"job": name, "wait_s": 0}, access))


async def _log(name: str, access: Access) -> str:
    return dumps(await invoke("tail_log", {"job": name}, access))


async def _evidence(name: str, access: Access) -> str:
    return dumps(await invoke("get_evidence", {"id": name}, access))


async def _doctrine(name: str, access: Access) -> str:
    return await anyio.to_thread.run_sync(lambda: "\n".join(find_prompt(topic).body for topic in ("investigate", "explain_verdict")))


KINDS = (
    Kind(_DOCTRINE, "Doctrine", "How to investigate, and how to read a verdict.", MARKDOWN, "open_case", _doctrine),
    Kind("opguard://cases/{case}", "Case", "An investigation: jobs, findings, next step.", JSON, "open_case", _case),
    Kind("opguard://cases/{case}/report", "Report of a case", "What `write_report` wrote last.", MARKDOWN, "write_report", _report),
    Kind("opguard://runs/{run}", "Run or comparison", "What a comparison found; of a run, its state.", JSON, "first_difference", _run),
    Kind("opguard://jobs/{job}", "Job", "Its state, progress and result.", JSON, "get_job", _job),
    Kind("opguard://jobs/{job}/log", "Log of a job", "The end of its output; untrusted text.", JSON, "tail_log", _log),
    Kind("opguard://evidence/{+id}", "Evidence", "One recorded fact, by its id.", JSON, "get_evidence", _evidence),
)


def offered(access: Access) -> list[Kind]:
    """The kinds that a server has: those whose tool is of a group that it offers."""
    return [kind for kind in KINDS if find(kind.twin).group in access.groups]


async def read_resource(uri: str, access: Access) -> tuple[str, str]:
    """Form and text of a resource.

    Raises:
        EvidenceNotFound: No resource has such an address.
        OpGuardError: What its tool raises.
    """
    kinds = offered(access)
    for kind in kinds:
        given = kind.given(uri)
        if given is not None:
            return kind.mime, await kind.read(given, access)
    known = ", ".join(kind.template for kind in kinds)
    raise EvidenceNotFound(f"There is no resource {uri[:200]!r}.", hint=f"Addresses: {known}.")


def listed(access: Access) -> list[tuple[str, Kind]]:
    """Addresses of what there is now, the newest of each kind."""
    rows = stored()
    named = {
        _DOCTRINE: [""],
        "opguard://cases/{case}": case_ids(),
        "opguard://runs/{run}": [row.id for row in rows if row.path is not None],
        "opguard://jobs/{job}": [row.id for row in rows if row.job is not None],
    }
    return [
        (kind.template.replace(f"{{{kind.variable}}}", name), kind)
        for kind in offered(access)
        for name in named.get(kind.template, [])[:_LISTED]
    ]
