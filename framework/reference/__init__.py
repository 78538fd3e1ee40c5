"""The reference engine: SEMANTICS.md in ordinary Python objects, slow and obvious (`engine.implementation=reference`).

Every decode step is an event and every token has a time. It shares no code with the compiled engine, so that where the
two agree to the bit, both do what SEMANTICS.md says.

A new mechanism is best tried here first, where it is a few lines of Python that need no compilation:

1. Give it an option: a field of `EngineConfig` (`framework/engine/setup/config.py`), which every section reads as
   `s.options.engine`; what is derived from it may be a field of `Options` or `Spec` (`options.py`), as `setup.py` fills
   them.
2. Give its state a field of `Request`, `Instance` or `Step` (`state.py`), and change the section that it belongs to:
   `arrivals`, `scheduling` and `forming` (what a step holds), `kv` (blocks and preemption), `prefixes`, `duration`
   (what a step costs), `step_end`, `transfers`, `roles`. A new kind of event is one more branch of `loop.process`.
3. If policies are to see it, add a row to the columns of `inspection.py`; if they are to decide it, add a method to
   `Policy` and a row to `framework/policy/hooks.py`, and ask `s.hooks.ask(name, number)` where `name` is among
   `s.hooks.overrides`.
4. Run it like any other: `run.py engine.implementation=reference ...`, with any policy, trace, metric and report.

Once it is worth having, write it down in SEMANTICS.md and put it into the compiled engine: the differential tests
(`tests/engine/test_exact.py`) then compare the two over random runs.
"""
