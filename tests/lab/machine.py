"""A throw-away virtual machine with chosen nodes: boots under software emulation, obeys the agent in it."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import image
from tests.lab.layouts import Layout

# Emulated processors on a busy host: bounds against hanging, never a measure of speed.
BOOT_LIMIT_SECONDS = 200.0
_BOOT_ATTEMPTS = 3
CALL_LIMIT_SECONDS = 420.0

# Where the guest finds the disks of image.model_image and image.package_image.
MODELS = "/srv/models"
PACKAGES = "/srv/packages"

_KERNEL_COMMAND_LINE = (
    "root=/dev/nvme0n1 rw console=ttyS0 quiet panic=-1 nokaslr mitigations=off random.trust_cpu=on "
    "systemd.show_status=0 no_timer_check tsc=reliable audit=0 apparmor=0 nowatchdog init_on_alloc=0"
)


class MachineLost(Exception):
    """The machine ended, did not come up, or its agent did not answer within the limit."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended in the guest."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon said over HTTP; status 0 when it could not be reached or broke off (`error` says how)."""

    status: int
    text: str
    error: str

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)


class Machine:
    """The running guest. Methods block until its agent has answered; `start` does not."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, console: Path) -> None:
        self._process = process
        self._channel = channel
        self._console = console
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._next_id = 0
        self._boot_ids: list[str] = []
        self._booted = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="lab-reader", daemon=True)
        self._reader.start()

    # --- Commands and files -----------------------------------------------------------------------

    def run(self, *command: str, text: str | None = None, limit_seconds: float = 240.0) -> Done:
        """Runs a command as root and gives how it ended."""
        return Done(**self.call("run", command=list(command), text=text, limit_seconds=limit_seconds))

    def check(self, *command: str, limit_seconds: float = 240.0) -> str:
        """Output of a command that has to succeed."""
        done = self.run(*command, limit_seconds=limit_seconds)
        assert done.status == 0, f"{' '.join(command)}: status {done.status}\n{done.stdout}{done.stderr}"
        return done.stdout

    def shell(self, script: str) -> str:
        """Output of a shell script that has to succeed."""
        return self.check("/bin/sh", "-euc", script)

    def read(self, path: str) -> str:
        """Text of a file that has to be there."""
        text = self.call("read", path=path)
        assert isinstance(text, str), f"{path} is not there"
        return text

    def exists(self, path: str) -> bool:
        """Whether a file can be read."""
        return self.call("read", path=path) is not None

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file and the folders above it."""
        self.call("write", path=path, text=text, mode=mode)

    def http(self, method: str, path: str, body: Any = None) -> Answer:
        """One request to the daemon on its default port."""
        return Answer(**self.call("http", method=method, path=path, body=body))

    def start(self, operation: str, **arguments: Any) -> Future[Any]:
        """Begins an operation of the agent (guest/agent.py)."""
        future: Future[Any] = Future()
        with self._lock:
            self._next_id += 1
            self._waiting[self._next_id] = future
            request = {"id": self._next_id, "operation": operation, "arguments": arguments}
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        return future

    def call(self, operation: str, **arguments: Any) -> Any:
        """Does an operation and gives its result."""
        try:
            return self.start(operation, **arguments).result(CALL_LIMIT_SECONDS)
        except TimeoutError as error:
            raise MachineLost(f"{operation} {arguments} got no answer\n{self.console}") from error

    # --- Life -------------------------------------------------------------------------------------

    def wait_until_booted(self, count: int = 1) -> None:
        """Returns when the agent has come up for the `count`-th time."""
        end_seconds = time.monotonic() + BOOT_LIMIT_SECONDS
        with self._booted:
            while len(self._boot_ids) < count:
                if self._process.poll() is not None or not self._booted.wait(0.5):
                    rest_seconds = end_seconds - time.monotonic()
                    if self._process.poll() is not None or rest_seconds < 0:
                        raise MachineLost(f"the guest did not come up\n{self.console}")

    def mount_disks(self) -> None:
        """Mounts the disks that this machine has: stratad's, the large model's, the Debian package's."""
        self.shell(
            f"mkdir -p {MODELS} {PACKAGES}; "
            f"for disk in labopt:{image.INSTALLATION} labmodel:{MODELS} labpackage:{PACKAGES}; do "
            "[ ! -e /dev/disk/by-label/${disk%:*} ] || mount -o ro LABEL=${disk%:*} ${disk#*:}; done"
        )

    def reboot(self) -> None:
        """Restarts the guest's kernel; its disk keeps what was written."""
        count = len(self._boot_ids)
        self.run("systemctl", "stop", "stratad.service")
        self.run("sync")
        # The answer may be lost with the machine that gives it.
        self.start("run", command=["systemctl", "reboot", "-ff"])
        self.wait_until_booted(count + 1)
        self.mount_disks()

    @property
    def console(self) -> str:
        """The end of what the kernel wrote."""
        return self._console.read_text(errors="replace")[-4000:]

    def _read(self) -> None:
        pending = b""
        while True:
            try:
                part = self._channel.recv(1 << 16)
            except OSError:
                return
            if not part:
                return
            *lines, pending = (pending + part).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, answer: Mapping[str, Any]) -> None:
        if answer["id"] == -1:
            with self._booted:
                self._boot_ids.append(str(answer["result"]))
                self._booted.notify_all()
            return
        with self._lock:
            future = self._waiting.pop(answer["id"])
        if "fault" in answer:
            future.set_exception(AssertionError(f"the guest's agent failed:\n{answer['fault']}"))
        else:
            future.set_result(answer["result"])


