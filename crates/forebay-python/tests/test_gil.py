"""Other threads of Python run while bytes move."""

import sys
import threading
import time

import pytest

import forebay


# `Window.slide` keeps the GIL once it has the window: nobody may get the memory that is about to go.
CALLS = ["read_at", "readinto_at", "write_at", "append", "sync", "view", "commit", "refill", "detach"]


STORE_CALLS = ["read_at", "readinto_at", "write_at", "append", "sync", "view", "window", "commit", "listdir"]


def lets_others_run(call):
    gate, ran = threading.Lock(), []

    def other():
        with gate:
            ran.append(True)

    usual = sys.getswitchinterval()
    gate.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    # Nobody is made to give the GIL away from here on: only a call that does so by itself lets the other thread run.
    sys.setswitchinterval(1000)
    try:
        gate.release()
        until = time.monotonic() + 60
        while not ran and time.monotonic() < until:
            call()
        seen = bool(ran)
    finally:
        sys.setswitchinterval(usual)
    thread.join()
    return seen


def calls_of(file, room):
    return {
        "read_at": lambda: file.read_at(len(room), 0),
        "readinto_at": lambda: file.readinto_at(room, 0),
        "write_at": lambda: file.write_at(room, 0),
        "append": lambda: file.append(b"bytes"),
        "sync": file.sync,
        "view": lambda: file.view().release(),
    }


@pytest.mark.parametrize("call", CALLS)
def test_a_call_lets_others_run(session, path, call):
    room = bytearray(1 << 20)
    with session.open(path, "w+b") as file, session.window(4 << 20) as window:
        file.write_at(room, 0)
        # So that there is something to refill or to detach.
        window.commit(file, 2 << 20)
        calls = {
            **calls_of(file, room),
            # With its end: to ask for the length is a call by itself.
            "commit": lambda: window.commit(file, 1 << 20, 0, 4 << 20),
            "refill": window.refill,
            "detach": window.detach,
        }
        assert lets_others_run(calls[call])


@pytest.mark.parametrize("call", STORE_CALLS)
def test_a_call_of_a_store_lets_others_run(tmp_path, call):
    room = bytearray(1 << 20)
    with forebay.Store.create(tmp_path / "store", 64 << 20) as store, store.open("file", "w+b") as file, file.window(0, 100) as window:
        file.write_at(room, 0)
        calls = {
            **calls_of(file, room),
            "window": lambda: file.window(0, 1 << 20).release(),
            "commit": lambda: window.commit(0),
            "listdir": store.listdir,
        }
        assert lets_others_run(calls[call])


def test_a_slide_that_waits_lets_others_run(session, path):
    """And what others take of the window meanwhile keeps it where it is."""
    done, gate, taken = [], threading.Lock(), []

    def commits(file, window):
        while not done:
            # All of it is copied, as it lies elsewhere in its pages than in the file.
            window.commit(file, 1, 0, 64 << 20)

    def takes(window):
        while not done:
            with gate:
                taken.append(memoryview(window))
            time.sleep(0.01)

    with session.open(path, "w+b") as file, session.window(64 << 20) as window:
        threads = [threading.Thread(target=commits, args=(file, window)), threading.Thread(target=takes, args=(window,))]
        usual, seen = sys.getswitchinterval(), False
        gate.acquire()
        for thread in threads:
            thread.start()
        sys.setswitchinterval(1000)
        try:
            until = time.monotonic() + 20
            while not seen and time.monotonic() < until:
                # One thread commits, the other one waits at the gate.
                time.sleep(0.02)
                gate.release()
                try:
                    window.slide(4096)
                except BufferError:
                    seen = True
                gate.acquire()
                while taken:
                    taken.pop().release()
        finally:
            done.append(True)
            sys.setswitchinterval(usual)
            gate.release()
        for thread in threads:
            thread.join()
        while taken:
            taken.pop().release()
        assert seen
