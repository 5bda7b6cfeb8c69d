"""Reads several streams of one daemon at once and tells when their tokens came: the client of the serving benchmark.

A process of its own, as light as Python allows: on a machine that computes with all its CPUs, what a client burns is
taken from the engine.

usage: python -m tests.bench.stream_reader PORT BODY_FILE...

Prints one JSON list for each body: seconds at which its chunks arrived, by the system's monotonic clock.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from pathlib import Path


def read_streams(port: int, bodies: list[bytes]) -> list[list[float]]:
    """Sends all requests, and notes for each when every chunk of its stream came."""
    selector = selectors.DefaultSelector()
    arrivals: list[list[float]] = []
    for index, body in enumerate(bodies):
        connection = socket.create_connection(("127.0.0.1", port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        selector.register(connection, selectors.EVENT_READ, index)
        arrivals.append([])
    rest = len(bodies)
    while rest:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            connection = key.fileobj
            content = connection.recv(1 << 16)
            now_seconds = time.monotonic()
            if not content:
                selector.unregister(connection)
                connection.close()
                rest -= 1
            arrivals[key.data] += [now_seconds] * content.count(b'"finish_reason":null')
    return arrivals


if __name__ == "__main__":
    print(json.dumps(read_streams(int(sys.argv[1]), [Path(name).read_bytes() for name in sys.argv[2:]])))
