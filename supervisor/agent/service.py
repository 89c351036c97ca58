"""What the agent does with what a client says: who may have what done, and in which words they are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from guardrun import __version__
from guardrun.supervisor.agent.agent_context import AgentLoop, AgentState
from guardrun.supervisor.agent.clients import MAX_OPEN_ASKS, Client, Clients
from guardrun.supervisor.agent.history.history import Query
from guardrun.supervisor.agent.history.history_writer import HistoryWriter
from guardrun.supervisor.agent.jobs import Job, NotAllowedError
from guardrun.supervisor.agent.quarantine_keeper import is_trusted, user_name
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.framing import OversizeError
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.health.quarantine_rules import MAX_CLOCK_GAP_S, Isolation
from guardrun.supervisor.wire.agent_messages import (
    Answer,
    Ask,
    EndJob,
    Facts,
    Findings,
    FromAgent,
    Hello,
    Peer,
    Refused,
    RegisterJob,
    Subscribe,
    ToAgent,
    Welcome,
    agree,
)

MAX_EVIDENCE_BYTES = 8 * 1024
"""Of a job's isolation: all who connect to the agent are told what holds."""

MAX_OPEN_ASKS_OF_ONE_USER = 4
"""Of those that a disk has to be asked for, over all connections; but for root."""
HISTORY_COST_S = 0.05
"""Of the time that a user has of the agent: what thousands of rows take to read and to pack."""


class _RefusedError(Exception):
    """The sentence to refuse somebody with."""


class ServiceContext(AgentState, AgentLoop, Protocol):
    """What answering clients uses of the agent."""

    @property
    def node(self) -> str:
        """Its node's name."""

    @property
    def pid(self) -> int:
        """The agent's process."""

    @property
    def uid(self) -> int:
        """The agent's user."""

    @property
    def clients(self) -> Clients:
        """Who is connected."""

    @property
    def historian(self) -> HistoryWriter:
        """Reads the history, too."""

    @property
    def hands(self) -> BackgroundWriter:
        """Touches quarantine, which may take its time."""

    def register(self, said: RegisterJob, peer: Peer) -> None:
        """A supervisor says which job it watches. Raises NotAllowedError."""

    def end_job(self, said: EndJob, peer: Peer) -> Job:
        """A supervisor says that its job is over. Raises NotAllowedError."""


