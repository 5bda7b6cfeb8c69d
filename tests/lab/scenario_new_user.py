"""A machine that has the program and a model, and somebody who has only the documentation.

The commands are those of docs/GETTING_STARTED.md and docs/OPERATING.md, in their order, from looking at the machine to
a tuned, verified service and back. What a person does by hand stands here as well: the edit of the configuration, and
options that make an hour's tuning minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.markdown import REPOSITORY, blocks
from tests.lab import image, layouts
from tests.lab.machine import Machine, booted
from tests.lab.serving import CONFIGURATION, DEMO_MODEL, DROP_IN, complete, configure, node_counts, state

MODEL = "/models/model.gguf"
_PATH = f"export PATH={image.INSTALLATION}/bin:$PATH"
_LIMIT_SECONDS = 1500.0

# Emulated processors are neither quiet nor steady, and minutes are enough to see that it is carried out.
_ABRIDGED = {
    "stratactl bench": " --force --seconds 20 --bytes 64MiB",
    "stratactl tune --stop-service": " --force --rounds 1 --tokens 8 --arms split,single-socket@0",
}
# The first two tell what they find by their exit status, and an emulated machine is neither healthy nor steady; the
# third refuses where the plan uses every CPU, as on these four.
_MAY_END_WITH_1 = ("stratactl doctor", "stratactl bench", "stratactl reserve")


@pytest.fixture
def machine() -> Iterator[Machine]:
    with booted(layouts.TWO, [image.installation_image()]) as machine:
        machine.shell(f"mkdir -p /models && cp {DEMO_MODEL} {MODEL}")
        yield machine


def commands(document: str, heading: str) -> list[str]:
    """The lines of the shell blocks under a heading, without comments and sudo."""
    path = REPOSITORY / "docs" / document
    text = path.read_text(encoding="utf-8").splitlines()
    first = text.index(f"## {heading}")
    last = next((index for index in range(first + 1, len(text)) if text[index].startswith("## ")), len(text))
    lines = [
        line.split("#")[0].strip().removeprefix("sudo ")
        for block in blocks(path)
        if first < block.line_number <= last
        for line in block.text.splitlines()
    ]
    assert any(lines), f"{document} has no commands under {heading!r}"
    return [line for line in lines if line]


def follow(machine: Machine, document: str, heading: str) -> None:
    """Does what is written there; every command has to do its part."""
    for line in commands(document, heading):
        if line.startswith("nano "):
            assert line == f"nano {CONFIGURATION}"
            configure(machine, model=MODEL)
            continue
        done = machine.run(
            "/bin/sh", "-euc", f"{_PATH}; {line}{_ABRIDGED.get(line, '')}", limit_seconds=_LIMIT_SECONDS
        )
        allowed = {0, 1} if line.startswith(_MAY_END_WITH_1) else {0}
        assert done.status in allowed, f"{document}, {heading}: {line}\n{done.stdout}{done.stderr}"


@pytest.mark.lengthy
def test_the_documentation_alone_leads_to_a_tuned_and_verified_service(machine: Machine) -> None:
    follow(machine, "GETTING_STARTED.md", "2. Look at your machine")
    follow(machine, "GETTING_STARTED.md", "3. Plan for your model")
    follow(machine, "GETTING_STARTED.md", "5. Make it a service")
    assert state(machine) == "ready"
    assert complete(machine)
    assert machine.exists(DROP_IN)

    follow(machine, "OPERATING.md", "Apply")
    follow(machine, "OPERATING.md", "Verify")
    follow(machine, "OPERATING.md", "Make it faster")
    follow(machine, "OPERATING.md", "Verify")
    assert machine.exists("/var/lib/stratad/tune.json")
    assert state(machine) == "ready"
    assert set(node_counts(machine)) <= {0, 1}

    follow(machine, "OPERATING.md", "Roll back")
    assert not machine.exists(DROP_IN)
    assert complete(machine)
