"""The listening socket: opened before anything is loaded, so that a port in use is told at once."""

import errno
import socket

from ..core.errors import ConfigurationError

BACKLOG = 2048


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` and ``port`` (0: a free one).

    Raises ``ConfigurationError`` naming the port or the host that cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"--host {host!r} is no address: {error}") from error
    # localhost stands for ::1 and 127.0.0.1; most clients try the latter.
    family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        # A port whose last server has just ended is free, though the kernel still waits for stray packets.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_reason(error, host, port)) from error
    return listener


def _reason(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; stop that, or choose another with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be opened by this user; choose one from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


def listener_url(listener: socket.socket, host: str) -> str:
    """The URL of the server behind the socket."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
