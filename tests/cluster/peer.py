"""A shard's process for tests: a child that has the store open and does what it is told, a line of JSON each.

LMDB opens an environment once in a process, so what several do at a time takes children.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

SHARDS = 3
REPOSITORY = Path(__file__).resolve().parents[2]

_PROGRAM = """
import json, os, sys, time
from pathlib import Path
from uuid import UUID
import trio
from fairlog.cluster.embedded import EmbeddedStore

async def do(store, name, arguments):
    if name == "races":
        return [await outcome(store, "create_topic", {**arguments, "name": f"t{n}"}) for n in range(40)]
    if name == "many ids":
        return [(await store.allot_producer_ids(7)).start for _ in range(60)]
    if name == "half a change":
        transaction = store._environment.begin(write=True)
        for number in range(1000):
            transaction.put(b"topic/%016d" % number, b"torn")
        print("half", flush=True)
        time.sleep(60)
    if name == "forget_topic":
        return await store.forget_topic(UUID(arguments["topic_id"]))
    if name == "add config":
        return await store.alter_topic_configs(arguments.pop("topic"), lambda configs: {**configs, **arguments})
    if name == "set broker configs":
        return await store.alter_broker_configs(arguments["resource"], lambda _: arguments["configs"])
    if name == "set group configs":
        return await store.alter_group_configs(arguments["group"], lambda _: arguments["configs"])
    if name == "names":
        await store._take_in_others()
        return [[topic.name for topic in topics] for topics in (store.topics(), store.deleting())]
    if name == "features":
        await store._take_in_others()
        return store.features.epoch
    return await getattr(store, name)(**arguments)

async def outcome(store, name, arguments):
    try:
        return await do(store, name, arguments)
    except Exception as error:
        return type(error).__name__

async def main(store):
    print("ready", flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(await outcome(store, name, arguments), default=str), flush=True)

directory, shard, shards = sys.argv[1:]
store = EmbeddedStore.open(Path(directory), node_id=1, group_journal_count=16, shards=int(shards), shard=int(shard))
trio.run(main, store)
store.close()
"""


class Peer:
    """The process of another shard; its store is open when this returns."""

    def __init__(self, directory: Path, shard: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(directory), str(shard), str(SHARDS)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer_line() == "ready"

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=30)

    def begin(self, call: str, /, **arguments: object) -> None:
        """Let it do something, and do not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, arguments]) + "\n")
        self._process.stdin.flush()

    def answer_line(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def do(self, call: str, /, **arguments: object) -> object:
        """What a call answered; the name of what it raised."""
        self.begin(call, **arguments)
        return json.loads(self.answer_line())

    def kill(self) -> None:
        """End it in the midst of what it does, by SIGKILL."""
        self._process.kill()
        self._process.wait()
