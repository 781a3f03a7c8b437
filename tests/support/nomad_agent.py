"""Real Nomad agents of our own on loopback: a server, and nodes of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from hermes_exec.backends.owner import descendants

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0
CONFIG = """
name = "{name}"
data_dir = "{directory}/data"
bind_addr = "127.0.0.1"
disable_update_check = true
log_level = "WARN"
advertise {{
  http = "127.0.0.1"
  rpc = "127.0.0.1"
  serf = "127.0.0.1"
}}
ports {{
  http = {http}
  rpc = {rpc}
  serf = {serf}
}}
server {{
  enabled = {server}
  bootstrap_expect = {expect}
}}
client {{
  enabled = {node}
  servers = [{servers}]
  network_interface = "lo"
  cgroup_parent = "nomad-{name}"
  cpu_total_compute = {mhz}
  memory_total_mb = {memory_mb}
  options = {{
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault,cni,bridge"
    "driver.allowlist" = "docker,raw_exec"
  }}
}}
plugin "docker" {{
  config {{
    allow_privileged = true
    volumes {{
      enabled = true
    }}
    gc {{
      image = false
      dangling_containers {{
        enabled = false
      }}
    }}
  }}
}}
plugin "raw_exec" {{
  config {{
    enabled = true
  }}
}}
acl {{
  enabled = {acl}
}}
{more}
"""
POLICY = 'namespace "default" { policy = "read" capabilities = ["submit-job", "alloc-exec", "alloc-lifecycle"] }'


def program() -> str:
    """The path of the agent, which `.ci/nomad` builds."""
    done = subprocess.run([ROOT / ".ci" / "nomad", "program"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def missing() -> str:
    """Why there can be no agent here, empty if there can."""
    if os.geteuid() != 0:
        return "nodes are run by root"
    return "" if os.access(program(), os.X_OK) else f"there is no {program()}: run .ci/nomad"


@dataclass
class Agent:
    """One agent. Its ports stay the same when it is restarted."""

    directory: Path
    name: str
    acl: bool = True
    """Whether it asks for tokens."""
    server: Agent | None = None
    """That of a node; None for a server itself."""
    more: str = ""
    noexec: bool = False
    """Whether no program can run in the data directory of a node."""
    mhz: int = 100_000
    memory_mb: int = 400_000
    scheme: str = "http"
    secure: Mapping[str, Any] = field(default_factory=dict)
    """What `requests` needs to speak with it."""
    token: str = field(default_factory=lambda: str(uuid.uuid4()))
    ports: tuple[int, ...] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Where its API is."""
        return f"{self.scheme}://127.0.0.1:{self.ports[0]}"

    @property
    def log(self) -> str:
        """What it has written."""
        return (self.directory / "log").read_text("utf-8", "replace")

    def ask(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401 -- what JSON holds
        """An answer of its API, as the one who may do everything."""
        headers = {"X-Nomad-Token": self.token} if self.acl else {}
        url = f"{self.address}/v1/{path}"
        answer = requests.request(method, url, headers=headers, timeout=30, **self.secure, **more)
        if not answer.ok:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.text.strip() else None

    def start(self) -> None:
        """Run it; returns when it takes jobs."""
        server = self.server is None
        if self.noexec and not server:
            (self.directory / "data").mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "noexec,mode=0711", "data", str(self.directory / "data")]
            subprocess.run(mount, check=True)
        joined = "" if self.server is None else f'"127.0.0.1:{self.server.ports[1]}"'
        (self.directory / "config.hcl").write_text(
            CONFIG.format(
                name=self.name, directory=self.directory, mhz=self.mhz, memory_mb=self.memory_mb, more=self.more,
                http=self.ports[0], rpc=self.ports[1], serf=self.ports[2], acl=str(self.acl).lower(),
                server=str(server).lower(), node=str(not server).lower(), expect=1 if server else 0, servers=joined,
            )
        )  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            # Tasks of raw_exec get the environment of their agent.
            path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            self._process = subprocess.Popen(
                [program(), "agent", f"-config={self.directory}/config.hcl"],
                env={"PATH": path, "HOME": str(self.directory)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.wait()

    def wait(self) -> None:
        """Return when its node takes jobs."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            with contextlib.suppress(RuntimeError, requests.RequestException):
                if self.server is None:
                    self._bootstrap()
                    return
                if any(self._takes_jobs(node) for node in self.ask("GET", "nodes")):
                    return
            time.sleep(0.05)
        raise RuntimeError(f"no Nomad: {self.log[-3000:]}")

    def _bootstrap(self) -> None:
        """Have it know the token, and a key: a node that comes earlier tries again after half a minute."""
        if self.acl:
            body = {"BootstrapSecret": self.token}
            requests.post(f"{self.address}/v1/acl/bootstrap", json=body, timeout=5, **self.secure)
        if not self.ask("GET", "operator/keyring/keys"):
            raise RuntimeError("it has no key yet")

    def _takes_jobs(self, node: Mapping[str, Any]) -> bool:
        healthy = all((node["Drivers"].get(name) or {}).get("Healthy") for name in ("docker", "raw_exec"))
        return bool(node["Name"] == self.name and node["Status"] == "ready" and healthy)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it as an accident would; its tasks live on."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Have it do nothing until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def jobs(self) -> list[str]:
        """The names of the jobs of all namespaces."""
        return [str(job["ID"]) for job in self.ask("GET", "jobs?namespace=*")]

    def make_namespace(self, name: str) -> None:
        """Make a namespace."""
        self.ask("PUT", f"namespace/{name}", json={"Name": name})

    def token_with(self, rules: str) -> str:
        """A token that may do what a policy says."""
        name = f"p{uuid.uuid4().hex[:8]}"
        self.ask("POST", f"acl/policy/{name}", json={"Name": name, "Rules": rules})
        made = self.ask("POST", "acl/token", json={"Name": name, "Type": "client", "Policies": [name]})
        return str(made["SecretID"])

    def options(self, **more: Any) -> dict[str, Any]:
        """Options of the backend for this agent, with a token that may do what docs/backends.md says and no more."""
        rights = ', "alloc-node-exec", "read-fs"]' if more.get("driver") == "singularity" else "]"
        policy = POLICY.replace("]", rights) + ' node { policy = "read" }'
        token = {"token": self.token_with(policy)} if self.acl else {}
        return {"address": self.address, **token, **more}

    def end(self) -> None:
        """End its jobs and itself, and whatever is left."""
        containers = [f"sandbox-{directory.name}" for directory in (self.directory / "data" / "alloc").glob("*-*")]
        with contextlib.suppress(RuntimeError, requests.RequestException):
            for job in self.ask("GET", "jobs?namespace=*") if self.server is not None else ():
                self.ask("DELETE", f"job/{job['ID']}?purge=true&namespace={job['Namespace']}")
            self.ask("PUT", "system/gc")
            until = time.monotonic() + 15
            while time.monotonic() < until and list((self.directory / "data" / "alloc").glob("*-*")):
                time.sleep(0.05)
        left = descendants(self._process.pid) if self._process is not None else []
        self.stop()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._forget()
        if containers and shutil.which("docker"):  # those of an agent that was killed
            subprocess.run(["docker", "rm", "--force", "--volumes", *containers], capture_output=True, check=False)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(f"{self.directory}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)
        for group in Path("/sys/fs/cgroup").glob(f"*/nomad-{self.name}"):
            for inner in sorted(group.rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):
                    inner.rmdir()
            with contextlib.suppress(OSError):
                group.rmdir()

    def _forget(self) -> None:
        """Have the server of a node that is gone forget it: it would place jobs there for seconds, and for five minutes
        after a restart.
        """
        if self.server is None:
            return
        with contextlib.suppress(RuntimeError, requests.RequestException):
            for node in self.server.ask("GET", "nodes"):
                if node["Name"] == self.name:
                    self.server.ask("PUT", f"node/{node['ID']}/purge")


@contextmanager
def agent(server: Agent | None = None, **options: Any) -> Iterator[Agent]:
    """A node, of a server of its own unless one is given, that is ended with all that it has run."""
    with ExitStack() as stack:
        if server is None:
            server = stack.enter_context(_running(None, options))
        yield stack.enter_context(_running(server, options))


@contextmanager
def _running(server: Agent | None, options: Mapping[str, Any]) -> Iterator[Agent]:
    directory = Path(tempfile.mkdtemp(prefix="nomad-test-", dir="/tmp"))  # a short path, which others may pass
    directory.chmod(0o711)
    made = Agent(directory, f"n{uuid.uuid4().hex[:8]}", server=server, **options)
    if server is not None:
        made.token = server.token
    with ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in free:
            each.bind(("127.0.0.1", 0))
        made.ports = tuple(each.getsockname()[1] for each in free)
    try:
        made.start()
        yield made
    finally:
        made.end()
