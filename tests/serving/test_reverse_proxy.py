"""The documented reverse proxy: the real nginx with etc/nginx/stratad.conf and a certificate made for the test."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from stratad.server import Administration
from stratad.server.api_keys import ApiKeys, read_key_files
from stratad.server.authorization import ADMINISTRATION_HEADER
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import LIMIT_SECONDS, MODEL, Served, serve, wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "etc" / "nginx" / "stratad.conf"
NAME = "llm.example.net"
KEY = "a-key-for-the-proxy"

# Debian keeps it where a user's PATH does not look; packaging/bootstrap/test_packages.sh unpacks it into the cache.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratad" / "nginx"
NGINX = shutil.which("nginx") or shutil.which("nginx", path=f"/usr/sbin:{CACHE}")

pytestmark = pytest.mark.skipif(
    NGINX is None or shutil.which("openssl") is None,
    reason="nginx or openssl is neither installed nor fetched (packaging/bootstrap/test_packages.sh): TLS is left out",
)


@dataclass(frozen=True, slots=True)
class Proxied:
    """A daemon's server behind nginx: `url` is nginx's, by its name, and `client` comes to it by that name."""

    served: Served
    url: str
    client: httpx.Client

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=KEY,
            max_retries=0,
            http_client=self.client,
            timeout=LIMIT_SECONDS,
        )


class _ByName(httpx.HTTPTransport):
    """Goes to loopback for the proxy's name, as a name server would have it, and checks the certificate by name."""

    def __init__(self, trusted: ssl.SSLContext) -> None:
        super().__init__(verify=trusted)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions = {**request.extensions, "sni_hostname": NAME}
        request.url = request.url.copy_with(host="127.0.0.1")
        return super().handle_request(request)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for NAME that signs itself, and its key."""
    certificate_path, key_path = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-keyout", str(key_path), "-out", str(certificate_path), "-days", "2"),
            *("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate_path, key_path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def configuration(folder: Path, daemon_url: str, port: int) -> str:
    """The example with this test's addresses and files in it, inside the frame that nginx.conf is."""
    certificate_path, key_path = certificate(folder)
    text = EXAMPLE.read_text(encoding="utf-8")
    for pattern, value in (
        (r"server 127\.0\.0\.1:8090;", f"server {daemon_url.removeprefix('http://')};"),
        (r"listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        (r"ssl_certificate     \S+;", f"ssl_certificate {certificate_path};"),
        (r"ssl_certificate_key \S+;", f"ssl_certificate_key {key_path};"),
    ):
        text, count = re.subn(pattern, value, text)
        assert count == 1, f"the example has no {pattern}"
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # As root nginx would become a user that may not write in the test's folder.
    user = "user root;" if os.getuid() == 0 else ""
    return (
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;\n"
        f"events {{}}\nhttp {{ access_log off; {paths}\n{text}\n}}\n"
    )


@contextmanager
def proxied(folder: Path, runner: ScriptedRunner | None = None) -> Iterator[Proxied]:
    """The server behind nginx, ready."""
    assert NGINX is not None
    keys = folder / "keys"
    keys.write_text(KEY)
    administration = Administration("token", lambda: None, lambda: 30.0)
    with serve(
        runner,
        api_keys=ApiKeys(read_key_files(keys, None)),
        allowed_hosts=(NAME,),
        administration=administration,
    ) as served:
        port = free_port()
        path = folder / "nginx.conf"
        path.write_text(configuration(folder, served.url, port), encoding="utf-8")
        command = [NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(path)]
        trusted = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        url = f"https://{NAME}:{port}"
        try:
            with httpx.Client(transport=_ByName(trusted), timeout=LIMIT_SECONDS) as client:
                wait_until(lambda: process.poll() is not None or answers(port))
                assert process.poll() is None, process.stderr and process.stderr.read()
                yield Proxied(served, url, client)
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT_SECONDS)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_real_client_streams_through_it_token_by_token(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda prompt: [b"one ", b"two ", b"three"], holds_steps=True)
    with proxied(tmp_path, runner) as proxy:
        runner.grant_steps(2)
        stream = iter(proxy.openai().completions.create(model=MODEL, prompt="p", stream=True))
        # The engine stands still behind the second token: what comes now was not kept back by the proxy.
        texts = [next(stream).choices[0].text]
        assert texts == ["one "]
        runner.release()
        texts += [chunk.choices[0].text for chunk in stream]
    assert "".join(texts) == "one two three"


def test_a_client_that_leaves_the_proxy_cancels_its_request(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda prompt: [b"x"] * 100, holds_steps=True)
    with proxied(tmp_path, runner) as proxy:
        runner.grant_steps(2)
        stream = proxy.openai().completions.create(model=MODEL, prompt="p", stream=True)
        next(iter(stream))
        stream.close()
        wait_until(lambda: all(one.is_cancelled for one in proxy.served.engine._requests._running))
        runner.release()
        wait_until(lambda: dict(proxy.served.engine.status().finish_reasons).get("cancelled") == 1)


def test_keys_page_and_refusals_come_through_and_administration_does_not(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        with pytest.raises(openai.AuthenticationError):
            proxy.openai().with_options(api_key="wrong").models.list()
        assert proxy.openai().models.list().data[0].id == MODEL
        page = proxy.client.get(proxy.url + "/")
        key = {"Authorization": f"Bearer {KEY}"}
        drain = proxy.client.post(proxy.url + "/admin/drain", headers={**key, ADMINISTRATION_HEADER: "token"})
        placement = proxy.client.get(proxy.url + "/placement", headers=key)
        large = proxy.client.post(proxy.url + "/v1/completions", headers=key, content=b"x" * (2 << 20))
        assert proxy.served.service.state.value == "ready"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert (drain.status_code, placement.status_code) == (403, 403)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large"), (
        "the daemon's own words"
    )


def test_nginx_finds_no_fault_with_the_example(tmp_path: Path) -> None:
    assert NGINX is not None
    path = tmp_path / "nginx.conf"
    path.write_text(configuration(tmp_path, "http://127.0.0.1:8090", free_port()), encoding="utf-8")
    done = subprocess.run(
        [NGINX, "-t", "-p", str(tmp_path), "-e", str(tmp_path / "error.log"), "-c", str(path)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, "[warn]" in done.stderr) == (0, False), done.stderr
