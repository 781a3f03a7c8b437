"""Nomad's client library, with settings of the configuration and the environment."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from hermes_exec.backends.nomad.config import NomadConfig, address_of
from hermes_exec.errors import BackendUnavailable, ConfigError

if TYPE_CHECKING:
    from nomad import Nomad
    from requests import Session

NOT_INSTALLED = "the client of Nomad is not installed: pip install 'hermes-exec[nomad]'"


def open_session(connections: int) -> Session:
    """Return the connections that the clients of a cluster share."""
    try:
        from requests import Session
        from requests.adapters import HTTPAdapter
    except ImportError as error:
        raise BackendUnavailable(NOT_INSTALLED) from error
    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=connections))
    return session


def connect(config: NomadConfig, session: Session, token: str | None) -> Nomad:
    """Return a client of the cluster with this token; None for the environment's token.

    Raises:
        BackendUnavailable: If the client library is not installed.
        ConfigError: If a setting of the environment is invalid.
    """
    try:
        from nomad import Nomad
    except ImportError as error:
        raise BackendUnavailable(NOT_INSTALLED) from error
    settings = {"address": config.address, "namespace": config.namespace, "region": config.region, "token": token}
    options = {name: value for name, value in settings.items() if value is not None}
    client = Nomad(**options)  # which reads the environment too
    try:
        options["address"] = address_of(client.address or f"{client.get_uri()}:{client.port}")
    except ValueError as error:
        raise ConfigError(f"NOMAD_ADDR: {error}") from None
    options["token"] = _validate_token(client.token)
    # The client omits the namespace for some endpoints. A token of a namespace could then read no evaluation.
    if namespace := client.get_namespace():
        session.params = {"namespace": namespace}
    return Nomad(
        **options,
        timeout=config.api_timeout_s,
        verify=config.ca_cert or ssl.get_default_verify_paths().cafile or True,  # True: the CA file of `requests`
        cert=(config.client_cert, config.client_key) if config.client_cert else None,
        session=session,
    )


def _validate_token(text: str | None) -> str:
    token = (text or "").strip()
    if not token.isascii() or not token.isprintable():
        raise ConfigError("the token of Nomad, or NOMAD_TOKEN, has an invalid character")
    return token


def tls_context(config: NomadConfig, client: Nomad) -> ssl.SSLContext:
    """Return the TLS settings of a stream, which are the client's."""
    context = ssl.create_default_context(cafile=config.ca_cert)
    if client.cert:  # from the configuration, or from NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY
        context.load_cert_chain(*client.cert)
    return context
