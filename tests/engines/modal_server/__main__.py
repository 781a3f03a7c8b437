"""The server as a process: it says its addresses in JSON, and ends, with all that it made, when its input does."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from tests.engines.modal_server import TOKEN_ID, TOKEN_SECRET
from tests.engines.modal_server.containers import Containers
from tests.engines.modal_server.control import ControlPlane, files_directory
from tests.engines.modal_server.images import Files, Images
from tests.engines.modal_server.router import CommandRouter
from tests.engines.modal_server.rpc import CuttableServer, Faults, service
from tests.engines.modal_server.sandboxes import Result, Sandboxes

HOST = "127.0.0.1"
MOST_BYTES = 256 << 20


class Switches:
    """The side door: uploads of large files, faults, and what there is."""

    def __init__(self, control: ControlPlane, files: Files, sandboxes: Sandboxes, faults: Faults) -> None:
        self._control = control
        self._files = files
        self._sandboxes = sandboxes
        self._faults = faults
        self.router: CuttableServer | None = None

    def application(self) -> web.Application:
        """All of it as an HTTP application."""
        made = web.Application(client_max_size=MOST_BYTES)
        made.router.add_put("/blob/{name}", self.blob)
        made.router.add_post("/{what}", self.switch)
        return made

    async def blob(self, request: web.Request) -> web.Response:
        """Take a file as a store of blobs does."""
        data = self._files.blobs[request.match_info["name"]] = await request.read()
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return web.Response(headers={"ETag": f'"{digest}"'})

    async def switch(self, request: web.Request) -> web.Response:
        """Do what is asked for; answers in JSON."""
        what, values = request.match_info["what"], await request.json()
        answer: Any = {}
        if what == "faults":
            self._faults.set(values)
        elif what == "secrets":
            self._control.secrets |= values
        elif what == "volumes":
            self._sandboxes.volumes |= values
        elif what == "cut":
            assert self.router is not None
            answer = self.router.cut()
        elif what == "preempt":
            await self._sandboxes.end(self._sandboxes.get(values), Result.GENERIC_STATUS_TERMINATED)
            await self._sandboxes.get(values).ended.wait()
        elif what == "state":
            answer = {
                "faults": {**dataclasses.asdict(self._faults), "unknown": sorted(self._faults.unknown)},
                "sandboxes": {
                    one.id: {
                        "container": one.container,
                        "tags": one.tags,
                        "status": one.result.status if one.result is not None else 0,
                        "running": one.result is None and one.ending is None,
                        "timeout": one.definition.timeout_secs,
                        "idle_timeout": one.definition.idle_timeout_secs,
                        "regions": list(one.definition.scheduler_placement.regions),
                        "cloud": one.definition.cloud_provider_str,
                        "runtime": one.definition.runtime,
                        "image": one.definition.image_id,
                    }
                    for one in self._sandboxes.all.values()
                },
            }
        else:
            raise web.HTTPNotFound
        return web.json_response(answer)


async def serve(directory: Path) -> None:
    """Serve until standard input ends."""
    containers = Containers()
    await asyncio.to_thread(containers.sweep)
    faults, files = Faults(), Files(files_directory(directory))
    images = Images(containers, files)
    sandboxes = Sandboxes(containers, images, files, faults)
    control = ControlPlane(files, images, sandboxes, faults, f"{TOKEN_ID}:{TOKEN_SECRET}")
    images.secrets = control.secrets
    router = CommandRouter(containers, sandboxes)
    plane = CuttableServer(service(ModalClientBase, control, faults, control.allow))
    worker = CuttableServer(service(TaskCommandRouterBase, router, faults, router.allow))
    switches = Switches(control, files, sandboxes, faults)
    switches.router = worker
    side = web.AppRunner(switches.application())
    await side.setup()
    site = web.TCPSite(side, HOST, 0)
    await site.start()
    await worker.start(HOST, 0)
    await plane.start(HOST, 0)
    control.router_url = f"http://{HOST}:{_port(worker)}"
    door = f"http://{HOST}:{side.addresses[0][1]}"
    control.blob_url = f"{door}/blob"
    print(json.dumps({"url": f"http://{HOST}:{_port(plane)}", "door": door}), flush=True)
    try:
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await sandboxes.close()
        await asyncio.to_thread(containers.close)
        plane.close()
        worker.close()


def _port(server: CuttableServer) -> int:
    listening = getattr(server, "_server", None)
    assert isinstance(listening, asyncio.Server)
    return int(listening.sockets[0].getsockname()[1])


def main() -> None:
    """Serve from a directory that goes with the process."""
    with tempfile.TemporaryDirectory(prefix="modal-server-") as directory:
        asyncio.run(serve(Path(directory)))


if __name__ == "__main__":
    main()
