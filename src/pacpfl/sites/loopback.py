"""A step of provisioning: a server whose host is this machine can be reached from nowhere else.

FLARE listens on the loopback device where the server's name is an address of it, and on all devices
otherwise. Ours is called "server" in its certificate, so its settings get the address before they are
signed.
"""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.spec import Builder

from pacpfl import files


class Loopback(Builder):  # type: ignore[misc]
    def build(self, project: Project, ctx: ProvisionContext) -> None:
        server = project.get_server()
        host = server.get_default_host()
        if host == "localhost" or host.startswith("127."):
            path = Path(ctx.get_kit_dir(server)) / "fed_server.json"
            settings = json.loads(path.read_text(encoding="utf-8"))
            for one in settings["servers"]:
                one["service"]["target"] = f"{host}:{ctx[CtxKey.FED_LEARN_PORT]}"
            files.write_json(path, settings)
