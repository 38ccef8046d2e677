"""The worker service over a real socket, with a fake host behind it."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotuner.core.workers import Delivery, EngineSummary, WorkerInfo, WorkerState
from autotuner.errors import (
    AutotunerError,
    EnvironmentFault,
    InputError,
    InternalError,
    ProtocolMismatch,
    SessionUnknown,
    StaleLease,
    StorageFault,
)
from autotuner.rpc.server import RpcServer
from autotuner.rpc.worker_service import WorkerService
from autotuner.v1 import worker_pb2 as pb
from autotuner.v1.worker_pb2_grpc import WorkerServiceStub
from autotuner.wire import convert
from autotuner.wire.channel import MAX_MESSAGE_BYTES, Keepalive, client_options
from autotuner.wire.status import error_of_call
from tests.fakes.worker_host import FakeHost
from tests.unit.test_wire import ASSIGNMENT, OUTCOME

pytestmark = pytest.mark.asyncio(loop_scope="session")

INFO = WorkerInfo(worker_id="w", instance_id="i", engine=EngineSummary(kind="simulated"))
SECONDS = 5.0


@asynccontextmanager
async def serving(host: FakeHost, address: str, **options: Any) -> AsyncIterator[tuple[Any, RpcServer]]:
    server = RpcServer(address, [WorkerService(host)], **options)
    bound = await server.start()
    async with grpc.aio.insecure_channel(bound, options=client_options()) as channel:
        yield WorkerServiceStub(channel), server  # type: ignore[no-untyped-call]
    await server.stop(0.2)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s"


async def _failure(call: Any) -> tuple[grpc.StatusCode, AutotunerError]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), error_of_call(caught.value)


async def test_a_worker_registers_gets_work_and_delivers(address: str) -> None:
    host = FakeHost(epoch=7)
    host.assignments.append(ASSIGNMENT)
    async with serving(host, address) as (stub, _):
        session = convert.session_from_message(await stub.Register(convert.info_to_message(INFO), timeout=SECONDS))
        assert (session.epoch, session.protocol_version) == (7, "1")
        state = WorkerState(session_id=session.session_id, worker_id="w")
        desired = convert.desired_from_message(await stub.Sync(convert.state_to_message(state), timeout=SECONDS))
        assert desired.assignment == ASSIGNMENT
        delivery = convert.delivery_to_message(Delivery(session_id="x", worker_id="w", outcome=OUTCOME))
        receipts = [
            convert.receipt_from_message(await stub.Complete(delivery, timeout=SECONDS)).first for _ in range(2)
        ]
        assert receipts == [True, False]
    assert host.infos == [INFO]
    assert list(host.outcomes.values()) == [OUTCOME]


async def test_a_worker_of_another_protocol_is_refused_before_the_host_sees_it(address: str) -> None:
    host = FakeHost()
    async with serving(host, address) as (stub, _):
        request = convert.info_to_message(INFO)
        del request.protocol_versions[:]
        request.protocol_versions.append("99")
        code, error = await _failure(stub.Register(request, timeout=SECONDS))
    assert (code, type(error)) == (grpc.StatusCode.FAILED_PRECONDITION, ProtocolMismatch)
    assert "99" in str(error)
    assert host.infos == []


@pytest.mark.parametrize(
    ("raised", "code", "kind"),
    [
        (StaleLease("old"), grpc.StatusCode.FAILED_PRECONDITION, StaleLease),
        (SessionUnknown("who"), grpc.StatusCode.NOT_FOUND, SessionUnknown),
        (StorageFault("disk full"), grpc.StatusCode.UNAVAILABLE, StorageFault),
        (InternalError("broken"), grpc.StatusCode.INTERNAL, InternalError),
        (ZeroDivisionError("secret"), grpc.StatusCode.INTERNAL, InternalError),
    ],
)
async def test_the_hosts_errors_arrive_as_themselves(
    address: str, raised: Exception, code: grpc.StatusCode, kind: type
) -> None:
    host = FakeHost()
    host.failures.append(raised)
    async with serving(host, address) as (stub, _):
        found, error = await _failure(stub.Register(convert.info_to_message(INFO), timeout=SECONDS))
        assert (found, type(error)) == (code, kind)
        assert "secret" not in str(error)
        await stub.Register(convert.info_to_message(INFO), timeout=SECONDS)


async def test_an_invalid_message_names_its_field(address: str) -> None:
    async with serving(FakeHost(), address) as (stub, _):
        code, error = await _failure(stub.Sync(pb.SyncRequest(session_id="s"), timeout=SECONDS))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, InputError)
    assert error.problems[0].field == "state.worker_id"


async def test_a_long_poll_ends_before_the_deadline_of_its_caller(address: str) -> None:
    host = FakeHost()
    async with serving(host, address) as (stub, _):
        session = convert.session_from_message(await stub.Register(convert.info_to_message(INFO), timeout=SECONDS))
        state = WorkerState(session_id=session.session_id, worker_id="w", wait_seconds=1e9)
        await stub.Sync(convert.state_to_message(state), timeout=0.7)
    assert host.states[-1].wait_seconds < 0.21


async def test_stopping_releases_the_long_polls_at_once(address: str) -> None:
    host = FakeHost()
    async with serving(host, address) as (stub, server):
        session = convert.session_from_message(await stub.Register(convert.info_to_message(INFO), timeout=SECONDS))
        state = WorkerState(session_id=session.session_id, worker_id="w", wait_seconds=30)
        poll = asyncio.ensure_future(stub.Sync(convert.state_to_message(state), timeout=40))
        await host.polling.wait()
        before = asyncio.get_running_loop().time()
        await server.stop(2.0)
        code, error = await _failure(poll)
        assert (code, type(error)) == (grpc.StatusCode.UNAVAILABLE, EnvironmentFault)
        assert asyncio.get_running_loop().time() - before < 2.0


async def test_a_caller_that_leaves_a_long_poll_harms_nobody(address: str) -> None:
    host = FakeHost()
    async with serving(host, address) as (stub, _):
        session = convert.session_from_message(await stub.Register(convert.info_to_message(INFO), timeout=SECONDS))
        state = WorkerState(session_id=session.session_id, worker_id="w", wait_seconds=30)
        poll = stub.Sync(convert.state_to_message(state), timeout=40)
        await host.polling.wait()
        poll.cancel()
        await stub.Register(convert.info_to_message(INFO), timeout=SECONDS)


async def test_too_many_calls_and_too_large_ones_are_refused(address: str) -> None:
    host = FakeHost()
    async with serving(host, address, concurrent_calls=1) as (stub, _):
        session = convert.session_from_message(await stub.Register(convert.info_to_message(INFO), timeout=SECONDS))
        state = convert.state_to_message(WorkerState(session_id=session.session_id, worker_id="w", wait_seconds=30))
        poll = stub.Sync(state, timeout=40)
        await host.polling.wait()
        code, _ = await _failure(stub.Register(convert.info_to_message(INFO), timeout=SECONDS))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        host.changed.set()
        await poll
        large = pb.RegisterRequest(worker_id="w", host="x" * (MAX_MESSAGE_BYTES + 1))
        code, _ = await _failure(stub.Register(large, timeout=SECONDS))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_socket_is_for_its_user_alone_unless_a_group_is_let_in(tmp_path: Path) -> None:
    for mode in (0o600, 0o660):
        async with serving(FakeHost(), f"unix:{tmp_path}/s", socket_mode=mode):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode
        assert not (tmp_path / "s").exists()


async def test_a_dead_socket_is_replaced_and_a_living_one_is_not(address: str) -> None:
    path = Path(address.removeprefix("unix:"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(FakeHost(), address) as (stub, _):
        with pytest.raises(EnvironmentFault, match="another server listens"):
            await RpcServer(address, [WorkerService(FakeHost())]).start()
        await stub.Register(convert.info_to_message(INFO), timeout=SECONDS)


async def test_a_file_in_the_place_of_the_socket_is_kept(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(EnvironmentFault, match="not a socket"):
        await RpcServer(f"unix:{tmp_path}/s", []).start()
    assert (tmp_path / "s").read_text() == "precious"


async def test_a_missing_folder_and_a_port_in_use_are_faults(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="give another address"):
        await RpcServer(f"unix:{tmp_path}/missing/s", []).start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EnvironmentFault, match="in use"):
            await RpcServer(f"127.0.0.1:{taken.getsockname()[1]}", []).start()


async def test_port_0_gives_the_real_port() -> None:
    async with serving(FakeHost(), "127.0.0.1:0") as (stub, _):
        await stub.Register(convert.info_to_message(INFO), timeout=SECONDS)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "0.0.0.0:1",
        "10.1.2.3:1",
        "example.org:1",
        "127.0.0.1",
        "127.0.0.1:99999",
        "unix:relative",
        "unix:/" + "x" * 200,
    ],
)
async def test_an_address_that_cannot_be_listened_on_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="address"):
        RpcServer(address, [])


async def test_a_worker_notices_a_peer_that_hangs(tmp_path: Path) -> None:
    """A socket that accepts and then says nothing, like a stopped process."""
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(f"{tmp_path}/s")
        hung.listen()
        keepalive = Keepalive(interval=0.2, timeout=0.2)
        async with serving(FakeHost(), f"unix:{tmp_path}/real", keepalive=keepalive):
            frozen = Proxy(f"{tmp_path}/real")
            front = await asyncio.start_unix_server(frozen.carry, f"{tmp_path}/front")
            async with grpc.aio.insecure_channel(
                f"unix:{tmp_path}/front", options=client_options(keepalive)
            ) as channel:
                stub: Any = WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
                await stub.Register(convert.info_to_message(INFO), timeout=SECONDS)
                frozen.freeze()
                code, _ = await _failure(stub.Register(convert.info_to_message(INFO), timeout=30))
                assert code is grpc.StatusCode.UNAVAILABLE
            front.close()
            await frozen.close()


class Proxy:
    """Carries bytes both ways until it is frozen."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._pumps: set[asyncio.Task[None]] = set()

    def freeze(self) -> None:
        self._flowing.clear()

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_unix_connection(self._target)
        for source, target in ((reader, back_writer), (back_reader, writer)):
            self._pumps.add(asyncio.ensure_future(self._pump(source, target)))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._flowing.wait()
                target.write(data)
            await self._flowing.wait()
        finally:
            target.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[grpc.aio.Channel]:
    address = f"unix:{tmp_path_factory.mktemp('rpc')}/s"
    server = RpcServer(address, [WorkerService(FakeHost())])
    await server.start()
    async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
        yield channel
    await server.stop(0.2)


