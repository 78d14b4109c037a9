"""Prefix blocks (docs/engine.md section 3): segments by definition, and the memory of one instance."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass
class Paths:
    """For one engine block size: the segments of every row's path, root first."""

    start: list[int] = field(default_factory=list)  # first block of each segment
    end: list[int] = field(default_factory=list)  # one past its last block
    of: list[list[int]] = field(default_factory=list)  # by row


def find_paths(trace: Any, block: int) -> Paths:
    """Segments as defined: neighbours with the same users that no user's prompt or hit limit parts."""
    paths = Paths(of=[[] for _ in range(len(trace))])
    if trace.block_size <= 0 or not len(trace.block_id):
        return paths
    keys = [block_keys(trace, row, block) for row in range(len(trace))]
    users: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row, own in enumerate(keys):
        for key in own:
            users[key].add(row)
    segment: dict[tuple[int, int], int] = {}
    for row, own in enumerate(keys):
        for j, key in enumerate(own):
            if key not in segment:
                if j > 0 and users[own[j - 1]] == users[key] and not parted(trace, users[key], j, block):
                    segment[key] = segment[own[j - 1]]
                    paths.end[segment[key]] = j + 1
                else:
                    segment[key] = len(paths.start)
                    paths.start.append(j)
                    paths.end.append(j + 1)
            if not paths.of[row] or paths.of[row][-1] != segment[key]:
                paths.of[row].append(segment[key])
    return paths


def block_keys(trace: Any, row: int, block: int) -> list[tuple[int, int]]:
    ids = trace.block_id[trace.block_off[row] : trace.block_off[row + 1]]
    tokens = max(1, int(trace.input_tokens[row])) + max(1, int(trace.output_tokens[row]))
    keys = []
    j = 0
    while (j + 1) * block <= tokens and ((j + 1) * block - 1) // trace.block_size < len(ids):
        keys.append((int(ids[((j + 1) * block - 1) // trace.block_size]), j))
        j += 1
    return keys


def parted(trace: Any, rows: set[int], j: int, block: int) -> bool:
    """Does a user's hit limit or prompt end fall between block j - 1 and block j?"""
    for row in rows:
        prompt = max(1, int(trace.input_tokens[row]))
        if j in ((prompt - 1) // block, prompt // block):
            return True
    return False


class Memory:
    """KV blocks of one instance: private ones of requests, and segments with locks and an LRU list."""

    def __init__(self, capacity: int, block: int, paths: Paths, everywhere: dict[int, int] | None, host_blocks: int) -> None:
        self.capacity, self.block, self.paths = capacity, block, paths
        self.private = 0
        self.held: dict[int, int] = defaultdict(int)
        self.locks: dict[int, int] = defaultdict(int)
        self.lru: list[int] = []  # unlocked segments with blocks, next to go first
        self.everywhere = everywhere  # option infinite_cache: held, for all instances
        self.host_blocks = host_blocks
        self.host: dict[int, int] = {}  # host tier: blocks by segment, least recently used first

    def clear(self) -> None:
        self.private = 0
        self.held.clear()
        self.locks.clear()
        self.lru.clear()
        self.host.clear()

    def cached(self) -> dict[int, int]:
        return self.held if self.everywhere is None else self.everywhere

    def evictable(self) -> int:
        return sum(self.held[s] for s in self.lru)

    def used(self) -> int:
        return self.private + sum(self.held.values())

    def available(self) -> int:
        return self.capacity - self.used() + self.evictable()

    def check(self) -> None:
        """The laws of memory."""
        assert self.private >= 0 and 0 <= self.used() <= self.capacity, (self.private, self.used(), self.capacity)
        assert len(set(self.lru)) == len(self.lru)
        for s, held in self.held.items():
            assert 0 <= held <= self.paths.end[s] - self.paths.start[s]
            assert (s in self.lru) == (held > 0 and self.locks[s] == 0), (s, held, self.locks[s])

    def match(self, path: list[int], target: int) -> tuple[int, list[int]]:
        """Blocks that need not be computed, and the segments they are in."""
        limit = (target - 1) // self.block
        hit, segments = 0, []
        for s in path:
            own = min(limit, self.paths.end[s]) - self.paths.start[s]
            take = min(self.cached()[s] if self.everywhere is None else self.everywhere.get(s, 0), own)
            if take <= 0:
                break
            hit += take
            segments.append(s)
            if take < self.paths.end[s] - self.paths.start[s]:
                break
        return hit, segments

    def match_host(self, path: list[int], target: int, hit: int) -> int:
        """Blocks right after the GPU hit that the host tier holds."""
        limit = (target - 1) // self.block
        more = 0
        for s in path:
            if self.paths.end[s] <= hit + more:
                continue
            reach = min(limit, self.paths.start[s] + self.host.get(s, 0))
            if reach <= hit + more:
                break
            more = reach - hit
            if reach < self.paths.end[s]:
                break
        return more

    def would_lock(self, segments: list[int]) -> int:
        """Evictable blocks of these segments."""
        return sum(self.held[s] for s in segments if s in self.lru)

    def lock(self, s: int) -> None:
        self.locks[s] += 1
        if s in self.lru:
            self.lru.remove(s)

    def unlock(self, s: int) -> None:
        self.locks[s] -= 1
        if self.locks[s] == 0 and self.held[s] > 0:
            self.lru.append(s)

    def allocate(self, blocks: int) -> None:
        """Take blocks for a request; evict what is least recently used where nothing is free."""
        assert blocks <= self.available()
        short = blocks - (self.capacity - self.used())
        while short > 0:
            s = self.lru[0]
            gone = min(short, self.held[s])
            self.held[s] -= gone
            short -= gone
            if self.held[s] == 0:
                self.lru.pop(0)
        self.private += blocks

    def segment_of(self, path: list[int], j: int) -> int | None:
        for s in path:
            if self.paths.start[s] <= j < self.paths.end[s]:
                return s
        return None

    def touch_host(self, s: int, blocks: int) -> None:
        """The host tier has (at least) so many blocks of the segment now, and just used it."""
        if self.host_blocks <= 0 or (blocks == 0 and s not in self.host):
            return
        self.host[s] = max(self.host.pop(s, 0), blocks)
        while sum(self.host.values()) > self.host_blocks:
            oldest = next(iter(self.host))
            self.host[oldest] -= 1
            if self.host[oldest] == 0:
                del self.host[oldest]
