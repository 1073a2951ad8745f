"""A request that waits for a job, in both eras: it tells progress, and giving it up ends the waiting and nothing else."""

import anyio
import pytest
from mcp import Client

from opguard_harness.access.rules import Access
from opguard_harness.server.adapter import build
from tests.support import fake_jobs, planted_tools

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_giving_up_a_request_leaves_its_job_alone(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(planted_tools, "TOOLS", (fake_jobs.PLAIN,))
    planted_tools.plant(monkeypatch.setattr)
    heard, begun, let_go = [], anyio.Event(), tmp_path / "let go"

    async def hear(done, total, message):
        heard.append((done, total, message))
        begun.set()

    with fake_jobs.fake_supervisors(monkeypatch, tmp_path / "state"):
        async with Client(build(Access(roots=(tmp_path,))), mode=mode) as agent:
            job = (await agent.call_tool("plain_work", {"do": f"wait:{let_go}"})).structured_content["job"]
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: agent.call_tool("get_job", {"job": job, "wait_s": 45}, progress_callback=hear))
                await begun.wait()
                group.cancel_scope.cancel()
            given_up = (await agent.call_tool("get_job", {"job": job, "wait_s": 0})).structured_content["state"]
            let_go.touch()
            ended = (await agent.call_tool("get_job", {"job": job, "wait_s": 45})).structured_content
    assert given_up in ("queued", "running")
    assert (ended["state"], ended["summary"]) == ("succeeded", "done")
    assert all(done < total for done, total, _ in heard)
