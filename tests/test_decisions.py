"""Reasons, decisions and the log."""

from __future__ import annotations

import threading

import pytest

from fuselane.decisions import Decision, DecisionLog, LoopDecision, Reason


def test_codes_are_unique_and_kebab_case() -> None:
    codes = [reason.code for reason in Reason]
    assert len(set(codes)) == len(codes)
    assert all(code == code.lower() and " " not in code for code in codes)


@pytest.mark.parametrize("reason", Reason)
def test_sentences_read_well_without_details(reason: Reason) -> None:
    sentence = reason.decide(opcode="sine").sentence
    assert sentence.endswith(".")
    assert "{" not in sentence


def test_details_are_filled_in() -> None:
    decision = Reason.TOO_LARGE.decide(
        instruction="w", opcode="while", source="a.py:3 (f)", elements=7, limit=5
    )
    assert decision.sentence == "One lane needs 7 values at once, more than 5."
    assert (decision.instruction, decision.opcode, decision.source) == ("w", "while", "a.py:3 (f)")
    assert not decision.fused
    assert Reason.FUSED.decide(lanes=8).fused


def entry(number: int) -> LoopDecision:
    decision = Decision(reason=Reason.FUSED, sentence="")
    return LoopDecision(
        module="m", name=str(number), source="", trip_count=None, lanes=None, decision=decision
    )


def test_log_is_bounded() -> None:
    log = DecisionLog(max_decisions=3)
    for number in range(5):
        log.append(entry(number))
    assert [e.name for e in log] == ["2", "3", "4"]
    assert len(log) == 3
    log.clear()
    assert not list(log)


def test_log_can_be_read_while_it_is_written() -> None:
    log = DecisionLog()

    def write() -> None:
        for number in range(2_000):
            log.append(entry(number))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        list(log)
    for thread in threads:
        thread.join()
    assert len(log) == 6_000
