"""The listening socket: opened before anything is loaded, so that a port in use is told at once."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

from ..core.errors import ConfigurationError
from .server_args import ServerArgs

BACKLOG = 2048


@contextlib.contextmanager
def listening(args: ServerArgs) -> Iterator[socket.socket]:
    """The socket that ``args`` asks for; afterwards it is closed, and the file of a Unix socket removed.

    Raises ``ConfigurationError`` naming the port, the host or the path that cannot be had.
    """
    if args.uds is None:
        with contextlib.closing(open_listener(args.host, args.port, args.api_server_count > 1)) as listener:
            yield listener
        return
    listener = open_unix_listener(args.uds)
    own = os.stat(args.uds).st_ino
    try:
        yield listener
    finally:
        listener.close()
        # Not if another server has put its own there since.
        with contextlib.suppress(OSError):
            if os.stat(args.uds).st_ino == own:
                os.unlink(args.uds)


def open_listener(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket that listens on ``host`` and ``port`` (0: a free one). ``shared``: ``another_listener`` may join it.

    Raises ``ConfigurationError`` naming the port or the host that cannot be had.
    """
    if shared and port:
        # A shared port is shared with every program that asks for it; this one is to be ours alone.
        open_listener(host, port).close()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"--host {host!r} is no address: {error}") from error
    # localhost stands for ::1 and 127.0.0.1; most clients try the latter.
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    try:
        # It also reuses an address whose last server has just ended: the kernel still waits for stray packets there.
        both = family == socket.AF_INET6
        listener = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigurationError(_reason(error, host, port)) from error
    listener.setblocking(False)
    return listener


def another_listener(listener: socket.socket) -> socket.socket:
    """A socket for another process at the address of a shared one. Once it listens, and not before, the kernel hands it
    an equal part of the connections. A Unix socket is handed on as it is: whoever is quicker takes a connection."""
    if listener.family == socket.AF_UNIX:
        return listener.dup()
    another = socket.socket(listener.family, listener.type)
    another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    another.bind(listener.getsockname())
    another.setblocking(False)
    return another


def open_unix_listener(path: str) -> socket.socket:
    """A Unix socket that listens at ``path``; replaces the file that a killed server has left there.

    Raises ``ConfigurationError`` if a program still listens there, or if it is another kind of file. Who may connect
    is decided by the folder's permissions and the process's umask.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on --uds {path}: {error.strerror or error}") from error
    except ConfigurationError:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"--uds {path} exists and is no socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigurationError(f"--uds {path} is in use by another program; stop that, or choose another path")


def _reason(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; stop that, or choose another with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be opened by this user; choose one from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


def listener_url(listener: socket.socket, host: str, scheme: str = "http") -> str:
    """The URL of the server behind the socket; ``unix:PATH`` for a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    port = listener.getsockname()[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
