"""The HTTP side: an OpenAI-compatible API, health, metrics and a status page.

Handlers parse, call one method of the service, and render; they decide nothing.
"""

from stratad.server.app import ServerSettings, create_app
from stratad.server.authorization import Administration
from stratad.server.listener import HttpServer, Listener, open_listener

__all__ = ["Administration", "HttpServer", "Listener", "ServerSettings", "create_app", "open_listener"]
