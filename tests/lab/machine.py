"""A throw-away virtual machine with chosen nodes: boots under software emulation, obeys the agent in it."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import image
from tests.lab.layouts import Layout

# Emulated processors on a busy host: bounds against hanging, never a measure of speed.
BOOT_LIMIT_SECONDS = 200.0
_BOOT_ATTEMPTS = 3
CALL_LIMIT_SECONDS = 420.0
_POWER_OFF_LIMIT_SECONDS = 30.0

# The id of what the agent says unasked (guest/agent.py).
_AGENT_IS_UP = 0

# Where the guest finds the disks of image.model_image and image.package_image.
MODELS = "/srv/models"
PACKAGES = "/srv/packages"

_KERNEL_COMMAND_LINE = (
    "root=/dev/nvme0n1 rw console=ttyS0 panic=-1 nokaslr mitigations=off random.trust_cpu=on "
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
    """The guest. Methods block until its agent has answered; `start` does not."""

    def __init__(self, layout: Layout, disks: Sequence[Path], folder: Path) -> None:
        self._command = _command(layout, disks, folder)
        self._name = layout.name
        self._console = folder / "console"
        self._power: _Power | None = None

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
        if self._power is None:
            raise MachineLost(f"the machine is switched off; {operation} cannot be asked of it")
        return self._power.ask(operation, arguments)

    def call(self, operation: str, **arguments: Any) -> Any:
        """Does an operation and gives its result."""
        try:
            return self.start(operation, **arguments).result(CALL_LIMIT_SECONDS)
        except TimeoutError as error:
            # What does not answer once will not answer the next question either.
            self.switch_off()
            raise MachineLost(f"{operation} {arguments} got no answer\n{self.console}") from error

    # --- Life -------------------------------------------------------------------------------------

    def switch_on(self) -> None:
        """Boots the guest and mounts its disks.

        An emulated processor on a busy host now and then loses a timer for good while the kernel boots ("rcu_preempt
        kthread starved"): nothing of ours runs by then, and the machine is started anew.
        """
        for attempt in range(1, _BOOT_ATTEMPTS + 1):
            self._power = _Power(self._command, self._console)
            try:
                self._power.agent.result(BOOT_LIMIT_SECONDS)
                break
            except (MachineLost, TimeoutError) as error:
                self.switch_off()
                if attempt == _BOOT_ATTEMPTS:
                    raise MachineLost(f"the guest did not come up\n{self.console}") from error
                print(f"lab: {self._name} did not boot; starting it anew\n{self.console}", flush=True)
        self.shell(
            f"mkdir -p {MODELS} {PACKAGES}; "
            f"for disk in labopt:{image.INSTALLATION} labmodel:{MODELS} labpackage:{PACKAGES}; do "
            "[ ! -e /dev/disk/by-label/${disk%:*} ] || mount -o ro LABEL=${disk%:*} ${disk#*:}; done"
        )

    @property
    def is_on(self) -> bool:
        """Whether it has power and has not ended by itself."""
        return self._power is not None and self._power.is_on

    def switch_off(self) -> None:
        """Takes the power away; does nothing to a machine that has none."""
        if self._power is not None:
            self._power.cut()
        self._power = None

    def reboot(self) -> None:
        """Takes the power away and boots again; the guest's disk keeps what was written.

        The emulator starts anew as well: machines were lost when the guest's kernel reset them.
        """
        self.run("systemctl", "stop", "stratad.service")
        self.check("sync")
        self.switch_off()
        self.switch_on()

    @property
    def console(self) -> str:
        """The end of what the kernel wrote."""
        return self._console.read_text(errors="replace")[-4000:]


class _Power:
    """One run of the emulator, and what was asked of the agent in it: every question ends with an answer or a fault."""

    def __init__(self, command: Sequence[str], console: Path) -> None:
        self._channel, theirs = socket.socketpair()
        port = theirs.fileno()
        with theirs, console.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "-chardev", f"socket,id=agent,fd={port}"],
                pass_fds=[port],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        # Ends when the agent says that it has come up.
        self.agent: Future[Any] = Future()
        self._lock = threading.Lock()
        self._waiting = {_AGENT_IS_UP: self.agent}
        self._next_id = _AGENT_IS_UP
        self._is_over = False
        threading.Thread(target=self._read, name="lab-reader", daemon=True).start()

    def ask(self, operation: str, arguments: dict[str, Any]) -> Future[Any]:
        """Sends one request."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_over:
                raise MachineLost(f"the machine has ended; {operation} cannot be asked of it")
            self._next_id += 1
            self._waiting[self._next_id] = future
            request = {"id": self._next_id, "operation": operation, "arguments": arguments}
            try:
                self._channel.sendall(json.dumps(request).encode() + b"\n")
            except OSError as error:
                raise MachineLost(f"the machine ended before {operation} could be asked of it") from error
        return future

    @property
    def is_on(self) -> bool:
        """Whether the emulator runs."""
        return self._process.poll() is None

    def cut(self) -> None:
        """Ends the emulator, which writes out its disks' tables first."""
        self._process.terminate()
        try:
            self._process.wait(_POWER_OFF_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        # A machine whose power is cut may break off in the middle of a line.
        with suppress(OSError), self._channel, self._channel.makefile("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    self._take(json.loads(line))
        with self._lock:
            self._is_over = True
            left = list(self._waiting.values())
        for future in left:
            future.set_exception(MachineLost("the machine ended before its agent had answered"))

    def _take(self, answer: dict[str, Any]) -> None:
        with self._lock:
            future = self._waiting.pop(answer["id"], None)
        if future is None:
            # An agent that came up a second time; what the first was asked ends by its limit.
            return
        if "fault" in answer:
            future.set_exception(AssertionError(f"the guest's agent failed:\n{answer['fault']}"))
        else:
            future.set_result(answer["result"])


@contextmanager
def booted(layout: Layout, disks: Sequence[Path]) -> Iterator[Machine]:
    """A machine of this layout with these disks; it is gone at the end, with everything written to it."""
    image.require_host()
    with tempfile.TemporaryDirectory(prefix="vm-", dir=image.cache_directory()) as name:
        machine = Machine(layout, disks, Path(name))
        try:
            machine.switch_on()
            yield machine
        finally:
            machine.switch_off()


def _command(layout: Layout, disks: Sequence[Path], folder: Path) -> list[str]:
    # A lab that is killed takes its machine with it.
    command = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35,hpet=off"]
    # Four-level page tables are cheaper to walk for the emulator than five.
    command += ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,-la57"]
    command += ["-smp", layout.processors, "-m", f"{layout.memory_mebibytes}M", *layout.options]
    # A kernel that restarts by itself has panicked: the emulator ends with it.
    command += ["-no-reboot", "-serial", "stdio", "-kernel", str(image.kernel())]
    command += ["-append", _KERNEL_COMMAND_LINE]
    drives = [f"file={image.overlay(image.root_image(), folder)},format=qcow2"]
    drives += [f"file={disk},format=raw,readonly=on" for disk in disks]
    # Without bus= a device would land on the expander bridge.
    for index, drive in enumerate(drives):
        command += ["-drive", f"if=none,id=disk{index},cache=unsafe,{drive}"]
        command += ["-device", f"nvme,serial=lab{index},drive=disk{index},bus=pcie.0,addr={5 + index}"]
    command += ["-device", "virtio-serial-pci,bus=pcie.0,addr=4"]
    return [*command, "-device", "virtserialport,chardev=agent,name=stratad.lab"]
