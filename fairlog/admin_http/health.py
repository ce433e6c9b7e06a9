"""The node's state in a word and a sentence: the answer of `/health`."""

from __future__ import annotations

from fairlog.admin_http.view import Node, Phase

_SENTENCES = {
    Phase.RECOVERING: "the node replays its journals; it serves when it is done",
    Phase.SERVING: None,
    Phase.STOPPING: "the node finishes what is in flight",
}


_UNSPOKEN = "the disk has failed or is full; whoever may see the node finds the reason in /api/cluster"


def health(node: Node, *, to_strangers: bool = False) -> tuple[int, dict[str, str | None]]:
    """The HTTP status and the document. 200 only if clients can read *and* write.

    `to_strangers`: without names of files, which a reason may have.
    """
    if node.phase is Phase.SERVING and node.refusing_because is not None:
        return 503, {"status": "refusing writes", "reason": _UNSPOKEN if to_strangers else node.refusing_because}
    status = 200 if node.phase is Phase.SERVING else 503
    return status, {"status": node.phase.value, "reason": _SENTENCES[node.phase]}
