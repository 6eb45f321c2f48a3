"""Links between engines: what :class:`spark_bridge.link_service.LinkService` answers, over Arrow Flight.

They are inside TLS. Each engine makes a certificate and a secret when it starts. Both come to consumers with its
address, from daemon to daemon, over requests in which both sides are known: so a consumer accepts that certificate
only, and a server only those who know the secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa
from pyarrow import flight

from sbon.engine_messages import FlightAddress
from sbon.errors import RemoteProtocolError, SbonError, UnavailableError
from sbon.frames import decode_body
from spark_bridge.link_credentials import TLS_NAME, to_pem
from spark_bridge.link_service import Acknowledgement, LinkService, PullRequest

_PULL = "pull"
_RELAY = "relay"
_ACKNOWLEDGE = "acknowledge"
#: A host that is cut off closes no connection. A pull says something each second, so silence means that it has gone.
_KEEPALIVE = [("grpc.keepalive_time_ms", 5000), ("grpc.keepalive_timeout_ms", 5000)]
#: No request to a relay takes longer.
_RELAY_CALL_S = 20.0

_PULLS = msgspec.msgpack.Decoder(PullRequest)
_ACKNOWLEDGEMENTS = msgspec.msgpack.Decoder(Acknowledgement)


class LinkServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the links of one engine to others."""

    def __init__(self, bind_host: str, service: LinkService) -> None:
        pair = (service.credentials.certificate_pem, service.credentials.key_pem)
        super().__init__(_location(bind_host, 0), tls_certificates=[pair])
        self._bind_host = bind_host
        self._service = service

    @property
    def address(self) -> FlightAddress:
        """What consumers need to know."""
        credentials = self._service.credentials
        return FlightAddress(self._bind_host, self.port, credentials.certificate, credentials.secret)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        body = action.body.to_pybytes()
        try:
            if action.type == _PULL:
                return _results(self._service.pull(decode_body(_PULLS, body)))
            if action.type == _RELAY:
                return _results(self._service.relay(decode_body(_PULLS, body)))
            if action.type == _ACKNOWLEDGE:
                self._service.acknowledge(decode_body(_ACKNOWLEDGEMENTS, body))
                return iter(())
        except (SbonError, RemoteProtocolError) as error:
            raise _flight_error(error) from None
        raise flight.FlightServerError(f"unknown request {action.type!r}")


def _results(segments: Iterable[bytes]) -> Iterator[flight.Result]:
    try:
        for data in segments:
            yield flight.Result(pa.py_buffer(data))
    except SbonError as error:
        raise _flight_error(error) from None


def _flight_error(error: Exception) -> flight.FlightError:
    kind = flight.FlightUnavailableError if isinstance(error, UnavailableError) else flight.FlightServerError
    return kind(str(error))


def _location(host: str, port: int) -> str:
    return f"grpc+tls://[{host}]:{port}" if ":" in host else f"grpc+tls://{host}:{port}"


def connect(address: FlightAddress) -> flight.FlightClient:
    """A client of the engine at ``address``, and of no other that may listen there. ValueError if its certificate is
    none."""
    return flight.connect(
        _location(address.host, address.port),
        tls_root_certs=to_pem(address.certificate),
        override_hostname=TLS_NAME,
        generic_options=_KEEPALIVE,
    )


class FlightLink:
    """The :class:`spark_bridge.link_service.Link` to the engine at ``address``. As a context."""

    def __init__(self, address: FlightAddress) -> None:
        with _as_unavailable():
            self._client = connect(address)

    def __enter__(self) -> FlightLink:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def pull(self, request: PullRequest) -> Iterator[bytes]:
        """Without a deadline: a segment may take long on a slow path."""
        return self._ask(_PULL, request)

    def relay(self, request: PullRequest) -> Iterator[bytes]:
        """With one: whoever relays is not needed."""
        return self._ask(_RELAY, request, _RELAY_CALL_S)

    def acknowledge(self, request: Acknowledgement) -> None:
        """Returns when it has heard so."""
        list(self._ask(_ACKNOWLEDGE, request))

    def _ask(self, kind: str, request: PullRequest | Acknowledgement, timeout_s: float = -1.0) -> Iterator[bytes]:
        action = flight.Action(kind, msgspec.msgpack.encode(request))
        with _as_unavailable():
            for result in self._client.do_action(action, flight.FlightCallOptions(timeout=timeout_s)):
                yield result.body.to_pybytes()


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (flight.FlightError, pa.ArrowException, ValueError) as error:
        raise UnavailableError(str(error).split(". Detail:")[0].split("gRPC client debug")[0].strip()) from None
