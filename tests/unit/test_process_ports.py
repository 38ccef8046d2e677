"""Port leases: nobody else gets the port, the server does."""

from __future__ import annotations

import socket

import pytest

from autotuner_worker.process import port_is_free, reserve_port


def test_server_can_take_over_a_held_lease() -> None:
    with reserve_port() as lease, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", lease.port))
        server.listen()
        with socket.create_connection(("127.0.0.1", lease.port)):
            server.accept()[0].close()
        assert not port_is_free("127.0.0.1", lease.port)
    assert port_is_free("127.0.0.1", lease.port)


def test_leases_differ_from_each_other_and_from_ephemeral_ports() -> None:
    leases = [reserve_port() for _ in range(50)]
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(50)]
    ports = [lease.port for lease in leases] + [server.getsockname()[1] for server in others]
    assert len(set(ports)) == 100
    for lease in leases:
        lease.close()
    for server in others:
        server.close()


def test_plain_server_is_kept_off_until_closed() -> None:
    lease = reserve_port()
    with socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            server.bind(("127.0.0.1", lease.port))
        lease.close()
        lease.close()
        server.bind(("127.0.0.1", lease.port))


def test_no_port_on_an_address_that_is_not_ours() -> None:
    with pytest.raises(OSError, match="assign"):
        reserve_port("192.0.2.1")
