"""The registry as an MCP server: the one file that knows both. What a call does and answers is `invoke`'s, as in a shell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    PromptMessage,
    PromptReference,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)

from opguard_core import __version__
from opguard_harness.access.results import error_data
from opguard_harness.access.rules import Access
from opguard_harness.answer.failures import of_a_call
from opguard_harness.answer.plain import dumps
from opguard_harness.errors import Internal
from opguard_harness.invoke import error_result, invoke
from opguard_harness.prompts import find_prompt, prompts
from opguard_harness.registry import TOOLS
from opguard_harness.server.instructions import instructions
from opguard_harness.server.known import completed
from opguard_harness.server.listing import wire_prompt, wire_resource, wire_template, wire_tool
from opguard_harness.server.resources import KINDS, listed, offered, read_resource

Context = ServerRequestContext[Any, Any]
Page = PaginatedRequestParams | None


def build(access: Access) -> Server[Any]:
    """One server object; it speaks the handshake eras and the stateless one, over any transport.

    Args:
        access: What calls may touch and which tools are offered.
    """
    handlers = _Handlers(access)
    return Server(
        "opguard",
        title="OpGuard",
        version=__version__,
        instructions=instructions(access),
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
        on_completion=handlers.complete,
    )


class _Handlers:
    """What the server does for each method of the protocol."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._tools = ListToolsResult(tools=[wire_tool(tool) for tool in TOOLS if access.offers(tool)])

    async def list_tools(self, context: Context, params: Page) -> ListToolsResult:
        """The tools that this server offers."""
        return self._tools

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Carry a call out. Whatever goes wrong is a result that the model sees; cancelling the request ends the wait only."""
        given = {} if params.arguments is None else params.arguments
        try:
            return _result(await invoke(params.name, given, self._access, context.session.report_progress))
        except Exception as error:  # noqa: BLE001 - the server edge: whatever a tool raises is an answer, never a broken connection
            return _result(error_result(of_a_call(error), self._access), failed=True)

    async def list_resources(self, context: Context, params: Page) -> ListResourcesResult:
        """What there is now."""
        with _as_protocol_errors():
            found = await anyio.to_thread.run_sync(listed, self._access)
            return ListResourcesResult(resources=[wire_resource(uri, kind) for uri, kind in found])

    async def list_templates(self, context: Context, params: Page) -> ListResourceTemplatesResult:
        """The addresses that have something in them to fill in."""
        return ListResourceTemplatesResult(resource_templates=[wire_template(kind) for kind in offered(self._access) if kind.variable])

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """One resource."""
        with _as_protocol_errors(uri=params.uri):
            mime, text = await read_resource(params.uri, self._access)
        return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=mime, text=text)])

    async def list_prompts(self, context: Context, params: Page) -> ListPromptsResult:
        """The texts of prompts/."""
        with _as_protocol_errors():
            return ListPromptsResult(prompts=[wire_prompt(prompt) for prompt in await anyio.to_thread.run_sync(prompts)])

    async def get_prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        """One text, with what was said in front of it."""
        with _as_protocol_errors():
            prompt = await anyio.to_thread.run_sync(find_prompt, params.name)
            text = prompt.render(params.arguments or {})
        return GetPromptResult(
            description=prompt.description, messages=[PromptMessage(role="user", content=TextContent(type="text", text=text))]
        )

    async def complete(self, context: Context, params: CompleteRequestParams) -> CompleteResult:
        """Ids that begin as the argument does; nothing for arguments that take no id."""
        asked = params.argument
        takes = isinstance(params.ref, PromptReference) or any(params.ref.uri == kind.template for kind in KINDS)
        with _as_protocol_errors():
            values, total = await anyio.to_thread.run_sync(completed, asked.name if takes else "", asked.value)
        return CompleteResult(completion=Completion(values=values, total=total, has_more=total > len(values)))


def _result(value: dict[str, Any], *, failed: bool = False) -> CallToolResult:
    """Text and structured content are the same object: some clients show the model one, some the other."""
    return CallToolResult(content=[TextContent(type="text", text=dumps(value))], structured_content=value, is_error=failed)


@contextmanager
def _as_protocol_errors(**facts: str) -> Iterator[None]:
    """What cannot be read is an error of the protocol, which has no results that failed but for tools."""
    try:
        yield
    except Exception as error:
        known = of_a_call(error)
        code = INTERNAL_ERROR if isinstance(known, Internal) else INVALID_PARAMS
        told = error_data({"message": str(known), **known.as_dict()})
        raise MCPError(code, told.pop("message"), {**facts, **told}) from error