MESSAGES = {"Register": pb.RegisterRequest, "Sync": pb.SyncRequest, "Complete": pb.CompleteRequest}
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
}
TYPED = st.one_of(
    st.builds(
        pb.RegisterRequest,
        worker_id=st.text(max_size=3),
        instance_id=st.text(max_size=3),
        protocol_versions=st.lists(st.sampled_from(["1", "2"]), max_size=2),
        engine=st.builds(pb.EngineSummary, kind=st.text(max_size=3)),
        resident_engines=st.integers(-5, 5),
    ),
    st.builds(
        pb.SyncRequest,
        session_id=st.text(max_size=3),
        worker_id=st.text(max_size=3),
        wait_seconds=st.floats(),
        held=st.lists(st.builds(pb.Held, study_id=st.text(max_size=3), trial_id=st.integers(-3, 3)), max_size=2),
    ),
    st.builds(
        pb.CompleteRequest,
        session_id=st.text(max_size=3),
        worker_id=st.just("w"),
        outcome=st.builds(
            pb.Outcome,
            study_id=st.sampled_from(["", "s"]),
            trial_id=st.integers(-3, 3),
            outcome=st.sampled_from(["", "complete", "crashed", "party"]),
            engine_seconds=st.floats(),
        ),
    ),
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(sorted(MESSAGES)),
    data=st.binary(max_size=60) | TYPED.map(lambda message: message.SerializeToString()),
)
async def test_whatever_arrives_gets_a_status_and_the_server_lives(
    fuzzed: grpc.aio.Channel, method: str, data: bytes
) -> None:
    call: Any = fuzzed.unary_unary(f"/autotuner.v1.WorkerService/{method}", None, None)(data, timeout=SECONDS)
    assert await call.code() in ANSWERS


async def test_an_unknown_method_is_unimplemented(fuzzed: grpc.aio.Channel) -> None:
    call: Any = fuzzed.unary_unary("/autotuner.v1.WorkerService/Explode", None, None)(b"", timeout=SECONDS)
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
