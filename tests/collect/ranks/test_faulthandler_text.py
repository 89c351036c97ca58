from __future__ import annotations

from guardrun.supervisor.collect.ranks.stack_dumps import MAX_FRAMES, parse_faulthandler
from guardrun.supervisor.engine.model.looks import Frame

TEXT = """Fatal nonsense before
Thread 0x00007f228ca1d6c0 (most recent call first):
  File "/x/a b.py", line 5 in f
  File "/x/threading.py", line 982 in run

Thread 0x00007f228ca1d6c1 [guard] (most recent call first):
  Garbage-collecting
  File "/x/named.py", line 1 in g

Thread 0x00007f228ca1d6c2 (most recent call first):
  <no Python frame>

Current thread 0x00007f228d48ab80 (most recent call first):
  File "/x/a.py", line 7 in <lambda>
  File "/x/a.py", line ??? in <module>
"""


def test_threads_are_told_apart_and_the_main_one_is_first() -> None:
    main, first, named = parse_faulthandler(TEXT, 42)
    assert main.is_main and main.tid == 42
    assert main.frames == [Frame("<lambda>", "/x/a.py", 7), Frame("<module>", "/x/a.py", 0)]
    assert first.frames[0] == Frame("f", "/x/a b.py", 5) and not first.is_main
    assert named.name == "guard"


def test_one_thread_alone_and_a_c_stack_behind_it() -> None:
    text = (
        'Stack (most recent call first):\n  File "/x/a.py", line 7 in f\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/lib/libc.so.6", at sleep+0x1 [0x7f]\n  File "not a frame of ours", line 1 in x\n'
    )
    (thread,) = parse_faulthandler(text)
    assert thread.frames == [Frame("f", "/x/a.py", 7)]


def test_deep_stacks_are_bounded_and_nonsense_is_nothing() -> None:
    deep = "Thread 0x1 (most recent call first):\n" + '  File "a.py", line 1 in f\n' * 100 + "  ...\n"
    assert len(parse_faulthandler(deep)[0].frames) == MAX_FRAMES
    assert parse_faulthandler("") == []
    assert parse_faulthandler('  File "a.py", line 1 in f\n') == []
