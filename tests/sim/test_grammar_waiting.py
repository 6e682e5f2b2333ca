"""A request whose grammar still compiles waits beside the queue: it holds up nobody, and is told of, stopped and freed
like any other."""

import threading
from collections import Counter
from random import Random
from typing import Any

import pytest
from simulation import Simulation, make_config

from octavo.core.engine_input import AbortRequests
from octavo.core.engine_output import EngineCoreOutputs
from octavo.core.grammar import REGEX, GrammarSpec
from octavo.core.request import Request
from octavo.core.step import ModelRunnerOutput, RowFailure
from octavo.engine.engine_core import EngineCore
from octavo.engine.engine_loop import EngineLoop
from octavo.engine.grammar_gate import GrammarGate, GrammarReady
from octavo.executor.executor import StepFuture

SLOW = GrammarSpec(REGEX, "slow")


class _Gate(GrammarGate):
    """Keeps what was started until the test says what came of it."""

    def __init__(self) -> None:
        self.started: list[Request] = []

    def start(self, request: Request) -> None:
        self.started.append(request)

    def close(self) -> None:
        pass


def _simulation(**settings: Any) -> tuple[Simulation, _Gate]:
    simulation = Simulation(make_config(**settings))
    gate = _Gate()
    simulation.core._gate = gate
    simulation.executor.keep_steps = True
    return simulation, gate


def _released(simulation: Simulation) -> list[GrammarSpec]:
    return [spec for step in simulation.executor.steps for spec in step.released_grammars]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_others_pass_a_request_whose_grammar_compiles(overlap: bool, policy: str) -> None:
    simulation, gate = _simulation(overlap=overlap, policy=policy)
    simulation.add(1, [5, 6, 7], grammar=SLOW)
    simulation.add(2, [5, 6, 8])
    assert [request.handle for request in gate.started] == [1]
    simulation.run()
    assert simulation.finished == {2: "length"} and simulation.outputs[1] == []
    assert simulation.core.request_timeline("r1")[-1][1:] == ("refused", "grammar compiling")
    assert simulation.scheduler.stats().num_waiting == 1
    assert not simulation.core.has_work
    simulation.core.grammar_ready(GrammarReady(gate.started[0], True, ""))
    assert simulation.core.has_work
    simulation.run()
    assert simulation.finished == {1: "length", 2: "length"}
    assert [new.grammar for step in simulation.executor.steps for new in step.new] == [None, SLOW]
    simulation.add(3, [1])
    simulation.run()
    assert _released(simulation) == [SLOW]
    simulation.assert_all_free()


def test_a_grammar_that_fails_ends_its_request_only() -> None:
    simulation, gate = _simulation()
    simulation.add(1, [5], grammar=SLOW)
    simulation.add(2, [6])
    finished = simulation.core.grammar_ready(GrammarReady(gate.started[0], True, "it is no good"))
    assert finished is not None and (finished.handle, finished.reason, finished.error) == (1, "error", "it is no good")
    simulation.run()
    assert simulation.finished == {2: "length"} and _released(simulation) == [SLOW]
    simulation.assert_all_free()


@pytest.mark.parametrize("started", [True, False])
def test_an_abort_while_it_compiles_leaves_nothing_behind(started: bool) -> None:
    simulation, gate = _simulation()
    simulation.add(1, [5], grammar=SLOW)
    simulation.core.abort(AbortRequests(0, [1]))
    assert not simulation.core.has_work and not simulation.scheduler.requests
    assert simulation.core.grammar_ready(GrammarReady(gate.started[0], started, "" if started else "gone")) is None
    simulation.add(2, [6])
    simulation.run()
    assert _released(simulation) == ([SLOW] if started else [])
    simulation.assert_all_free()


def test_every_grammar_that_is_held_is_released_once_however_its_request_ends() -> None:
    for seed in range(30):
        rng = Random(seed)
        simulation, gate = _simulation(num_blocks=14, max_num_seqs=4, overlap=seed % 2 == 0)
        held: Counter[GrammarSpec] = Counter()
        todo = list(range(12))
        while todo or simulation.core.has_work or gate.started:
            if todo and rng.random() < 0.5:
                handle = todo.pop()
                grammar = GrammarSpec(REGEX, str(handle % 3)) if rng.random() < 0.7 else None
                simulation.add(
                    handle, [handle + 1] * rng.randint(1, 12), max_tokens=rng.randint(1, 12), grammar=grammar
                )
            if gate.started and rng.random() < 0.5:
                request = gate.started.pop(rng.randrange(len(gate.started)))
                assert request.grammar is not None
                held[request.grammar] += 1
                error = "no good" if rng.random() < 0.1 else ""
                simulation.core.grammar_ready(GrammarReady(request, True, error))
            if rng.random() < 0.1:
                simulation.core.abort(AbortRequests(0, [rng.randrange(12)]))
            simulation.step()
        simulation.add(100, [1])
        simulation.run()
        assert Counter(_released(simulation)) == held
        simulation.assert_all_free()


def test_a_row_that_fails_ends_its_request_and_frees_what_it_held() -> None:
    simulation, _ = _simulation()
    simulation.add(1, [5, 6], max_tokens=20)
    simulation.add(2, [7, 8], max_tokens=20)
    execute = simulation.executor.execute

    def failing(output: Any) -> StepFuture:
        future = execute(output)
        drawn: ModelRunnerOutput = future.result()
        if output.step == 4:
            row = 0
            future = _Done(ModelRunnerOutput(drawn.step, drawn.token_ids, [], [], [RowFailure(row, "stuck")]))
        return future

    simulation.executor.execute = failing  # type: ignore[method-assign]
    messages: list[EngineCoreOutputs] = []
    while simulation.core.has_work:
        messages += simulation.step()
    ends = {finished.handle: finished for message in messages for finished in message.finished}
    assert (ends[1].reason, ends[1].error) == ("error", "stuck")
    assert ends[2].reason == "length" and len(simulation.outputs[2]) == 20
    assert len(simulation.outputs[1]) == 3
    simulation.assert_all_free()


class _Done:
    def __init__(self, output: ModelRunnerOutput) -> None:
        self._output = output

    def result(self) -> ModelRunnerOutput:
        return self._output


def test_the_loop_sleeps_while_a_grammar_compiles_and_wakes_when_it_is_ready() -> None:
    simulation, gate = _simulation()
    core: EngineCore = simulation.core
    emitted: list[EngineCoreOutputs] = []
    done = threading.Event()

    def emit(_client: int, message: EngineCoreOutputs) -> None:
        emitted.append(message)
        if any(finished.handle == 1 for finished in message.finished):
            done.set()

    loop = EngineLoop(core, emit)
    simulation.add(1, [5, 6], grammar=SLOW)
    steps = _count_calls(core)
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert not done.wait(0.2)
    assert steps == []
    core.on_grammar(GrammarReady(gate.started[0], True, ""))
    assert done.wait(10)
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()


def _count_calls(core: EngineCore) -> list[int]:
    steps: list[int] = []
    step = core.step

    def counted() -> list[EngineCoreOutputs]:
        steps.append(1)
        return step()

    core.step = counted
    return steps
