"""LLVM IR that keeps two threads of one call off one processor.

A thread that is woken while all processors are busy, one of them with whoever waits for the call,
may be put behind the caller. There it only begins once the caller has done all work, and Linux
wakes it there again the next time: a tenth of a second can pass before the two are parted. So a
thread that finds itself on its caller's processor goes to another one, where it is woken from then
on. Which it may run on stays as it was.
"""

from __future__ import annotations

import sys
from typing import Final

_LINUX: Final = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i64 @current_processor() nounwind {
  %number = call i32 @sched_getcpu()
  %wide = sext i32 %number to i64
  ret i64 %wide
}

; Moves the calling thread off a processor, if it is there and may run on others.
define internal void @leave_processor(i64 %processor) nounwind noinline {
entry:
  %allowed = alloca [16 x i64]
  %here = call i64 @current_processor()
  %is_there = icmp eq i64 %here, %processor
  %has_bit = icmp ult i64 %here, 1024
  %is_asked = and i1 %is_there, %has_bit
  br i1 %is_asked, label %ask, label %done
ask:
  %error = call i32 @sched_getaffinity(i32 0, i64 128, ptr %allowed)
  %is_told = icmp eq i32 %error, 0
  br i1 %is_told, label %move, label %done
move:
  %number = lshr i64 %here, 6
  %word.place = getelementptr [16 x i64], ptr %allowed, i64 0, i64 %number
  %word = load i64, ptr %word.place
  %place = and i64 %here, 63
  %bit = shl i64 1, %place
  %all_but = xor i64 %bit, -1
  %others = and i64 %word, %all_but
  store i64 %others, ptr %word.place
  %refused = call i32 @sched_setaffinity(i32 0, i64 128, ptr %allowed)  ; if there are none
  store i64 %word, ptr %word.place
  %ignored = call i32 @sched_setaffinity(i32 0, i64 128, ptr %allowed)
  br label %done
done:
  ret void
}
"""

_ELSEWHERE: Final = """
define internal i64 @current_processor() nounwind {
  ret i64 -1
}

define internal void @leave_processor(i64 %processor) nounwind {
  ret void
}
"""


def build_processor_ir(platform: str = sys.platform) -> str:
    """Returns two functions, `current_processor() -> number` and `leave_processor(number)`; where
    a platform, named as `sys.platform` is, has no calls for them they do nothing."""
    return _LINUX if platform == "linux" else _ELSEWHERE