class Service:
    """Takes every message of every client, in the loop's thread."""

    def __init__(self, agent: ServiceContext, describe: Callable[[], dict[str, Any]]) -> None:
        """describe: the data of the answer to `status`."""
        self._agent, self._describe = agent, describe
        self._open_asks: dict[int, int] = {}
        """By user: also of connections that have gone, for the work goes on."""

    def handle_message(self, client: Client, message: ToAgent) -> None:
        """Do what is asked, or say why not."""
        number = message.id if isinstance(message, Ask) else -1
        try:
            if isinstance(message, Hello):
                self._hello(client, message)
            elif client.protocol == 0:
                raise _RefusedError("say Hello first")
            elif isinstance(message, Ask):
                self._ask(client, message)
            elif isinstance(message, Subscribe):
                self._subscribe(client, message)
            elif isinstance(message, RegisterJob):
                self._agent.register(message, client.peer)
            elif isinstance(message, EndJob):
                self._agent.end_job(message, client.peer)
        except (_RefusedError, NotAllowedError) as refused:
            log.info("refused", why=str(refused), uid=client.peer.uid, peer_pid=client.peer.pid)
            self._send(client, Refused(id=number, why=str(refused)))
            if client.protocol == 0:
                self._agent.clients.drop(client)

    def _send(self, client: Client, message: FromAgent) -> None:
        try:
            self._agent.clients.send(client, message)
        except OversizeError as error:
            number = message.id if isinstance(message, Answer) else -1
            self._agent.clients.send(client, Refused(id=number, why=f"{error}: ask for less"))

    def _hello(self, client: Client, hello: Hello) -> None:
        try:
            client.protocol = agree(hello.protocol, hello.oldest)
        except ValueError as error:
            raise _RefusedError(f"guardrun {__version__} here, {hello.version[:40]} there: {error}") from None
        client.program = hello.program[:40]
        agent = self._agent
        welcome = Welcome(
            protocol=client.protocol,
            version=__version__,
            node=agent.node,
            pid=agent.pid,
            quarantine=agent.quarantine_keeper.state,
        )
        self._send(client, welcome)

    def _subscribe(self, client: Client, wish: Subscribe) -> None:
        client.wants_facts, client.wants_findings = wish.facts, wish.findings
        readouts, findings = self._agent.latest.whole()
        at_s = self._agent.now_s
        if wish.facts:
            self._send(client, Facts(at_s=at_s, readouts=readouts, is_whole=True))
        if wish.findings:
            self._send(client, Findings(at_s=at_s, findings=findings, is_whole=True))

    # Questions ------------------------------------------------------------------------------------------------

    def _ask(self, client: Client, ask: Ask) -> None:
        verbs = {
            "status": self._status,
            "facts": self._facts,
            "jobs": self._jobs,
            "history": self._history,
            "isolate": self._isolate,
            "release": self._release,
            "note": self._note,
        }
        verb = verbs.get(ask.verb)
        if verb is None:
            raise _RefusedError(f"this agent knows no {ask.verb[:40]!r}; it knows {', '.join(verbs)}")
        _check_open(client.open_asks, MAX_OPEN_ASKS)
        if client.peer.uid != 0 and verb in (self._history, self._isolate, self._release):
            _check_open(self._open_asks.get(client.peer.uid, 0), MAX_OPEN_ASKS_OF_ONE_USER)
        answer = verb(client, ask)
        if answer is not None:
            self._send(client, Answer(id=ask.id, data=answer))

    def _answer_later(self, client: Client, ask: Ask) -> Callable[[dict[str, Any]], None]:
        """Counts a question as open until what this returns is called, in the loop."""
        self._count_open(client, 1)

        def answer(data: dict[str, Any]) -> None:
            self._count_open(client, -1)
            self._send(client, Answer(id=ask.id, data=data))

        return answer

    def _count_open(self, client: Client, change: int) -> None:
        client.open_asks += change
        uid = client.peer.uid
        self._open_asks[uid] = self._open_asks.get(uid, 0) + change
        if not self._open_asks[uid]:
            del self._open_asks[uid]

    def _status(self, client: Client, ask: Ask) -> dict[str, Any]:
        return self._describe()

    def _facts(self, client: Client, ask: Ask) -> dict[str, Any]:
        readouts, findings = self._agent.latest.whole()
        return {
            "at_s": self._agent.now_s,
            "readouts": [msgspec.to_builtins(readout) for readout in readouts],
            "findings": [msgspec.to_builtins(finding) for finding in findings],
        }

    def _jobs(self, client: Client, ask: Ask) -> dict[str, Any]:
        return {"jobs": [job.public(self._agent.now_s) for job in self._agent.jobs.all()]}

    def _history(self, client: Client, ask: Ask) -> None:
        given = ask.arguments
        query = Query(
            since_wall_s=_number(given, "since_wall_s"),
            until_wall_s=_number(given, "until_wall_s"),
            subject=_text(given, "subject"),
            name=_text(given, "name"),
            what=_text(given, "what"),
            limit=int(_number(given, "limit") or 1000),
            has_samples=given.get("has_samples") is not False,
        )

        answer = self._answer_later(client, ask)
        self._agent.clients.charge(client, HISTORY_COST_S)
        if not self._agent.historian.ask(query, lambda data: self._agent.post(answer, data)):
            self._count_open(client, -1)
            raise _RefusedError("the state folder does not answer")

    # Acts -----------------------------------------------------------------------------------------------------

    def _isolate(self, client: Client, ask: Ask) -> None:
        run_id = self._check_may_act(client, ask)
        agent, given, uid = self._agent, ask.arguments, client.peer.uid
        evidence = given.get("evidence")
        is_automatic = given.get("is_automatic") is True
        wall_s = agent.wall_s
        evidence_wall_s, until_wall_s = _number(given, "evidence_wall_s"), _number(given, "until_wall_s")
        if evidence_wall_s is not None and evidence_wall_s > wall_s + MAX_CLOCK_GAP_S:
            raise _RefusedError("the evidence is dated in the future: is the clock right?")
        if until_wall_s is not None and until_wall_s <= wall_s:
            raise _RefusedError("the isolation would be over already: its end lies in the past")
        is_root, trust_jobs = uid in (0, agent.uid), agent.config.node.trust_jobs
        if not is_root and len(encode_msgpack(evidence)) > MAX_EVIDENCE_BYTES:
            raise _RefusedError(f"the evidence is more than {MAX_EVIDENCE_BYTES} bytes")
        acted = self._acted(client, ask)

        def act() -> None:
            isolation = Isolation(
                cause=_text(given, "cause") or "person",
                who="guardrun" if is_automatic else user_name(uid),
                since_wall_s=wall_s,
                summary=_text(given, "reason"),
                evidence=evidence if isinstance(evidence, dict) else {},
                evidence_wall_s=None if evidence_wall_s is None else min(evidence_wall_s, wall_s),
                run_id=run_id,
                incident=_text(given, "incident"),
                until_wall_s=until_wall_s,
                uid=None if is_root else uid,
                is_for_owner_alone=not is_root and not is_trusted(uid, trust_jobs),
            )
            agent.quarantine_keeper.isolate(isolation, wall_s, acted)

        agent.hands.put(act)

    def _release(self, client: Client, ask: Ask) -> None:
        self._check_may_act(client, ask)
        agent, reason, uid = self._agent, _text(ask.arguments, "reason"), client.peer.uid
        only_uid = None if uid in (0, agent.uid) else uid
        is_overriding = ask.arguments.get("is_overriding") is True and uid in (0, agent.uid)

        acted = self._acted(client, ask)

        def act() -> None:
            agent.quarantine_keeper.release(
                user_name(uid), reason, agent.wall_s, acted, is_overriding=is_overriding, uid=only_uid
            )

        agent.hands.put(act)

    def _note(self, client: Client, ask: Ask) -> dict[str, Any]:
        if client.peer.uid not in (0, self._agent.uid):
            raise _RefusedError("only root may write into this node's history")
        given = ask.arguments
        data = given.get("data")
        subject, name = _text(given, "subject") or "node", _text(given, "name") or "note"
        self._agent.note("job", subject, name, _text(given, "text"), data if isinstance(data, dict) else {})
        return {}

    def _acted(self, client: Client, ask: Ask) -> Callable[[str], None]:
        """What answers an act, in the loop, with why it was not done."""
        answer = self._answer_later(client, ask)

        def acted(why: str) -> None:
            self._agent.quarantine_changed(self._agent.quarantine_keeper.state, client.peer.uid)
            answer({"quarantine": self._agent.quarantine_keeper.state, "why": why})

        return acted

    def _check_may_act(self, client: Client, ask: Ask) -> str:
        """The job that a user acts for; root, and the agent's own user, need none. Raises what refuses them."""
        agent, run_id = self._agent, _text(ask.arguments, "run_id")
        if client.peer.uid in (0, agent.uid):
            return run_id
        if not run_id:
            raise _RefusedError(f"only root may {ask.verb} this node, or the owner of a job that runs here, for it")
        agent.jobs.find(run_id, client.peer.uid, agent.uid)
        return run_id


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name, "")
    return value[:2000] if isinstance(value, str) else ""


def _number(given: dict[str, Any], name: str) -> float | None:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _check_open(questions: int, bound: int) -> None:
    """No more wait for the disk than leave it to others. Raises _RefusedError."""
    if questions >= bound:
        raise _RefusedError(f"{questions} questions of yours are still open: wait for their answers")
