"""TLS of the HTTP server, checked before anything is loaded."""

import os
import ssl

from ..core.errors import ConfigurationError
from .server_args import ServerArgs

PASSWORD_VARIABLE = "OCTAVO_SSL_KEYFILE_PASSWORD"


def server_tls(args: ServerArgs) -> ssl.SSLContext | None:
    """The context for the files that ``args`` names; None without a certificate. At least TLS 1.2.

    With ``ssl_ca_certs`` clients must show a certificate too. Raises ``ConfigurationError`` naming the flag of a file
    that cannot be used.
    """
    if args.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    flags = "--ssl-certfile" if args.ssl_keyfile is None else "--ssl-certfile and --ssl-keyfile"
    try:
        # An empty password rather than none: OpenSSL would ask for it on the terminal, and the start would hang.
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile, os.environ.get(PASSWORD_VARIABLE, ""))
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{flags}: {error.reason or error}; both must be PEM files that belong together "
            f"(the password of an encrypted key goes into {PASSWORD_VARIABLE})"
        ) from error
    except OSError as error:
        files = " or ".join(filter(None, (args.ssl_certfile, args.ssl_keyfile)))
        raise ConfigurationError(f"{flags}: {files} cannot be read: {error.strerror}") from error
    if args.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(args.ssl_ca_certs)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(f"--ssl-ca-certs {args.ssl_ca_certs} cannot be used: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
