# SPDX-License-Identifier: Apache-2.0
"""state_dict.py PEER ROUNDS: a state dict of SmolLM2-135M's shapes (540 MB of binary32) is put by one process and got
by another, through torchstore, NIXL or Mooncake's transfer engine. Prints one JSON object: seconds of put, of get, and
from the start of put to the end of get, a list each without the first round.

put leaves the caller free to change its tensors, get leaves the bytes in memory of the getter. The two engines have no
put of their own: it is a copy by two threads into memory that was registered once, and a get is one transfer of all
tensors into memory that was registered once, which is how they are fastest. Nobody hashes.
"""
import asyncio
import json
import multiprocessing
import os
import sys
import threading
import time

import numpy as np

LAYERS, HIDDEN, KEYS, INNER, VOCABULARY = 30, 576, 192, 1536, 49152
THREADS = 2


def shapes():
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", (HIDDEN,)
        for name, rows in (("q", HIDDEN), ("k", KEYS), ("v", KEYS), ("o", HIDDEN)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, HIDDEN)
        for name in ("gate", "up"):
            yield f"{layer}mlp.{name}_proj.weight", (INNER, HIDDEN)
        yield f"{layer}mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)


SIZES = [4 * int(np.prod(shape)) for _, shape in shapes()]
OFFSETS = [sum(SIZES[:i]) for i in range(len(SIZES))]
BYTES = sum(SIZES)


def weights(round_):
    return np.arange(BYTES // 4, dtype=np.float32) + np.float32(round_)


def copy(to, source):
    parts = []
    half = len(to) // THREADS
    for i in range(THREADS):
        part = slice(i * half, (i + 1) * half if i + 1 < THREADS else len(to))
        parts.append(threading.Thread(target=np.copyto, args=(to[part], source[part])))
    for part in parts:
        part.start()
    for part in parts:
        part.join()


class Nixl:
    def __init__(self, name):
        from nixl_cu12._api import nixl_agent, nixl_agent_config
        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.memory = np.ones(BYTES // 4, dtype=np.float32)
        base = self.memory.ctypes.data
        self.agent.register_memory([(base, BYTES, 0, "")], "DRAM")
        self.pieces = [(base + offset, size, 0) for offset, size in zip(OFFSETS, SIZES)]

    def address(self):
        return self.agent.get_agent_metadata(), self.pieces

    def connect(self, address):
        metadata, pieces = address
        peer = self.agent.add_remote_agent(metadata)
        self.handle = self.agent.initialize_xfer("READ", self.agent.get_xfer_descs(self.pieces, "DRAM"),
                                                 self.agent.get_xfer_descs(pieces, "DRAM"), peer, b"")

    def get(self):
        state = self.agent.transfer(self.handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(self.handle)
        if state != "DONE":
            raise RuntimeError(f"nixl: the transfer ended as {state}")


class Mooncake:
    def __init__(self, name):
        from mooncake.engine import TransferEngine
        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("mooncake: initialize failed")
        self.memory = np.ones(BYTES // 4, dtype=np.float32)
        if self.engine.register_memory(self.memory.ctypes.data, BYTES) != 0:
            raise RuntimeError("mooncake: register_memory failed")

    def pieces(self):
        return [self.memory.ctypes.data + offset for offset in OFFSETS]

    def address(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}", self.pieces()

    def connect(self, address):
        self.peer, self.sources = address

    def get(self):
        if self.engine.batch_transfer_sync_read(self.peer, self.pieces(), self.sources, SIZES) != 0:
            raise RuntimeError("mooncake: the transfer failed")


def getter(peer, pipe):
    end = peer("getter")
    end.connect(pipe.recv())
    while (expected := pipe.recv()) is not None:
        start = time.monotonic()
        end.get()
        done = time.monotonic()
        assert np.array_equal(end.memory, weights(expected)), "other bytes arrived"
        end.memory[:] = -1
        pipe.send((start, done))
    os._exit(0)


def engine(peer, rounds):
    multiprocessing.set_start_method("spawn")
    pipe, other = multiprocessing.Pipe()
    process = multiprocessing.Process(target=getter, args=(peer, other), daemon=True)
    process.start()
    end = peer("putter")
    pipe.send(end.address())
    figures = {"put": [], "get": [], "put_get": []}
    for i in range(rounds + 1):
        source = weights(i)
        start = time.monotonic()
        copy(end.memory, source)
        put = time.monotonic()
        pipe.send(i)
        begun, done = pipe.recv()
        if i > 0:
            figures["put"].append(put - start)
            figures["get"].append(done - begun)
            figures["put_get"].append(done - start)
    pipe.send(None)
    process.join(10)
    return figures


async def torchstore(rounds):
    import torch
    import torchstore as ts
    from monarch.actor import Actor, endpoint, this_host

    class Getter(Actor):
        @endpoint
        async def get(self, key):
            begun = time.monotonic()
            got = await ts.get_state_dict(key)
            done = time.monotonic()
            return begun, done, sum(float(tensor.double().sum()) for tensor in got.values())

    torch.set_num_threads(THREADS)
    await ts.initialize()
    other = this_host().spawn_procs(per_host={"gpus": 1}).spawn("getter", Getter)
    figures = {"put": [], "get": [], "put_get": []}
    for i in range(rounds + 1):
        source = torch.from_numpy(weights(i))
        # Each a tensor of its own: of a view the whole memory behind it would travel.
        state = {name: source[offset // 4:(offset + size) // 4].view(shape).clone()
                 for (name, shape), offset, size in zip(shapes(), OFFSETS, SIZES)}
        start = time.monotonic()
        await ts.put_state_dict(state, f"v{i}")
        put = time.monotonic()
        begun, done, total = await other.get.call_one(f"v{i}")
        assert total == sum(float(tensor.double().sum()) for tensor in state.values()), "other bytes arrived"
        if i > 0:
            figures["put"].append(put - start)
            figures["get"].append(done - begun)
            figures["put_get"].append(done - start)
        for key in await ts.keys():
            if key.startswith(f"v{i}"):
                await ts.delete(key)
    await ts.shutdown()
    return figures


def main():
    peer, rounds = sys.argv[1], int(sys.argv[2])
    out = os.dup(1)
    os.dup2(2, 1)  # what the peers print goes to stderr
    if peer == "torchstore":
        figures = asyncio.run(torchstore(rounds))
    else:
        figures = engine({"nixl": Nixl, "mooncake": Mooncake}[peer], rounds)
    os.write(out, json.dumps(figures).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
