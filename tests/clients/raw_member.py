"""A member of a group that says only what a test wants said: it parks, falls silent, and hangs up."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tests.clients.raw_client import RawClient

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse
    from kafka.protocol.consumer import (
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )

NOTHING_WANTED = b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"
"""A consumer's subscription to no topic."""

UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
FENCED_INSTANCE_ID = 82


class RawMember(RawClient):
    """One connection of a member; `member_id` is what it was told last."""

    member_id = ""
    generation = -1

    def send_join(self, group: str, *, session_ms: int = 2_000, instance: str | None = None) -> None:
        """In version 5, which gives an id at once to who says none, in version 3 of members that are not static."""
        version = 3 if instance is None and not self.member_id else 5
        request = JoinGroupRequest[version](
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=NOTHING_WANTED)],
        )
        self._version = version
        self.send(request)

    def receive_join(self) -> Any:
        """The answer to `send_join`."""
        answer = self.receive(JoinGroupResponse, self._version)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self, group: str, *, instance: str | None = None) -> Any:
        self.send_join(group, instance=instance)
        return self.receive_join()

    def sync(self, group: str, assignments: Mapping[str, bytes]) -> Any:
        """The whole answer: error_code, assignment."""
        request = SyncGroupRequest[3](
            group_id=group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in assignments.items()
            ],
        )
        return self.call(request, SyncGroupResponse)

    def heartbeat(self, group: str) -> int:
        """The error code."""
        request = HeartbeatRequest[3](
            group_id=group, generation_id=self.generation, member_id=self.member_id, group_instance_id=None
        )
        return self.call(request, HeartbeatResponse).error_code

    def leave(self, group: str) -> int:
        """The error code, of the member."""
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=None)
        answer = self.call(LeaveGroupRequest[3](group_id=group, members=[identity]), LeaveGroupResponse)
        return answer.error_code or answer.members[0].error_code

    def delete_group(self, group: str) -> int:
        """The error code of DeleteGroups."""
        return self.call(DeleteGroupsRequest[1](groups_names=[group]), DeleteGroupsResponse).results[0].error_code
