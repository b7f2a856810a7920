"""`python -m e2e.agent`: start the process node, print `ready`, run until SIGTERM.

Apart from the parts, because only here they are put together.
Must not: leave a container behind: SIGTERM ends them first, after SIGKILL the kernel does (parent-death signals).
"""

import argparse
import asyncio
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp

from e2e.agent.api import ApiClient, until_answered
from e2e.agent.backoff import BackOff
from e2e.agent.context import NodeContext
from e2e.agent.events import EventRecorder
from e2e.agent.images import ImageTable
from e2e.agent.node import Node
from e2e.agent.pods import Pods
from e2e.agent.server import NodeServer
from e2e.network import network_for
from e2e.processes import TIED

REPOSITORY = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m e2e.agent", description=__doc__.split("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--node-name", required=True)
    parser.add_argument("--data-dir", type=Path, required=True, help="logs and volumes; emptied at the start")
    parser.add_argument("--mode", choices=["namespace", "loopback"], required=True)
    parser.add_argument("--images", type=Path, required=True, help="the image table, read again when it changes")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--backoff-base", type=float, default=1.0, help="seconds before the second restart")
    parser.add_argument("--backoff-cap", type=float, default=8.0, help="seconds at most between restarts")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A pipe for each stream of each container, and a connection for each probe.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(run_node(options))
    return 0


async def run_node(options: argparse.Namespace) -> None:
    """Put the node together and run it."""
    folder: Path = options.data_dir.absolute()
    # Of a former process node: its containers died with it.
    shutil.rmtree(folder / "pods", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    network = network_for(options.mode)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiClient(options.kubeconfig))
        http = await stack.enter_async_context(
            # A probe must not be answered over a connection to the instance before.
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        )
        events = EventRecorder(api, node_name=options.node_name)
        context = NodeContext(
            api=api,
            http=http,
            events=events,
            images=ImageTable(options.images),
            network=network,
            back_off=BackOff(base=options.backoff_base, cap=options.backoff_cap),
            folder=folder,
            kept=kept_folders(folder),
        )
        pods = Pods(node=context)
        server = await stack.enter_async_context(NodeServer(pods, ip=network.node_ip, folder=folder))
        node = Node(options.node_name, api=api, ip=network.node_ip, server_port=server.port, gpus=options.gpus)
        await until_answered(node.register)
        listed = asyncio.Event()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        running = [
            asyncio.create_task(node.run()),
            asyncio.create_task(events.run()),
            asyncio.create_task(
                api.follow("/api/v1/pods", pods, selector=f"spec.nodeName={options.node_name}", listed=listed.set)
            ),
        ]
        if network.mode == "namespace":
            running.append(asyncio.create_task(keep_forwarding(options.kubeconfig)))
        try:
            await listed.wait()
            print("ready", flush=True)
            await asyncio.wait([asyncio.create_task(ended.wait()), *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in running:
                task.cancel()
            outcomes = await asyncio.gather(*running, return_exceptions=True)
            await pods.shut_down()
        for outcome in outcomes:
            # Each of them runs for ever: whatever it raised but our cancellation is a defect to be seen.
            if isinstance(outcome, Exception):
                raise outcome


async def keep_forwarding(kubeconfig: Path) -> None:
    """Run the Service forwarder for ever."""
    command = (sys.executable, "-m", "e2e.services", "--kubeconfig", str(kubeconfig))
    while True:
        # Tied to this process: a killed node leaves no forwarder to answer for it.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(TIED), str(os.getpid()), *command),
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        )
        try:
            code = await process.wait()
        finally:
            # Not `process.kill()`: it reaps the child behind the back of whoever waits for it.
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        logging.getLogger(__name__).error("the Service forwarder ended with code %s", code)
        await asyncio.sleep(1)


def kept_folders(data: Path) -> list[str]:
    """Return the folders that no volume may hide, without those below another."""
    wanted = {str(path) for path in (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), data)}
    return sorted(
        path for path in wanted if not any(Path(path) != Path(o) and Path(path).is_relative_to(o) for o in wanted)
    )


if __name__ == "__main__":
    sys.exit(main())
