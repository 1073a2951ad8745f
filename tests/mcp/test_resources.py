"""Resources, prompts and completions: what a tool tells, under an address; and errors of the protocol that say what to do."""

import json

import pytest
from mcp import Client, MCPError
from mcp.types import PromptReference, ResourceTemplateReference

from opguard_harness.access.rules import Access
from opguard_harness.config import private_dir
from opguard_harness.errors import CaseDamaged
from opguard_harness.prompts import prompts
from opguard_harness.registry import TOOLS
from opguard_harness.server import resources
from opguard_harness.server.adapter import build
from opguard_harness.server.resources import KINDS
from opguard_harness.workspace.cases import open_or_resume
from tests.support.synthetic import GptShape, gpt, write_run

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["legacy", "auto"])
def agent(request, tmp_path):
    return Client(build(Access(roots=(tmp_path,))), mode=request.param)


@pytest.fixture
def case(tmp_path):
    return open_or_resume(tmp_path, "loss is NaN")[0]


async def read(agent, uri):
    (contents,) = (await agent.read_resource(uri)).contents
    assert contents.uri == uri
    return contents


async def test_every_template_names_a_tool_that_tells_the_same():
    assert {kind.twin for kind in KINDS} <= {tool.name for tool in TOOLS}
    async with Client(build(Access())) as agent:
        templates = (await agent.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == [kind.template for kind in KINDS if kind.variable]
    twins = {kind.template: f"`{kind.twin}`" for kind in KINDS}
    assert [template.name for template in templates if twins[template.uri_template] not in template.description] == []


async def test_a_case_and_its_report(agent, case):
    async with agent:
        found = json.loads((await read(agent, f"opguard://cases/{case.id}")).text)
        with pytest.raises(MCPError, match="no report yet"):
            await agent.read_resource(f"opguard://cases/{case.id}/report")
        (case.folder / "report.md").write_text("# It is the dropout\n")
        report = await read(agent, f"opguard://cases/{case.id}/report")
        listed = [item.uri for item in (await agent.list_resources()).resources]
    assert (found["case"], found["symptom"]) == (case.id, "loss is NaN")
    assert (report.mime_type, report.text) == ("text/markdown", "# It is the dropout\n")
    assert listed == ["opguard://doctrine", f"opguard://cases/{case.id}"]


async def test_a_report_that_is_a_link_is_not_read(agent, case, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (case.folder / "report.md").symlink_to(tmp_path / "secret")
    async with agent:
        with pytest.raises(MCPError) as error:
            await agent.read_resource(f"opguard://cases/{case.id}/report")
    assert "secret\n" not in str(error.value)


async def test_a_read_only_server_reads_cases_too_and_opens_none(case, state):
    async with Client(build(Access(read_only=True))) as agent:
        assert json.loads((await read(agent, f"opguard://cases/{case.id}")).text)["case"] == case.id
        before = sorted(path.name for path in (state / "cases").iterdir())
        for name in ("new", "case-000000000000", "%2e%2e"):
            with pytest.raises(MCPError):
                await agent.read_resource(f"opguard://cases/{name}")
    assert sorted(path.name for path in (state / "cases").iterdir()) == before


async def test_a_server_has_the_resources_of_the_tools_that_it_offers(case):
    async with Client(build(Access(groups=("evidence",)))) as agent:
        templates = [template.uri_template for template in (await agent.list_resource_templates()).resource_templates]
        assert (await agent.list_resources()).resources == []
        with pytest.raises(MCPError, match="There is no resource"):
            await agent.read_resource(f"opguard://cases/{case.id}")
    assert "opguard://evidence/{+id}" in templates
    assert not [template for template in templates if "cases" in template]


async def test_a_run_is_listed_and_read(agent, state):
    private_dir(state / "runs")
    write_run(state / "runs" / "20260102-030405-run-1a2b3c" / "trace", gpt(GptShape(layers=1, steps=1)))
    async with agent:
        found = json.loads((await read(agent, "opguard://runs/20260102-030405-run-1a2b3c")).text)
        listed = [item.uri for item in (await agent.list_resources()).resources]
    assert (found["kind"], found["state"]) == ("run", "succeeded")
    assert "opguard://runs/20260102-030405-run-1a2b3c" in listed


@pytest.mark.parametrize(
    "uri",
    [
        "opguard://nothing",
        "opguard://cases/",
        "opguard://cases/case-000000000000",
        "opguard://cases/../../etc/passwd",
        "opguard://runs/none",
        "opguard://runs/..%2F..%2Fetc",
        "opguard://jobs/none",
        "opguard://jobs/none/log",
        "opguard://evidence/ev:000000000000/0/1",
        "opguard://evidence/ev%3A000000000000%2F0%2F1",
        "file:///etc/passwd",
    ],
)
async def test_what_is_not_there_is_an_error_that_says_what_to_do(agent, uri, tmp_path):
    async with agent:
        with pytest.raises(MCPError) as error:
            await agent.read_resource(uri)
    assert error.value.code == -32602
    assert error.value.data["uri"] == uri
    assert error.value.data["fix"]
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize("given", ["ev:0123456789ab/0/17/out.0", "src:0123456789ab/a%2Fmodel.py:1-9", "job:compare-1/log"])
@pytest.mark.parametrize("escape", [False, True])
def test_an_evidence_id_arrives_as_it_was_given_however_the_client_escapes_it(given, escape):
    from urllib.parse import quote

    kind = next(kind for kind in KINDS if kind.twin == "get_evidence")
    assert kind.given(f"opguard://evidence/{quote(given, safe='') if escape else given}") == given


async def test_what_goes_wrong_inside_leaves_only_a_reference(agent, monkeypatch):
    def broken():
        raise RuntimeError("hunter2")

    monkeypatch.setattr(resources, "case_ids", broken)
    async with agent:
        with pytest.raises(MCPError) as error:
            await agent.list_resources()
    assert error.value.code == -32603
    assert "internal error ref E-" in str(error.value)
    assert "hunter2" not in str(error.value)


async def test_an_error_of_ours_is_shown_as_that_of_a_tool_is(agent, monkeypatch):
    def damaged():
        raise CaseDamaged("case.json has token=hunter2hunter2 \u202e \udcff")

    monkeypatch.setattr(resources, "case_ids", damaged)
    async with agent:
        with pytest.raises(MCPError) as error:
            await agent.list_resources()
    said = f"{error.value} {json.dumps(error.value.data, ensure_ascii=False)}"
    assert error.value.data["slug"] == "case-damaged"
    assert not [part for part in ("hunter2", "\u202e", "\udcff") if part in said]


async def test_prompts_are_the_texts_of_their_folder(agent):
    async with agent:
        listed = (await agent.list_prompts()).prompts
        got = await agent.get_prompt("compare", {"reference": "good", "suspect": "bad"})
    assert [prompt.name for prompt in listed] == [prompt.name for prompt in prompts()]
    assert {"investigate": ["symptom"], "compare": ["reference", "suspect"], "resume": ["case"]} == {
        prompt.name: [argument.name for argument in prompt.arguments if argument.required] for prompt in listed if prompt.arguments
    }
    assert got.messages[0].role == "user"
    assert '"good"' in got.messages[0].content.text
    assert "`first_difference`" in got.messages[0].content.text


@pytest.mark.parametrize(("name", "given"), [("investigat", {}), ("investigate", {}), ("investigate", {"symptom": "x", "sympton": "y"})])
async def test_a_prompt_that_cannot_be_given_is_an_error_of_the_protocol(agent, name, given):
    async with agent:
        with pytest.raises(MCPError) as error:
            await agent.get_prompt(name, given)
    assert error.value.code == -32602


async def test_ids_are_completed_where_an_argument_takes_one(agent, case):
    async with agent:
        asked = [
            await agent.complete(PromptReference(name="resume"), {"name": "case", "value": "case-"}),
            await agent.complete(ResourceTemplateReference(uri="opguard://cases/{case}"), {"name": "case", "value": case.id[:8]}),
            await agent.complete(PromptReference(name="resume"), {"name": "case", "value": "x"}),
            await agent.complete(PromptReference(name="investigate"), {"name": "symptom", "value": ""}),
            await agent.complete(ResourceTemplateReference(uri="other://{case}"), {"name": "case", "value": ""}),
        ]
    assert [answer.completion.values for answer in asked] == [[case.id], [case.id], [], [], []]
    assert [answer.completion.total for answer in asked] == [1, 1, 0, 0, 0]