@contextmanager
def booted(layout: Layout, disks: Sequence[Path]) -> Iterator[Machine]:
    """A machine of this layout with these disks; it is gone at the end, with everything written to it.

    An emulated processor on a busy host now and then loses a timer for good while the kernel boots ("rcu_preempt
    kthread starved"): nothing of ours runs by then, and the machine is started anew.
    """
    image.require_host()
    for attempt in range(1, _BOOT_ATTEMPTS + 1):
        with _started(layout, disks) as machine:
            try:
                machine.wait_until_booted()
            except MachineLost:
                if attempt == _BOOT_ATTEMPTS:
                    raise
                print(f"lab: {layout.name} did not boot; starting it anew\n{machine.console}", flush=True)
                continue
            machine.mount_disks()
            yield machine
            return


@contextmanager
def _started(layout: Layout, disks: Sequence[Path]) -> Iterator[Machine]:
    """A machine that has been switched on."""
    root = image.root_image()
    with tempfile.TemporaryDirectory(prefix="vm-", dir=image.cache_directory()) as name:
        folder = Path(name)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(folder / "agent"))
        listener.listen(1)
        listener.settimeout(60)
        command = _command(layout, root, disks, folder)
        with (folder / "console").open("wb") as console:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )
        try:
            channel, _ = listener.accept()
            yield Machine(process, channel, folder / "console")
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            listener.close()


def _command(layout: Layout, root: Path, disks: Sequence[Path], folder: Path) -> list[str]:
    program = shutil.which("qemu-system-x86_64")
    assert program is not None
    command = [program, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35,hpet=off"]
    # Four-level page tables are cheaper to walk for the emulator than five.
    command += ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,-la57"]
    command += ["-smp", layout.processors, "-m", f"{layout.memory_mebibytes}M", *layout.options]
    command += ["-serial", "stdio", "-kernel", str(image.kernel())]
    command += ["-append", _KERNEL_COMMAND_LINE]
    # Without bus= a device would land on the expander bridge.
    for index, disk in enumerate([root, *disks]):
        drive = f"if=none,id=disk{index},file={disk},format=raw,cache=unsafe"
        command += ["-drive", f"{drive},{'snapshot=on' if index == 0 else 'readonly=on'}"]
        command += ["-device", f"nvme,serial=lab{index},drive=disk{index},bus=pcie.0,addr={5 + index}"]
    command += ["-chardev", f"socket,id=agent,path={folder / 'agent'}"]
    command += ["-device", "virtio-serial-pci,bus=pcie.0,addr=4"]
    return [*command, "-device", "virtserialport,chardev=agent,name=stratad.lab"]
