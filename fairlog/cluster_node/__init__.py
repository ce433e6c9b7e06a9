"""A node of several machines: its shards' journals are kept on a replicated log, and others have copies of them.

node ──▶ engine, metadata ──▶ `copies`: one `shard_copy` for each shard that this node keeps ──▶ replica or owner
         `ports`: where clients and other nodes reach each of them
         `placing`: which nodes keep which shards
"""
