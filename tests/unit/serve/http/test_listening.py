"""The socket of a server: small writes do not wait for each other; a taken port is told."""

from __future__ import annotations

import socket

import pytest

from shardwise.errors import BadInput
from shardwise.serve.http.options import ServerOptions
from shardwise.serve.http.run import _listen, ensure_listens


def test_connections_send_small_packets_at_once() -> None:
    with (
        _listen(ServerOptions(port=0)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_taken_port_is_refused_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = ServerOptions(port=other.getsockname()[1])
        with pytest.raises(BadInput, match=r"cannot listen on 127\.0\.0\.1 port .*Port 0 takes"):
            ensure_listens(taken)
    ensure_listens(taken)  # free again
    ensure_listens(taken)


def test_an_address_of_another_machine_is_refused_as_such() -> None:
    with pytest.raises(
        BadInput, match=r"192\.0\.2\.1 port 8000: .*\. 127\.0\.0\.1 is this machine"
    ):
        ensure_listens(ServerOptions(host="192.0.2.1", port=8000))
