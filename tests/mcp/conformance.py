"""The official conformance suites and the inspector's command line against the server as it ships.

    python -m tests.mcp.conformance [FOLDER]

Installs the pinned packages with npm into FOLDER (a temporary one without it). The suites reach the server over HTTP, through
a proxy that adds the token, which they have no option for; the inspector starts it over its pipes from the shipped
`.mcp.json`. Exit code 0 only if all of that ran and passed, or if there is no npm, which is then said.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from opguard_harness.registry import TOOLS
from tests.mcp.token_proxy import proxy

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = (
    "node@24.21.0",  # the suites need a newer one than distributions have
    "@modelcontextprotocol/conformance@0.1.16",
    "@modelcontextprotocol/inspector@2.12.0",
    "conformance-next@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12",
)
# Per suite: its package, its own options, and the scenarios that are known to fail, each with its reason.
SUITES = {
    "2025-11-25": ("@modelcontextprotocol/conformance", ("--suite", "active"), "conformance-2025-11-25.yml"),
    "2026-07-28": ("conformance-next", ("--requirements", "2026-07-28"), "conformance-2026-07-28.yml"),
}
INSTALL_S, SUITE_S, CALL_S = 150, 60, 30
SCRIPT = "#!{python}\nimport sys\nsys.path.insert(0, {repository!r})\nfrom opguard_harness.__main__ import main\nsys.exit(main())\n"


class Failed(Exception):
    """Something ran and did not pass, or did not run."""


def main(words: list[str]) -> int:
    npm = shutil.which("npm")
    if npm is None:
        print("conformance: there is no npm here, so neither the suites nor the inspector ran")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(words[0] if words else made)
        try:
            environment = prepare(npm, folder, Path(made))
            with server(environment) as (url, token), proxy(url, token) as open_url:
                for name in SUITES:
                    suite(name, open_url, folder, Path(made), environment)
            for era in ("legacy", "modern"):
                inspect(era, folder, environment)
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            print(f"conformance: FAILED: {error}")
            return 1
    print(f"conformance: passed in {time.monotonic() - began:.0f} s")
    return 0


def prepare(npm: str, folder: Path, made: Path) -> dict[str, str]:
    """Install the packages; the environment in which everything runs, with the node and the command of this repository in front."""
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error", "--prefix", str(folder), *PACKAGES]
    run(command, INSTALL_S, "npm install", cwd=made)
    node = folder / "node_modules" / "node" / "bin"
    if not (node / "node").exists():
        raise Failed(f"npm installed no {PACKAGES[0]}")
    beside = Path(sys.executable).parent
    if not (beside / "opguard-harness").exists():  # a checkout that is not installed
        beside = made / "bin"
        beside.mkdir()
        (beside / "opguard-harness").write_text(SCRIPT.format(python=sys.executable, repository=str(REPOSITORY)))
        (beside / "opguard-harness").chmod(0o755)
    ours = {
        "HOME": str(made),
        "XDG_STATE_HOME": str(made / "state"),
        "XDG_CACHE_HOME": str(made / "cache"),
        "MCP_INSPECTOR_SECRET_STORE": "memory",
    }
    return {**os.environ, **ours, "PATH": os.pathsep.join((str(beside), str(node), os.environ["PATH"]))}


@contextlib.contextmanager
def server(environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The shipped command on a free port: its address and its token."""
    command = ["opguard-harness", "mcp", "--http", "127.0.0.1:0", "--root", str(REPOSITORY)]
    with subprocess.Popen(
        [shutil.which(command[0], path=environment["PATH"]), *command[1:]],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        said = "".join(process.stderr.readline() for _ in range(3))
        address, token = re.search(r"http://\S+", said), re.search(r"Bearer (\S+)", said)
        if not address or not token:
            process.kill()
            raise Failed(f"the server said {said!r}")
        reader = threading.Thread(target=process.stderr.read)  # what it says later must not fill the pipe
        reader.start()
        try:
            yield address[0], token[1]
        finally:
            process.terminate()
            reader.join()


def suite(name: str, url: str, folder: Path, made: Path, environment: dict[str, str]) -> None:
    """Run one suite; a scenario that fails unexpectedly, or passes unexpectedly, fails it."""
    package, options, known = SUITES[name]
    script = folder / "node_modules" / package / "dist" / "index.js"
    baseline = Path(__file__).with_name(known)
    command = ["node", str(script), "server", "--url", url, *options, "--expected-failures", str(baseline), "-o", str(made / name)]
    said = run(command, SUITE_S, f"conformance {name}", env=environment, cwd=made)
    total = re.search(r"^Total: .*$", said, re.MULTILINE)
    if not total or "Baseline check passed" not in said:
        raise Failed(f"conformance {name} gave no result:\n{said[-3000:]}")
    print(f"conformance {name}: {total[0].removeprefix('Total: ')}; each failure is in {known} with its reason, or not scored")


def inspect(era: str, folder: Path, environment: dict[str, str]) -> None:
    """List strictly, call well, call badly and read, through the shipped configuration of a client."""

    def inspector(*words: str, code: int = 0) -> dict:
        command = ["node", str(folder / "node_modules" / ".bin" / "mcp-inspector"), "--cli", "--config", ".mcp.json", "--server", "opguard"]
        said = run(
            [*command, "--protocol-era", era, "--format", "json", "-q", *words],
            CALL_S,
            f"inspector {words}",
            code,
            env=environment,
            cwd=REPOSITORY,
        )
        found = json.loads(said)
        return found.get("result", found)

    listed = [tool["name"] for tool in inspector("--method", "tools/list", "--strict")["tools"]]
    if listed != [tool.name for tool in TOOLS]:
        raise Failed(f"tools/list gives {listed}")
    good = inspector("--method", "tools/call", "--tool-name", "list_runs", "--tool-arg", "limit=3")
    if json.loads(good["content"][0]["text"]) != good["structuredContent"]:
        raise Failed(f"a result's text is not its structured content: {good}")
    inspector("--method", "tools/call", "--tool-name", "list_runs", "--tool-arg", "lmit=3", code=5)
    inspector("--method", "prompts/list")
    inspector("--method", "resources/read", "--uri", "opguard://doctrine")
    print(f"inspector {era}: tools/list --strict of {len(listed)} tools, tools/call, prompts/list, resources/read")


def run(command: list[str], limit_s: float, what: str, code: int = 0, **given) -> str:
    """Standard output of a program that has to end with that code."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False, **given)
    if done.returncode != code:
        raise Failed(f"{what} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
