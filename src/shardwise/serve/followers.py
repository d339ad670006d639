"""One engine over several processes: process 0 leads, the others follow.

Every process has some of the devices. The leader has the scheduler and tells each call of its
`DevicePrograms` to the followers before it issues the call itself: a name, numbers and small
arrays. A follower waits for the next call and issues it on its own devices, so that all processes
run the same programs in the same order.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import jax
import msgspec
import numpy as np

from shardwise.errors import BadInput
from shardwise.runtime.devices import distributed_state
from shardwise.runtime.processes.heartbeat import exit_after_peer, is_lost_connection
from shardwise.serve.device_programs import DevicePrograms

ADVICE = "Start all of them again."
PATIENCE_S = 300  # for all processes to connect, which they do before they load anything
LENGTH_BYTES = 8  # before each message
GOODBYE = b""  # message with which the leader ends the followers
_ADDRESS = "shardwise/serve/leader"  # key under which followers find host, port and secret
_ARRAY = 1  # code of arrays in messages


class Leader:
    """The followers of this process; without any if it is the only one.

    Args:
        followers: connection and index of each.
    """

    def __init__(self, followers: Sequence[tuple[socket.socket, int]]) -> None:
        self._followers = followers
        self._ending = False
        for connection, process in followers:
            threading.Thread(
                target=self._watch, args=(connection, process), name="follower", daemon=True
            ).start()

    def lead(self, models: Sequence[DevicePrograms]) -> None:
        """Tell the followers of all calls from here on.

        Args:
            models: programs of the model, and of the one that drafts.
        """
        for index, programs in enumerate(models):
            if self._followers:
                programs.tell = partial(self._tell, index)

    def end(self) -> None:
        """Tell the followers that there are no more calls."""
        self._ending = True
        self._send(GOODBYE)

    def close(self) -> None:
        """Close the connections; a follower that was not told of the end takes it as a failure."""
        self._ending = True
        for connection, _ in self._followers:
            _close(connection)

    def _tell(self, model: int, call: str, arguments: Sequence[Any]) -> None:
        self._send(encode(model, call, arguments))

    def _send(self, message: bytes) -> None:
        framed = len(message).to_bytes(LENGTH_BYTES, "little") + message
        for connection, process in self._followers:
            try:
                connection.sendall(framed)
            except OSError as error:
                self._lost(process, error)

    def _watch(self, connection: socket.socket, process: int) -> None:
        """Wait for the end of a follower, which sends nothing."""
        with contextlib.suppress(OSError):
            connection.recv(1)
        self._lost(process, "its connection has closed")

    def _lost(self, process: int, reason: object) -> None:
        if not self._ending:
            exit_after_peer(f"process {process}: {reason}", ADVICE)


class Follower:
    """The connection to the leader.

    Args:
        connection: to it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream: BinaryIO = connection.makefile("rb")

    def follow(self, models: Sequence[DevicePrograms]) -> None:
        """Issue the calls of the leader until there are no more.

        Signals do not end a follower: the leader may still have requests to finish.

        Args:
            models: as in `Leader.lead`.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _on_signal)
        while message := self._receive():
            model, call, arguments = decode(message)
            try:
                models[model].perform(call, *arguments)
            except (jax.errors.JaxRuntimeError, ValueError) as error:  # as in training
                if is_lost_connection(error):
                    exit_after_peer(error, ADVICE)
                raise

    def close(self) -> None:
        """Close the connection, by which the leader knows that this process ends."""
        _close(self._connection)

    def _receive(self) -> bytes:
        try:
            length = self._read(LENGTH_BYTES)
            return self._read(int.from_bytes(length, "little"))
        except OSError as error:
            exit_after_peer(f"process 0: {error}", ADVICE)

    def _read(self, n: int) -> bytes:
        received = self._stream.read(n)
        if len(received) < n:
            raise ConnectionError("its connection has closed")
        return received


@contextmanager
def leading() -> Iterator[Leader]:
    """The leader's side of a run whose processes `rendezvous.join` has joined.

    Raises:
        BadInput: not all processes connect.
    """
    state = distributed_state()
    followers = []
    if state.num_processes > 1:
        followers = _accept(state.client, state.coordinator_address, state.num_processes)
    leader = Leader(followers)
    try:
        yield leader
        leader.end()
    finally:
        leader.close()


@contextmanager
def following() -> Iterator[Follower]:
    """The side of another process of that run.

    Raises:
        BadInput: process 0 cannot be reached.
    """
    state = distributed_state()
    follower = Follower(_connect(state.client, state.process_id))
    try:
        yield follower
    finally:
        follower.close()


def _accept(client: Any, coordinator: str, n_processes: int) -> list[tuple[socket.socket, int]]:
    """Wait for all followers."""
    host = coordinator.rpartition(":")[0]
    secret = secrets.token_bytes(32)
    followers: list[tuple[socket.socket, int]] = []
    with socket.create_server(("", 0), backlog=n_processes) as listener:
        port = listener.getsockname()[1]
        client.key_value_set(_ADDRESS, f"{host} {port} {secret.hex()}")
        listener.settimeout(PATIENCE_S)
        while len(followers) < n_processes - 1:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                raise BadInput(
                    f"{len(followers)} of {n_processes - 1} other processes have connected to "
                    f"{host}:{port} within {PATIENCE_S} s."
                ) from None
            process = _greeted(connection, secret)
            if process is None:
                connection.close()
            else:
                followers.append((connection, process))
    return followers


def _greeted(connection: socket.socket, secret: bytes) -> int | None:
    """Index of the follower that has connected; None if it does not know the secret."""
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size = len(secret) + LENGTH_BYTES
    try:
        greeting = connection.recv(size, socket.MSG_WAITALL)
    except OSError:
        return None
    if not hmac.compare_digest(greeting[: len(secret)], secret) or len(greeting) != size:
        return None
    connection.settimeout(None)
    return int.from_bytes(greeting[len(secret) :], "little")


def _connect(client: Any, process: int) -> socket.socket:
    """Connect to the leader."""
    found = client.blocking_key_value_get(_ADDRESS, PATIENCE_S * 1000)
    host, port, secret = found.split()
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S)
    except OSError as error:
        raise BadInput(
            f"process {process} cannot connect to process 0 at {host}:{port}: {error}. The hosts "
            "have to reach each other at all ports."
        ) from None
    connection.settimeout(None)
    connection.sendall(bytes.fromhex(secret) + process.to_bytes(LENGTH_BYTES, "little"))
    return connection


def _close(connection: socket.socket) -> None:
    """Close a connection, from which another thread may be reading."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _on_signal(number: int, frame: Any) -> None:
    name = signal.Signals(number).name
    sys.stderr.write(f"shardwise: {name}: this process ends with process 0.\n")


def encode(model: int, call: str, arguments: Sequence[Any]) -> bytes:
    """A call as a message."""
    return msgspec.msgpack.encode((model, call, arguments), enc_hook=_encode_array)


def decode(message: bytes) -> tuple[int, str, list[Any]]:
    """The call in a message; tuples have become lists."""
    model, call, arguments = msgspec.msgpack.decode(message, ext_hook=_decode_array)
    return model, call, arguments


def _encode_array(array: Any) -> msgspec.msgpack.Ext:
    parts = (array.dtype.str, array.shape, np.ascontiguousarray(array).data)
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(parts))


def _decode_array(code: int, data: memoryview) -> Any:
    dtype, shape, numbers = msgspec.msgpack.decode(data)
    return np.frombuffer(numbers, dtype).reshape(shape)
