"""Small writes of an answer do not wait for each other."""

from __future__ import annotations

import socket

from shardwise.serve.http.options import ServerOptions
from shardwise.serve.http.run import _listen


def test_connections_send_small_packets_at_once() -> None:
    with (
        _listen(ServerOptions(port=0)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
