"""The gRPC options that both ends must agree on: limits and keepalive.

A peer that hangs (stopped process, lost host) sends nothing, so only an unanswered ping shows it.  Three settings take
part: how often a ping is sent, how long its answer may take (``keepalive_timeout_ms`` and ``ping_timeout_ms``, whose
default of a minute would hide the former), and how often the other side tolerates pings before it hangs up.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_KEEPALIVE", "MAX_MESSAGE_BYTES", "Keepalive", "client_options", "server_options"]

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest message in either direction; larger things travel as files."""

_MAX_METADATA_BYTES = 64 * 1024
"""A long error message with its problems travels in headers."""

Options = list[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """Seconds; a hung peer is noticed after their sum."""

    interval: float = 5.0
    """Between two pings while nothing else arrives."""
    timeout: float = 2.0
    """From a ping to giving the connection up."""


DEFAULT_KEEPALIVE = Keepalive()


def _common(keepalive: Keepalive) -> Options:
    timeout = round(keepalive.timeout * 1000)
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", round(keepalive.interval * 1000)),
        ("grpc.keepalive_timeout_ms", timeout),
        ("grpc.http2.ping_timeout_ms", timeout),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_options(keepalive: Keepalive = DEFAULT_KEEPALIVE) -> Options:
    """Return the options of a channel; it reconnects within about two seconds of the peer's return."""
    return [
        *_common(keepalive),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(keepalive: Keepalive = DEFAULT_KEEPALIVE) -> Options:
    """Return the options of a server; a port that is taken is an error instead of being shared."""
    return [
        *_common(keepalive),
        ("grpc.http2.min_ping_interval_without_data_ms", round(keepalive.interval * 500)),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]
